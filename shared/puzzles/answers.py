"""Reading an answer to a Knights & Knaves puzzle: which role a completion gives to each name.

What is read: the last ``<answer>`` block after the thinking; without one, all that follows the thinking. In it, every
name of the puzzle must get exactly one role, in whatever wording: "(1) Ada is a knight", "**Ada**: Knight", "Ada and
Otto are knaves", "Knights: Ada; knaves: Otto", rows of a table, JSON. The same role stated again is fine; a
contradiction, a missing name, or a role for somebody who is not in the puzzle leaves no answer at all.

Only assertions count. A role under a condition, in a disjunction, denied as a whole or reported as somebody's words is
prose, and prose is ignored. "Ada is not a knight" says that she is a knave: there are only the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shared.puzzles.answer_tokens import Clause, Token, clauses_of
from shared.puzzles.drawing import KNAVE, KNIGHT

_OTHER = {KNIGHT: KNAVE, KNAVE: KNIGHT}

_TAG = re.compile(r"<\s?(/?)\s?(think|answer)\s?>", re.IGNORECASE)
_EXACT_TAG = re.compile(r"</?(?:think|answer)>")
_FINAL = re.compile(r"final answer|answer\s?:|answer is|conclusion", re.IGNORECASE)
_ROLE = re.compile(r"kn(?:ight|ave)", re.IGNORECASE)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What may stand between a name and its role; with any other word there, nothing is asserted of that name.
_VERBS = _words("is are be 's")
_LINKS = _VERBS | _words(
    "a an the must has have to also both all in as one of only definitely certainly clearly surely truly indeed "
    "therefore thus necessarily identified role identity type kind : - = | ( ) [ ]"
)
_BINDERS = _VERBS | _words(": - = | ( [")
_NEGATIONS = _words("not no never")
_ARTICLES = _words("a an the")
_JOINTS = _words(", and & while whereas but both")
_SEPARATORS = _words(", and & / +")

# What takes the force of an assertion from the words after it, or, for conditions, also right before it.
_CONDITIONS = _words("if iff or unless whether either neither nor would were otherwise when")
_SUPPOSITIONS = _words("suppose supposing assume assuming assumption case hypothesis hypothetically")
_DENIALS = _NEGATIONS | _words("false untrue incorrect wrong impossible doubt deny")
_REPORTS = _words(
    "say says said saying claims claimed states stated told declares declared asserts asserted accuses accused "
    "according insists insisted remarked commented mentioned noted believes"
)
_CONCLUSIONS = _words("so therefore thus hence consequently")

# Words that are no part of the name of a stranger, even with a capital letter.
_NO_NAMES = (_LINKS | _JOINTS | _CONDITIONS | _SUPPOSITIONS | _DENIALS | _REPORTS | _CONCLUSIONS) | _words(
    "he she it they you we i who which that this these those each other others everyone everybody someone anyone there "
    "what then since because for where with from given now first second third next last here name person people "
    "inhabitant inhabitants islander islanders character speaker answer answers solution result roles status means "
    "conclusion know find get yes ok okay"
)
_FARTHEST = 10  # tokens between a name and its role


class _NoAnswerError(Exception):
    """The text states what no answer to this puzzle can state."""


class _StatedRole(NamedTuple):
    role: str
    plural: bool
    bound: bool  # by a verb or a mark, not by mere neighborhood
    end: int  # the token after it


def parse_answer(text: str, names: Sequence[str]) -> dict[str, str] | None:
    """The role ("knight" or "knave") that a completion, or a bare answer, gives to each name; None if not to all.

    Keys come in the order of `names`. See the module for what counts. Time grows linearly with the text, whatever it
    holds. Raises ValueError for names that are empty or equal but for case, TypeError for text that is no string.
    """
    if not isinstance(text, str):
        raise TypeError(f"an answer must be a string, not {type(text).__name__}")
    for region in _answer_regions(text):
        found: dict[str, str] = {}
        try:
            for name, role in _stated_roles(clauses_of(region, names)):
                if found.setdefault(name, role) != role:
                    return None
        except _NoAnswerError:
            return None
        if len(found) == len(names):
            return {name: found[name] for name in names}
    return None


def is_well_formed(text: str) -> bool:
    """Whether the text is ``<think>...</think>`` and then ``<answer>...</answer>``, each once, only space around."""
    tags = list(_EXACT_TAG.finditer(text))
    if [tag.group() for tag in tags] != ["<think>", "</think>", "<answer>", "</answer>"]:
        return False
    outside = text[: tags[0].start()], text[tags[1].end() : tags[2].start()], text[tags[3].end() :]
    return not any(part.strip() for part in outside)


def _answer_regions(text: str) -> list[str]:
    """Parts of the text to look for the answer in, the first choice first; none if thinking never came to an end.

    An answer block that was never closed reaches to the end. Blocks inside the thinking are drafts. Without a block,
    what follows the last "final answer" comes first, if it names every role, and then all that follows the thinking.
    """
    thinking, opened, closed, start = False, None, None, 0
    for tag in _TAG.finditer(text):
        closing, kind = bool(tag.group(1)), tag.group(2).lower()
        if kind == "think":
            thinking = not closing
            if closing:
                start, opened = tag.end(), None
        elif not closing:
            opened, closed = tag.end(), None
        elif opened is not None and closed is None:
            closed = tag.start()
    if opened is not None:
        regions = [text[opened:closed]]
    elif thinking:
        regions = []
    else:
        rest = text[start:]
        marker = None
        for marker in _FINAL.finditer(rest):  # noqa: B007 - the last match is wanted
            pass
        regions = [rest] if marker is None else [rest[marker.end() :], rest]
    return [region for region in regions if _ROLE.search(region)]


def _stated_roles(clauses: Iterator[Clause]) -> Iterator[tuple[str, str]]:
    """Every (name, role) that the clauses assert; names listed below a heading such as "Knights:" have its role."""
    heading, supposed = None, False
    for clause in clauses:
        if clause.starts_line:
            supposed = False
        listed = [token.value for token in clause.tokens if token.kind == "name"]
        if heading and listed and all(_joins(token) for token in clause.tokens if token.kind != "name"):
            yield from ((name, heading) for name in listed)
            continue
        heading = _heading(clause.tokens)
        if heading is None:
            reader = _ClauseReader(clause.tokens, supposed)
            yield from reader.assertions()
            supposed = reader.supposed


def _joins(token: Token) -> bool:
    return token.kind == "mark" or token.value in _SEPARATORS


def _heading(tokens: list[Token]) -> str | None:
    """The role of a heading ("Knights:", "The knaves are:"), if the clause is one."""
    roles = [token for token in tokens if token.kind == "role"]
    rest = [token for token in tokens if token.kind != "role"]
    if len(roles) != 1 or not all(token.kind == "mark" or token.value in ("the", "are", "is") for token in rest):
        return None
    plural = roles[0].text.lower().endswith("s")
    return roles[0].value if plural or any(token.value == ":" for token in rest) else None


class _ClauseReader:
    """One pass over a clause's tokens, from the left, with what has been said that takes the force from assertions."""

    def __init__(self, tokens: list[Token], supposed: bool) -> None:
        self.tokens = tokens
        self.supposed = supposed  # under a supposition, to the end of the line
        self.conditional = self.denied = self.reported = False
        self.reports_somebody = any(token.value in _REPORTS and not token.quoted for token in tokens)

    def assertions(self) -> list[tuple[str, str]]:
        """(name, role) of each assertion. Raises _NoAnswerError where a stranger gets a role."""
        settled: list[tuple[str, str]] = []
        run: list[tuple[str, str]] = []  # joined assertions; a condition right behind them takes them back
        i = 0
        while i < len(self.tokens):
            found, end, joined = self._step(i)
            if joined is None:
                run = []
            elif not joined:
                settled += run
                run = []
            run += found
            i = end
        return settled + run

    def _step(self, i: int) -> tuple[list[tuple[str, str]], int, bool | None]:
        """Assertions that begin at token i; the token after them; whether they continue a run (None: they undo it)."""
        token = self.tokens[i]
        if token.kind == "name":
            names, end = self._names(i)
            stated = self._role_after(end)
            if stated is None:
                return [], end, False
            self._refuse_longer_name(i)
            subjects = names if stated.plural else names[-1:]
            return self._asserted(token, subjects, stated.role), stated.end, True
        if token.kind == "role":
            names, end = self._names_after_role(i)
            return self._asserted(token, names, token.value), end, bool(names)
        word = token.value
        if word in _JOINTS:
            self.denied = False
            return [], i + 1, True
        if word in _CONDITIONS:
            self.conditional = True
            return [], i + 1, None
        if word in _SUPPOSITIONS:
            self.supposed = True
        elif word in _CONCLUSIONS:
            self.denied = self.reported = False
        elif word in _DENIALS:
            self.denied = True
        elif word in _REPORTS:
            self.reported = True
        elif token.kind == "word" and self._is_stranger(i):
            raise _NoAnswerError
        return [], i + 1, False

    def _asserted(self, token: Token, names: list[str], role: str) -> list[tuple[str, str]]:
        if not self._has_force(token):
            return []
        return [(name, role) for name in names]

    def _has_force(self, token: Token) -> bool:
        reported = self.reported or (token.quoted and self.reports_somebody)
        return not (self.supposed or self.conditional or self.denied or reported)

    def _value(self, i: int) -> str:
        return self.tokens[i].value if i < len(self.tokens) else ""

    def _kind(self, i: int) -> str:
        return self.tokens[i].kind if i < len(self.tokens) else ""

    def _names(self, i: int) -> tuple[list[str], int]:
        """The names listed from token i on, and the token after them."""
        names, end = [self._value(i)], i + 1
        while True:
            following = end
            while self._value(following) in _SEPARATORS and following < end + 2:
                following += 1
            if following == end or self._kind(following) != "name":
                return names, end
            names.append(self._value(following))
            end = following + 1

    def _role_after(self, start: int) -> _StatedRole | None:
        """The role that the tokens from `start` on state of the names before them, if they do."""
        negations, bound, plural, verb = 0, False, False, False
        for i in range(start, min(start + _FARTHEST, len(self.tokens))):
            token = self.tokens[i]
            if token.kind == "role":
                break
            if token.value in _NEGATIONS:
                negations += 1
            elif token.value not in _LINKS and not self._is_cell_border(i):
                return None
            bound = bound or token.value in _BINDERS
            verb = verb or token.value in _VERBS
            plural = plural or token.value == "are"
        else:
            return None
        if negations > 1:
            return None
        several = token.text.lower().endswith("s")
        if several and i == start:
            return None  # "Ada knights: ..." is a heading behind a name
        if not verb and self._value(i + 1) in (":", "=") and self._kind(i + 2) == "name":
            return None  # the role belongs to the names that follow
        role = _OTHER[token.value] if negations else token.value
        end = self._after_contrast(i + 1, role)
        return None if end is None else _StatedRole(role, plural or several, bound, end)

    def _is_cell_border(self, i: int) -> bool:
        """Whether token i is the comma of "Ada, knight" alone in its clause, or of "name: Ada, role: knight"."""
        return self._value(i) == "," and (len(self.tokens) == 3 or self._value(i + 1) in ("role", "identity"))

    def _after_contrast(self, i: int, role: str) -> int | None:
        """The token after "(not a knave)", "but a knight" or the like behind a role; None if a second role joins it."""
        at = i + 1 if self._value(i) in ("(", ",") else i
        word, following = self._value(at), self._value(at + 1)
        if word in _NEGATIONS:
            kind, at = "opposite", at + 1
        elif (word, following) in (("and", "not"), ("rather", "than"), ("instead", "of")):
            kind, at = "opposite", at + 2
        elif word == "but":
            kind, at = "same", at + 2 if following in ("rather", "is") else at + 1
        elif word in ("or", "nor", "and", "/", "|"):
            kind, at = "joined", at + 1
        else:
            kind = "joined"
        if self._value(at) in _ARTICLES:
            at += 1
        if self._kind(at) != "role" or (kind == "joined" and self._names_after_role(at)[0]):
            return i
        if kind == "joined":
            return None
        if self._value(at) != (role if kind == "same" else _OTHER[role]):
            raise _NoAnswerError
        return at + 1

    def _names_after_role(self, i: int) -> tuple[list[str], int]:
        """The names of "knights: Ada and Otto" or "the knave is Ada" from the role at token i; none otherwise."""
        start = i + 1
        while start < i + 4 and self._value(start) in _BINDERS | {"both", "only"}:
            start += 1
        if start == i + 1 or self._kind(start) != "name":
            return [], i + 1
        names, end = self._names(start)
        if self._role_after(end) is not None:  # "one knave: Ada is a knight, ..."
            return [], i + 1
        return names, end

    def _is_stranger(self, i: int) -> bool:
        """Whether the word at token i names somebody else, who gets a role."""
        if not self._may_be_name(i, anywhere=False) or not self._has_force(self.tokens[i]):
            return False
        stated = self._role_after(i + 1)
        return stated is not None and stated.bound

    def _refuse_longer_name(self, i: int) -> None:
        """Raise if the name at token i is the end of a longer one, as "Ann" in "Mary Ann"."""
        if i > 0 and self.tokens[i - 1].kind == "word" and self._may_be_name(i - 1, anywhere=True):
            raise _NoAnswerError

    def _may_be_name(self, i: int, anywhere: bool) -> bool:
        """Whether a word can be a name: written as one or, unless `anywhere`, the first of its clause."""
        text = self.tokens[i].text
        if text.lower() in _NO_NAMES or text.lower().endswith(("ly", "ing")):
            return False
        return (text[:1].isupper() and (len(text) == 1 or text[1:].islower())) or (not anywhere and i == 0)
