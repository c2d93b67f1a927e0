"""What the people of a Knights & Knaves puzzle say, which roles that allows, and when two puzzles are the same.

A statement is a nested tuple: `("telling-truth", i)` and `("lying", i)` say that person i is a knight or a knave;
`("not", s)`, `("and", s, ...)`, `("or", s, ...)`, `("->", s, t)` and `("<=>", s, t)` combine statements (the
notation of the public test files). A puzzle is a tuple of statements, one for each person in order. Knights say what is
true and knaves what is false: roles solve the puzzle when each statement is true exactly where its speaker is a knight.

A statement's truth table is an integer of 2^n bits; bit a is its value under assignment a, in which person i is a
knight where bit i of a is set. One operation on integers so treats all 2^n assignments of n people at once.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import numpy as np

Statement = tuple[Any, ...]
Statements = tuple[Statement, ...]

MOST_PEOPLE = 16  # the truth tables have 2^n bits

_CLAIMS = ("telling-truth", "lying")
_PARTS = {"not": (1, 1), "and": (1, None), "or": (1, None), "->": (2, 2), "<=>": (2, 2)}  # fewest and most parts


def solutions(statements: Statements) -> list[tuple[bool, ...]]:
    """Every assignment of roles that fits the statements, in order of persons, True for a knight.

    Brute force over the 2^n assignments of n people, all at once: n + (number of operators) operations on integers of
    2^n bits. Raises ValueError for a malformed statement or more than MOST_PEOPLE people.
    """
    people = len(statements)
    fitting = _all_true(people)
    for person, statement in enumerate(statements):
        fitting &= ~(truth_table(statement, people) ^ _knight_table(person, people))
    return [tuple(bool(a >> i & 1) for i in range(people)) for a in _set_bits(fitting)]


def truth_table(statement: Statement, people: int) -> int:
    """The statement's value under each of the 2^people assignments, as an integer of that many bits."""
    if not isinstance(statement, tuple) or not statement:
        raise ValueError(f"not a statement: {statement!r}")
    kind, *parts = statement
    if kind in _CLAIMS:
        if len(parts) != 1 or type(parts[0]) is not int or not 0 <= parts[0] < people:
            raise ValueError(f"{statement!r} must name one of persons 0 to {people - 1}")
        knight = _knight_table(parts[0], people)
        return knight if kind == "telling-truth" else _all_true(people) ^ knight
    if kind not in _PARTS:
        raise ValueError(f"unknown kind of statement: {kind!r}")
    fewest, most = _PARTS[kind]
    if len(parts) < fewest or (most is not None and len(parts) > most):
        raise ValueError(f"{kind!r} cannot have {len(parts)} parts")
    tables = [truth_table(part, people) for part in parts]
    first, every = tables[0], _all_true(people)
    if kind == "not":
        return every ^ first
    if kind == "->":
        return (every ^ first) | tables[1]
    if kind == "<=>":
        return every ^ first ^ tables[1]
    for table in tables[1:]:
        first = first & table if kind == "and" else first | table
    return first


def parse_statements(text: str) -> Statements:
    """Statements from their printed form, as the public files have them. Raises ValueError if they are none."""
    try:
        parsed = _as_tuples(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"not a tuple of statements: {str(text)[:100]!r}") from error
    if not isinstance(parsed, tuple) or not parsed:
        raise ValueError(f"not a tuple of statements: {str(text)[:100]!r}")
    for statement in parsed:
        truth_table(statement, len(parsed))
    return parsed


@lru_cache(maxsize=1 << 16)
def canonical_form(statements: Statements) -> tuple[int, ...]:
    """What stays of a puzzle when people are renamed or reordered and statements are put in other, equivalent words.

    The number of people, then the truth tables of the statements, with the people in the order that makes the tables
    smallest. Equal for two puzzles exactly if some renaming of people turns the one into the other, statement by
    statement, up to logical equivalence: puzzles as alike as that count as one, more strictly than as written.
    Costs n^2 operations on tables, then n 2^n for each order that `_colors` leaves open: usually one or a few, n! only
    where everybody says the same about everybody.
    """
    people = len(statements)
    tables = [truth_table(statement, people) for statement in statements]
    bits = np.array([[table >> a & 1 for a in range(1 << people)] for table in tables], dtype=np.uint8)
    best = min(
        np.packbits(bits[list(order)][:, _relabeled_assignments(order)], axis=1, bitorder="little").tobytes()
        for order in _orders(_colors(tables))
    )
    width = len(best) // people
    return (people, *(int.from_bytes(best[i : i + width], "little") for i in range(0, len(best), width)))


def _colors(tables: list[int]) -> list[int]:
    """A number for each person that no renaming changes: refined until people alike in every respect share theirs.

    It starts from how often a person's statement is true, and takes in what each of two persons' statements has to do
    with the other person: how often it is true with that person a knight, and how often that person's role decides it.
    """
    people = len(tables)
    knights = [_knight_table(i, people) for i in range(people)]
    about = [
        [((table & knights[j]).bit_count(), (table ^ _flipped(table, j, people)).bit_count()) for j in range(people)]
        for table in tables
    ]
    colors = _ranks([(tables[i].bit_count(), about[i][i]) for i in range(people)])
    for _ in range(people):
        if len(set(colors)) == people:
            break
        colors = _ranks(
            [(colors[i], sorted((colors[j], about[i][j], about[j][i]) for j in range(people))) for i in range(people)]
        )
    return colors


def _ranks(keys: list[Any]) -> list[int]:
    rank = {repr(key): position for position, key in enumerate(sorted(keys))}
    return [rank[repr(key)] for key in keys]


def _orders(colors: list[int]) -> Iterator[tuple[int, ...]]:
    """Every order of the people with colors rising: `order[new]` is the person who becomes person `new`."""
    alike = [[i for i, color in enumerate(colors) if color == value] for value in sorted(set(colors))]
    for choice in itertools.product(*(itertools.permutations(group) for group in alike)):
        yield tuple(itertools.chain.from_iterable(choice))


@lru_cache(maxsize=1 << 13)
def _relabeled_assignments(order: tuple[int, ...]) -> np.ndarray:
    """For each assignment of the reordered people, the assignment of the people as they were; shape (2^n,)."""
    new = np.arange(1 << len(order))
    return sum(((new >> position) & 1) << person for position, person in enumerate(order))  # type: ignore[return-value]


def _flipped(table: int, person: int, people: int) -> int:
    """The table with the role of one person turned round in every assignment."""
    knight, step = _knight_table(person, people), 1 << person
    return ((table & knight) >> step) | ((table & ~knight) << step)


@cache
def _knight_table(person: int, people: int) -> int:
    step = 1 << person
    period = (1 << step) - 1 << step  # `step` zeros, then `step` ones
    return sum(period << start for start in range(0, 1 << people, 2 * step))


def _all_true(people: int) -> int:
    if not 1 <= people <= MOST_PEOPLE:
        raise ValueError(f"a puzzle has 1 to {MOST_PEOPLE} people, not {people}")
    return (1 << (1 << people)) - 1


def _set_bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value
