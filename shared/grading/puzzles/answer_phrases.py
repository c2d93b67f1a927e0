"""What the words around a name or a role say: the names of a list, the role behind them, a denial behind that.

Every look-ahead is of bounded length, or over a list that is then passed over: time is linear in the tokens.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.grading.puzzles import answer_words as words
from shared.grading.puzzles.answer_tokens import Token

KNIGHT, KNAVE = "knight", "knave"

OTHER = {KNIGHT: KNAVE, KNAVE: KNIGHT}
FARTHEST = 10  # tokens between a name and its role
_HABITS = {"tells the truth": KNIGHT, "always tells the truth": KNIGHT, "lies": KNAVE, "always lies": KNAVE}


class NoAnswerError(Exception):
    """The text states what no answer to this puzzle can state."""


class _Found(NamedTuple):
    at: int
    negated: bool
    plural: bool
    verb: bool
    bound: bool  # by a verb or a mark, not by mere neighborhood


class _StatedRole(NamedTuple):
    role: str
    plural: bool
    verb: bool
    bound: bool
    end: int  # the token after it


class Phrases:
    """Look-ahead in the tokens of one clause."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens

    def _value(self, i: int) -> str:
        return self.tokens[i].value if 0 <= i < len(self.tokens) else ""

    def _kind(self, i: int) -> str:
        return self.tokens[i].kind if 0 <= i < len(self.tokens) else ""

    def _names(self, i: int) -> tuple[list[str], int]:
        """The names listed from token i on, and the token after them."""
        names, end = [self._value(i)], i + 1
        while True:
            following = self._after_separators(end)
            if following == end or self._kind(following) != "name":
                return names, end
            names.append(self._value(following))
            end = following + 1

    def _after_separators(self, i: int) -> int:
        """The token after the separators, two at most, that stand from token i on."""
        end = i
        while self._value(end) in words.SEPARATORS and end < i + 2:
            end += 1
        return end

    def _is_choice(self, i: int, count: int) -> bool:
        """Whether the names from token i on are those of "one of Ada and Otto" or in brackets: not the subject."""
        before = self._value(i - 1)
        if before in ("of", "among", "between"):
            return count > 1 and self._value(i - 2) not in ("both", "all", "each")
        return i > 0 and self._value(i + 2 * count - 1) == ")" and before not in ("(", "[", "both")

    def _respective(self, names: list[str], end: int) -> tuple[list[tuple[str, str]], int]:
        """Pairs of "Ada and Otto are a knight and a knave, respectively", and the token after; no pairs otherwise."""
        at = end + 1 if self._value(end) in words.BINDERS else end
        said, roles = self._value(at) == "respectively", []
        at += said
        while self._kind(at) == "role" or self._value(at) in words.LIST_WORDS:
            roles += [self._value(at)] if self._kind(at) == "role" else []
            at += 1
        if self._value(at) == "respectively":
            said, at = True, at + 1
        if not said or len(names) < 2:
            return [], end
        if len(roles) != len(names):
            raise NoAnswerError
        return list(zip(names, roles)), at

    def _role_after(self, start: int, collective: bool = False) -> _StatedRole | None:
        """The role that the tokens from `start` on state of the names before them, if they do."""
        found = self._habit(start) or self._find_role(start, collective)
        if found is None:
            return None
        i, token = found.at, self.tokens[found.at]
        several = token.text.lower().endswith("s")
        if several and i == start:
            return None  # "Ada knights: ..." is a heading behind a name
        if not found.verb and self._value(i + 1) in (":", "=", words.ARROW) and self._kind(i + 2) == "name":
            return None  # the role belongs to the names that follow
        role = OTHER[token.value] if found.negated else token.value
        end = self._after_contrast(i + 1, role)
        return None if end is None else _StatedRole(role, found.plural or several, found.verb, found.bound, end)

    def _find_role(self, start: int, collective: bool = False) -> _Found | None:
        """The role behind names that end before `start`, if only words that bind it to them stand between."""
        negated, bound, plural, verb = False, False, False, False
        for i in range(start, min(start + FARTHEST, len(self.tokens))):
            token = self.tokens[i]
            if token.kind == "role":
                return _Found(i, negated, plural, verb, bound)
            if negated and token.value not in words.AFTER_NEGATION:
                return None
            if token.value in words.NEGATIONS:
                negated = True
                if collective:
                    return None  # "both are not knights" may mean that one is not
            elif token.value not in words.LINKS and not self._is_border(start, i):
                return None
            bound = bound or token.value in words.BINDERS
            verb = verb or token.value in words.VERBS
            plural = plural or token.value == "are"
            collective = collective or token.value in ("both", "all")
        return None

    def _habit(self, start: int) -> _Found | None:
        """The role in brackets behind a habit that goes with it: "tells the truth (knight)"."""
        for habit, role in _HABITS.items():
            at = start + len(habit.split())
            if " ".join(self._value(i) for i in range(start, at)) == habit and self._value(at) == "(":
                return _Found(at + 1, False, False, True, True) if self._value(at + 1) == role else None
        return None

    def _is_border(self, start: int, i: int) -> bool:
        """Whether token i, behind names that end before `start`, is a comma or & that parts them from their role."""
        before, following, last = self._value(i - 1), self._value(i + 1), self._value(i + 2)
        if self._value(i) not in (",", "&"):
            return False
        if len(self.tokens) == 3 or following in ("role", "identity", "type", "status"):
            return True
        if self._value(i) == "&":
            return False
        if i == start and self._kind(i + 1) == "role":  # "(Ada, knight)"
            return last in (")", "]") and (start == 1 or self._value(start - 2) in ("(", "["))
        if i == start and following in words.ARTICLES and self._kind(i + 2) == "role":  # "Ada, a knight"
            return self._kind(i + 3) in ("", "mark") or self._value(i + 3) in ("and", "while", "but")
        return (before in words.VERBS and following in words.ASIDES) or (i > start and before in words.ASIDES)

    def _after_contrast(self, i: int, role: str) -> int | None:
        """The token after "(not a knave)", "but a knight" or the like behind a role; None if a second role joins it."""
        at = i + 1 if self._value(i) in ("(", ",") else i
        word, following = self._value(at), self._value(at + 1)
        if word in words.NEGATIONS:
            kind, at = "opposite", at + 1
        elif (word, following) in (("and", "not"), ("rather", "than"), ("instead", "of")):
            kind, at = "opposite", at + 2
        elif word == "but":
            kind, at = "same", at + 2 if following in ("rather", "is") else at + 1
        elif word in ("or", "nor", "and", "/", "|"):
            kind, at = "joined", at + 1
        else:
            kind = "joined"
        if self._value(at) in words.ARTICLES:
            at += 1
        if self._kind(at) != "role" or (kind == "joined" and self._names_after_role(at)[0]):
            return i
        if kind == "joined":
            return i if self._value(at) == role else None
        if self._value(at) != (role if kind == "same" else OTHER[role]):
            raise NoAnswerError
        return at + 1

    def _names_after_role(self, i: int, in_force: bool = False) -> tuple[list[str], int]:
        """The names of "knights: Ada and Otto" or "the knave is Ada" from the role at token i; none otherwise.

        Where that has force, no stranger may be among them.
        """
        start = i + 1
        while start < i + 4 and self._value(start) in words.BEFORE_NAMES:
            start += 1
        if start == i + 1:
            return [], i + 1
        listed = self._after_separators(start + 1)
        if in_force and self._is_listed_stranger(start) and listed > start + 1 and self._kind(listed) == "name":
            names, end = self._names(listed)
            if self._find_role(end) is None:
                raise NoAnswerError  # "knights: Zara, Ada"
        if self._kind(start) != "name":
            return [], i + 1
        names, end = self._names(start)
        if self._find_role(end) is not None:  # "one knave: Ada is a knight, ..."
            return [], i + 1
        following = self._after_separators(end)
        if following > end and in_force and self._is_listed_stranger(following):
            raise NoAnswerError  # "knights: Ada, Zara"
        return names, end

    def _is_listed_stranger(self, i: int) -> bool:
        """Whether the word at token i, in a list of those with a role, is the name of somebody else."""
        return self._kind(i) == "word" and words.looks_like_name(self.tokens[i].text, listed=True)

    def _is_taken_back(self, i: int) -> bool:
        """Whether the tokens from i on, behind an assertion, deny it: "(false)", "is not true", ", no"."""
        for at in range(i, min(i + 6, len(self.tokens))):
            if self._value(at) in words.FALSE:
                return self._kind(at + 1) in ("", "mark") or self._value(at + 1) in words.AFTER_CORRECTION
            if self._value(at) in words.NEGATIONS:
                return self._kind(at + 1) in ("", "mark") or self._value(at + 1) in words.TRUE
            if self._value(at) not in words.BEHIND_ROLE:
                return False
        return False

    def _introduces_words(self, i: int) -> bool:
        """Whether the "statement" or the like at token i is followed by what it says."""
        at = i + 2 if self._value(i + 1) == "is" else i + 1
        colon = self._value(at) == ":" and self._value(i - 1) in words.OWNERS
        if any(token.quoted for token in self.tokens[at + colon : at + colon + 1]):
            return False  # what is quoted has no force; what follows the quotation has
        return colon or self._kind(at) == "name" or self._value(at) in ("that", "(")

    def _names_speaker(self, i: int) -> bool:
        """Whether token i tells that what the clause quotes is reported: "said", or the name in "...", - Ada"."""
        if self.tokens[i].quoted or self.tokens[i].kind != "name":
            return not self.tokens[i].quoted and self._value(i) in words.SPEAKING
        if self._value(i + 1) == ":" and self._kind(i + 2) == "name":
            return all(token.quoted for token in self.tokens[i + 2 : i + 4])
        return i > 2 and self._value(i - 1) == "-" and all(token.quoted for token in self.tokens[i - 3 : i - 1])
