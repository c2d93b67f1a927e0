"""What one clause of an answer asserts: which roles for which names, and what it says of names mentioned before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shared.grading.puzzles import answer_words as words
from shared.grading.puzzles.answer_phrases import FARTHEST, OTHER, NoAnswerError, Phrases
from shared.grading.puzzles.answer_tokens import Clause

_ALL = 1 << 30  # more names than any puzzle has


class Claim(NamedTuple):
    """That at least so many of the names have the role; with None, each is asserted to. No names stand for all."""

    names: tuple[str, ...]
    role: str
    at_least: int | None = None


@dataclass
class Context:
    """What earlier clauses leave for the next one."""

    supposed: bool = False  # under a supposition, to the end of the line
    recent: dict[str, None] = field(default_factory=dict)  # names of the last assertion, and those mentioned since


_Step = tuple[list[Claim], int, bool | None]


class ClauseReader(Phrases):
    """One pass over a clause's tokens, from the left, with what has been said that takes the force from assertions."""

    def __init__(self, clause: Clause, context: Context) -> None:
        super().__init__(clause.tokens)
        self.counted = clause.is_counted
        self.context = context
        self.conditional = self.reported = False
        self.denied = self.all_denied = False  # up to the next joint; up to the next conclusion
        self.denied_at = self.last_end = -9
        self.reports_somebody = any(self._names_speaker(i) for i in range(len(self.tokens)))

    def claims(self) -> list[Claim]:
        """What the clause asserts. Raises NoAnswerError where a stranger gets a role."""
        settled: list[Claim] = []
        run: list[Claim] = []  # joined assertions; a condition or a denial right behind them takes them back
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
        if self.tokens[-1].value in words.REPORTS:  # "Ada is a knight, Otto says"
            return []
        return settled + run

    def _step(self, i: int) -> _Step:
        """Claims that begin at token i; the token after them; whether they continue a run (None: they undo it)."""
        kind = self.tokens[i].kind
        if kind == "name":
            return self._step_name(i)
        return self._step_role(i) if kind == "role" else self._step_word(i)

    def _step_name(self, i: int) -> _Step:
        names, end = self._names(i)
        self.context.recent.update(dict.fromkeys(names))
        if self._is_choice(i, len(names)):
            return [], end, False
        pairs, after = self._respective(names, end)
        if pairs:
            return self._asserted(i, [Claim((name,), role) for name, role in pairs], after)
        stated = self._role_after(end, collective=self._value(i - 1) in ("both", "all"))
        if stated is None:
            following = self._value(end + 1) if self._kind(end + 1) == "name" else names[-1]
            self.reported = self.reported or (self._value(end) == ":" and following != names[-1])  # "Otto: Ada is ..."
            return [], end, False
        if i == 1 and self._value(0) in words.VERBS and not stated.verb:  # "is Ada a knight"
            return [], stated.end, False
        if len(names) > 1 and self._value(end - 2) == "/" and not stated.plural:
            return [], stated.end, False
        self._refuse_longer_name(i)
        subjects = names if stated.plural else names[-1:]
        return self._asserted(i, [Claim(tuple(subjects), stated.role)], stated.end)

    def _step_role(self, i: int) -> _Step:
        names, end = self._names_after_role(i, self._has_force(i))
        if names:
            return self._asserted(i, [Claim(tuple(names), self._value(i))], end)
        claims = self._claims_of_mentioned(i)
        if self._is_taken_back(i + 1):
            return [], i + 1, None
        return claims, i + 1, bool(claims)

    def _step_word(self, i: int) -> _Step:
        word, following = self._value(i), self._value(i + 1)
        if word in words.JOINTS:
            self.denied = False
            return [], i + 1, True
        if word in words.LIMITS:
            return [], i + 1, True
        if word in words.CONDITIONS or self._makes_condition(i):
            self.conditional = True
            return [], i + 1, None
        if word in words.SUPPOSITIONS:
            self.context.supposed = True
            return [], i + 1, None
        if word in words.CONCLUSIONS:
            self.denied = self.all_denied = self.reported = False
        elif word == "no" and following in (",", ":", "-", "wait", ""):
            pass  # nothing that follows is denied
        elif word in words.DENIALS:
            self.denied, self.denied_at = True, i
            self.all_denied = self.all_denied or word == "none" or following in ("both", "all", "every")
        elif word == "that" and self.denied and i <= self.denied_at + 3:  # "not the case that"
            self.all_denied = True
        elif word in words.REPORTS and self.last_end in (i, i - 1):  # "Ada is a knight, according to Otto"
            self.reported = True
            return [], i + 1, None
        elif word in words.REPORTS or (word in words.CLAIMS and self._introduces_words(i)):
            self.reported = True
        elif self.tokens[i].kind == "word" and self._is_stranger(i):
            raise NoAnswerError
        return [], i + 1, False

    def _makes_condition(self, i: int) -> bool:
        """Whether token i makes what stands before it a condition, as an arrow behind an assertion does."""
        word = self._value(i)
        if word == "provided":
            return self._kind(i + 1) == "name"
        if word in words.IMPLICATIONS:
            return self._kind(i - 1) == "role"
        at = i + 2 if self._value(i + 1) in words.ARTICLES else i + 1
        return word == words.ARROW and self.last_end > 0 and self._kind(i - 1) != "name" and self._kind(at) != "role"

    def _asserted(self, i: int, claims: list[Claim], end: int) -> _Step:
        """The claims, if those that begin at token i have force and are not denied right behind."""
        self.last_end = end
        if self._is_taken_back(end):
            return [], end, None
        if not self._has_force(i):
            return [], end, True
        self.context.recent = dict.fromkeys(name for claim in claims for name in claim.names)
        return claims, end, True

    def _has_force(self, i: int, subject: int | None = None) -> bool:
        """Whether what begins at token i is asserted; a denial from token `subject` on is part of it."""
        reported = self.reported or (self.tokens[i].quoted and self.reports_somebody)
        denied = (self.denied or self.all_denied) and (subject is None or self.denied_at < subject)
        return not (self.context.supposed or self.conditional or denied or reported)

    def _claims_of_mentioned(self, i: int) -> list[Claim]:
        """What the role at token i, with a pronoun or nothing as subject, says of names mentioned before."""
        flips, everyone, verb, at = 0, "", False, i - 1
        while at > i - FARTHEST and self._is_predicate(at):
            flips += self._value(at) in words.NEGATIONS
            verb = verb or self._value(at) in words.VERBS
            everyone = self._value(at) if self._value(at) in ("both", "all") else everyone
            at -= 1
        role = OTHER[self._value(i)] if flips % 2 else self._value(i)
        if self._after_contrast(i + 1, role) is None or (everyone and flips):
            return []
        while at > i - FARTHEST and not everyone and verb and self._value(at) in words.GROUP:
            at -= 1
        if not self._has_force(i, at):
            return []
        subject = everyone or self._value(at)
        several = self.tokens[i].text.lower().endswith("s") and subject == "they"
        if verb and subject in words.NOBODY:
            return [Claim((), OTHER[role], _ALL)]
        if verb and (subject in words.EVERYBODY or subject == "both" or several):
            return [Claim((), role, _ALL if subject in words.EVERYBODY else 2)]
        if not self.context.recent or not ((verb and subject in words.PRONOUNS) or self._corrects(at, i)):
            return []
        return [Claim(tuple(self.context.recent), role, 1)]

    def _is_predicate(self, i: int) -> bool:
        """Whether token i may stand between a subject and its role."""
        if self._kind(i) == "mark" or self._value(i) == "one":
            return False
        return self._value(i) in words.LINKS or self._value(i) in words.NEGATIONS

    def _corrects(self, before: int, i: int) -> bool:
        """Whether the role at token i, with nothing but links back to token `before`, stands for one stated before."""
        follows = self._kind(i + 1) in ("", "mark", "role") or self._value(i + 1) in words.AFTER_CORRECTION
        if not follows or (self._value(i + 1) in ("and", "&") and self._kind(i + 2) == "role"):
            return False
        if before < 0:
            return not self.counted
        if self._value(before) in words.JOINTS - {","}:
            return before == self.last_end
        return self._kind(before) in ("mark", "role") or self._value(before) in words.CORRECTIONS

    def _is_stranger(self, i: int) -> bool:
        """Whether the word at token i names somebody else, who gets a role."""
        if not (words.looks_like_name(self.tokens[i].text) or (i == 0 and words.may_begin_name(self.tokens[i].text))):
            return False
        if not self._has_force(i):
            return False
        stated = self._role_after(i + 1)
        return stated is not None and stated.bound

    def _refuse_longer_name(self, i: int) -> None:
        """Raise if the name at token i is the end of a longer one, as "Ann" in "Mary Ann"."""
        if self._kind(i - 1) == "word" and words.looks_like_name(self.tokens[i - 1].text):
            raise NoAnswerError
