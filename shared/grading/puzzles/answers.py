"""Reading an answer to a Knights & Knaves puzzle: which role a completion gives to each name.

What is read: the last `<answer>` block after the thinking; without one, all that follows the thinking. In it, every
name of the puzzle must get exactly one role, in whatever wording: "(1) Ada is a knight", "**Ada**: Knight", "Ada and
Otto are knaves", "Knights: Ada; knaves: Otto", rows of a table, JSON. The same role stated again is fine; a
contradiction, a missing name, or a role for somebody who is not in the puzzle leaves no answer at all.

Only assertions count. A role under a condition, in a disjunction, denied as a whole or reported as somebody's words is
prose, and prose is ignored. "Ada is not a knight" says that she is a knave: there are only the two. A role of "she",
of "both" or of nobody named ("no, a knave") gives no name its role, but must agree with those stated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shared.grading.puzzles.answer_clauses import Claim, ClauseReader, Context
from shared.grading.puzzles.answer_phrases import NoAnswerError
from shared.grading.puzzles.answer_tokens import Clause, Token, clauses_of
from shared.grading.puzzles.answer_words import SEPARATORS, is_denial, looks_like_name

_TAG = re.compile(r"<\s?(/?)\s?(think|answer)\s?>", re.IGNORECASE)
_EXACT_TAG = re.compile(r"</?(?:think|answer)>")
_FINAL = re.compile(r"final answer|answer\s?:|answer is|conclusion", re.IGNORECASE)
_ROLE = re.compile(r"kn(?:ight|ave)", re.IGNORECASE)


def parse_answer(text: str, names: Sequence[str]) -> dict[str, str] | None:
    """The role ("knight" or "knave") that a completion, or a bare answer, gives to each name; None if not to all.

    Keys come in the order of `names`. See the module for what counts. Time grows linearly with the text, whatever it
    holds. Raises ValueError for names that are empty or equal but for case, TypeError for text that is no string.
    """
    if not isinstance(text, str):
        raise TypeError(f"an answer must be a string, not {type(text).__name__}")
    for region in _answer_regions(text):
        try:
            found = _roles(list(_claims(clauses_of(region, names))), names)
        except NoAnswerError:
            return None
        if len(found) == len(names):
            return {name: found[name] for name in names}
    return None


def _roles(claims: list[Claim], names: Sequence[str]) -> dict[str, str]:
    """The asserted role of each name that has one. Raises NoAnswerError if the claims contradict each other."""
    found: dict[str, str] = {}
    for claim in claims:
        if claim.at_least is None and any(found.setdefault(name, claim.role) != claim.role for name in claim.names):
            raise NoAnswerError
    for claim in claims:
        having = sum(found.get(name) == claim.role for name in claim.names or names)
        if claim.at_least is not None and having < min(claim.at_least, len(claim.names or names)):
            raise NoAnswerError
    return found


def is_well_formed(text: str) -> bool:
    """Whether the text is `<think>...</think>` and then `<answer>...</answer>`, each once, only space around."""
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


def _claims(clauses: Iterator[Clause]) -> Iterator[Claim]:
    """Every claim of the clauses; names listed below a heading such as "Knights:" have its role."""
    context = Context()
    heading, before, claimed = None, None, False
    for clause in clauses:
        context.supposed = context.supposed and not clause.starts_line
        if claimed and is_denial([token.value for token in clause.tokens]):
            raise NoAnswerError
        claims = None
        if clause.is_question:
            heading, claims = None, []
        elif heading:
            claims = _listed(clause, heading)
        elif before:
            claims = _name_and_role(before, clause)
        if claims is None:
            heading = _heading(clause.tokens)
            claims = [] if heading else ClauseReader(clause, context).claims()
        elif claims:
            context.recent = dict.fromkeys(claims[0].names)
        before, claimed = None if clause.is_question else clause, bool(claims)
        yield from claims


def _listed(clause: Clause, heading: str) -> list[Claim] | None:
    """The claim of a clause that lists names below a heading; None if it is no such list."""
    names = tuple(token.value for token in clause.tokens if token.kind == "name")
    rest = [token for token in clause.tokens if token.kind != "name" and not _joins(token)]
    if rest and all(token.kind == "word" and looks_like_name(token.text, listed=True) for token in rest):
        if names or clause.is_item:
            raise NoAnswerError  # a stranger is listed
        return None
    return [Claim(names, heading)] if names and not rest else None


def _joins(token: Token) -> bool:
    return token.kind == "mark" or token.value in SEPARATORS


def _heading(tokens: list[Token]) -> str | None:
    """The role of a heading ("Knights:", "The knaves are:"), if the clause is one."""
    roles = [token for token in tokens if token.kind == "role"]
    rest = [token for token in tokens if token.kind != "role"]
    if len(roles) != 1 or not all(token.kind == "mark" or token.value in ("the", "are", "is") for token in rest):
        return None
    plural = roles[0].text.lower().endswith("s")
    return roles[0].value if plural or any(token.value == ":" for token in rest) else None


def _name_and_role(first: Clause, second: Clause) -> list[Claim] | None:
    """The claim of a line with a name, "Ada:" or "name: Ada", and the next with a role: "- knight" or "role: knight".

    A colon or a list shows that they belong together; else a name may stand between the role before and the one behind.
    """
    tokens = _after_label(first.tokens, ("name", "person"))
    role = [token for token in second.tokens if token.value not in ("a", "an", ",", ")", "]")]
    role = _after_label(role, ("role", "identity", "type", "status"))
    colon = any(token.value == ":" for token in first.tokens + second.tokens)
    if not (first.starts_line and second.starts_line and (colon or (second.is_item and not first.is_item))):
        return None
    if tokens[0].kind != "name" or any(token.value not in (":", ",") for token in tokens[1:]):
        return None
    if len(role) != 1 or role[0].kind != "role":
        return None
    return [Claim((tokens[0].value,), role[0].value)]


def _after_label(tokens: list[Token], labels: tuple[str, ...]) -> list[Token]:
    """The tokens without a label before them, as "name:"."""
    labelled = len(tokens) > 2 and tokens[0].value in labels and tokens[1].value in (":", "=")
    return tokens[2:] if labelled else tokens
