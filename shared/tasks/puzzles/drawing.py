"""Knights & Knaves puzzles drawn at random, each with exactly one solution, and put into words.

Statements are drawn as those of the public test files look: a claim about one person, its negation, or two claims
joined by and, or, if-then, if-and-only-if, the six kinds equally often. Left out are statements that are true or false
whatever the roles are, and with them "I am a knave", which nobody can say.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from grpo_replications.shared.tasks.puzzles.statements import Statement, Statements, solutions, truth_table

KNIGHT, KNAVE = "knight", "knave"
FEWEST_PEOPLE, MOST_PEOPLE = 2, 7

NAMES = (
    "Ada", "Anton", "Bella", "Bruno", "Carlo", "Clara", "Diego", "Dora", "Elena", "Emil", "Fatima", "Felix", "Greta",
    "Gustav", "Hanna", "Hugo", "Irene", "Ivan", "Jonas", "Julia", "Karla", "Kenji", "Lena", "Leo", "Marco", "Mila",
    "Nadia", "Nora", "Oscar", "Otto", "Paula", "Petra", "Quinn", "Rafael", "Rosa", "Selma", "Simon", "Tara", "Tomas",
    "Ulrich", "Ursula", "Vera", "Viktor", "Walter", "Wanda", "Xenia", "Yara", "Yusuf", "Zelda", "Zeno",
)  # fmt: skip

_SAYINGS = (
    '{name} says: "{Claim}."',
    '{name} tells you: "{Claim}."',
    '"{Claim}," says {name}.',
    '"{Claim}," {name} insists.',
    "{name} says that {claim}.",
    "{name} claims that {claim}.",
    "According to {name}, {claim}.",
    'The words of {name} are: "{Claim}."',
)
_ROLE_CLAIMED = {"telling-truth": KNIGHT, "lying": KNAVE}
_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}


@dataclass(frozen=True)
class Puzzle:
    """A puzzle with its only solution: names, statements and solution (True for a knight) in one order of people."""

    names: tuple[str, ...]
    statements: Statements
    solution: tuple[bool, ...]
    text: str

    @property
    def roles(self) -> dict[str, str]:
        """The role of each name, in order."""
        return {name: KNIGHT if knight else KNAVE for name, knight in zip(self.names, self.solution)}

    @property
    def answer(self) -> str:
        """The solution as the prompt asks for it, a numbered line for each person."""
        return "\n".join(f"({i}) {name} is a {role}" for i, (name, role) in enumerate(self.roles.items(), start=1))


def draw_puzzle(generator: random.Random, people: int, depth: int = 2, width: int = 2) -> Puzzle:
    """A random puzzle with exactly one solution, worded with random names.

    `depth`: most levels of a statement, 2 or more (flat claims never decide: turning every role round would fit as
    well); `width`: most parts that and/or join, 2 or 3. Draws until the solution is unique, every third time or so.
    Raises ValueError for numbers out of range.
    """
    if not FEWEST_PEOPLE <= people <= MOST_PEOPLE:
        raise ValueError(f"a puzzle has {FEWEST_PEOPLE} to {MOST_PEOPLE} people, not {people}")
    if not 2 <= depth <= 4 or not 2 <= width <= 3:
        raise ValueError(f"depth must be 2 to 4 and width 2 or 3, not {depth} and {width}")
    while True:
        statements = tuple(_draw_saying(generator, person, people, depth, width) for person in range(people))
        found = solutions(statements)
        if len(found) == 1:
            names = tuple(generator.sample(NAMES, people))
            return Puzzle(names, statements, found[0], _in_words(generator, names, statements))


def _draw_saying(generator: random.Random, speaker: int, people: int, depth: int, width: int) -> Statement:
    """A statement whose truth depends on somebody's role."""
    while True:
        statement = _draw_statement(generator, speaker, people, depth, width)
        if 0 < truth_table(statement, people) < (1 << (1 << people)) - 1:
            return statement


def _draw_statement(generator: random.Random, speaker: int, people: int, depth: int, width: int) -> Statement:
    kind = generator.choice(("claim", "not", "and", "or", "->", "<=>")) if depth > 1 else "claim"
    if kind == "claim":
        while True:
            claim = (generator.choice(("telling-truth", "lying")), generator.randrange(people))
            if claim != ("lying", speaker):
                return claim
    count = 1 if kind == "not" else generator.randint(2, width) if kind in ("and", "or") else 2
    parts: list[Statement] = []
    while len(parts) < count:
        part = _draw_statement(generator, speaker, people, depth - 1, width)
        if part not in parts:
            parts.append(part)
    return (kind, *parts)


def _in_words(generator: random.Random, names: tuple[str, ...], statements: Statements) -> str:
    sayings = []
    for name, statement in zip(names, statements):
        claim = claim_in_words(statement, names)
        saying = generator.choice(_SAYINGS)
        sayings.append(saying.format(name=name, claim=claim, Claim=claim[0].upper() + claim[1:]))
    return (
        "On an island, everyone is either a knight, whose every statement is true, or a knave, whose every statement "
        f"is false. You meet {_NUMBERS[len(names)]} islanders: {', '.join(names[:-1])} and {names[-1]}. "
        f"{' '.join(sayings)} Who is a knight and who is a knave?"
    )


def claim_in_words(statement: Statement, names: tuple[str, ...]) -> str:
    """A statement as a clause, such as "if Ada is a knave then Otto is not a knight"; compound parts in brackets."""
    kind, *parts = statement
    if kind in _ROLE_CLAIMED:
        return f"{names[parts[0]]} is a {_ROLE_CLAIMED[kind]}"
    if _is_simple(statement):
        inner, person = parts[0]
        return f"{names[person]} is not a {_ROLE_CLAIMED[inner]}"
    words = [claim_in_words(part, names) for part in parts]
    words = [word if _is_simple(part) else f"({word})" for word, part in zip(words, parts)]
    if kind == "not":
        return f"it is not the case that {words[0]}"
    if kind == "->":
        return f"if {words[0]} then {words[1]}"
    return {"and": " and ", "or": " or ", "<=>": " if and only if "}[kind].join(words)


def _is_simple(statement: Statement) -> bool:
    """A claim about one person or its negation."""
    return statement[0] in _ROLE_CLAIMED or (statement[0] == "not" and statement[1][0] in _ROLE_CLAIMED)
