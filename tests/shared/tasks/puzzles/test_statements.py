"""Truth tables, the solver and the canonical form, against plain recursion over assignments and all permutations."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_replications.shared.tasks.puzzles.drawing import draw_puzzle
from grpo_replications.shared.tasks.puzzles.statements import canonical_form, parse_statements, solutions, truth_table


def holds(statement: tuple, roles: tuple[bool, ...]) -> bool:
    """The oracle: a statement's value under one assignment, by recursion."""
    kind, *parts = statement
    if kind == "telling-truth":
        return roles[parts[0]]
    if kind == "lying":
        return not roles[parts[0]]
    values = [holds(part, roles) for part in parts]
    return {
        "not": lambda: not values[0],
        "and": lambda: all(values),
        "or": lambda: any(values),
        "->": lambda: values[1] if values[0] else True,
        "<=>": lambda: values[0] is values[1],
    }[kind]()


def renamed(statement: tuple, order: tuple[int, ...]) -> tuple:
    """The statement with person i called order[i]."""
    kind, *parts = statement
    if kind in ("telling-truth", "lying"):
        return (kind, order[parts[0]])
    return (kind, *(renamed(part, order) for part in parts))


def reordered(statements: tuple, order: tuple[int, ...]) -> tuple:
    result: list = [None] * len(statements)
    for person, statement in enumerate(statements):
        result[order[person]] = renamed(statement, order)
    return tuple(result)


def assignments(people: int) -> list[tuple[bool, ...]]:
    return list(itertools.product((False, True), repeat=people))


def same_puzzle(one: tuple, other: tuple) -> bool:
    """The oracle: some renaming makes every statement of the one logically equal to its counterpart."""
    if len(one) != len(other):
        return False
    return any(
        all(
            holds(a, roles) == holds(b, roles)
            for a, b in zip(reordered(one, order), other)
            for roles in assignments(len(one))
        )
        for order in itertools.permutations(range(len(one)))
    )


def statements_of(people: int) -> st.SearchStrategy:
    claim = st.tuples(st.sampled_from(["telling-truth", "lying"]), st.integers(0, people - 1))
    statement = st.recursive(
        claim,
        lambda part: st.one_of(
            st.tuples(st.just("not"), part),
            st.tuples(st.sampled_from(["->", "<=>", "and", "or"]), part, part),
            st.tuples(st.sampled_from(["and", "or"]), part, part, part),
        ),
        max_leaves=4,
    )
    return st.lists(statement, min_size=people, max_size=people).map(tuple)


puzzles = st.integers(2, 5).flatmap(statements_of)


@settings(max_examples=60, deadline=None)
@given(puzzles)
def test_truth_tables_and_solutions_against_recursion(statements: tuple) -> None:
    people = len(statements)
    for statement in statements:
        table = truth_table(statement, people)
        for number in range(2**people):
            roles = tuple(bool(number >> i & 1) for i in range(people))
            assert bool(table >> number & 1) == holds(statement, roles)
    fitting = {roles for roles in assignments(people) if all(holds(s, roles) == r for s, r in zip(statements, roles))}
    assert set(solutions(statements)) == fitting and len(solutions(statements)) == len(fitting)


@settings(max_examples=60, deadline=None)
@given(puzzles, st.randoms())
def test_canonical_form_survives_renaming_and_rewording(statements: tuple, generator: random.Random) -> None:
    order = list(range(len(statements)))
    generator.shuffle(order)
    form = canonical_form(statements)
    assert canonical_form(reordered(statements, tuple(order))) == form
    assert canonical_form(tuple(("not", ("not", s)) for s in statements)) == form
    assert canonical_form(tuple(("and", s, s) for s in statements)) == form


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4).flatmap(lambda n: st.tuples(statements_of(n), statements_of(n))))
def test_canonical_form_tells_different_puzzles_apart(pair: tuple) -> None:
    one, other = pair
    assert (canonical_form(one) == canonical_form(other)) == same_puzzle(one, other)


def test_canonical_form_decides_sameness_among_many_small_puzzles() -> None:
    """Two people have so few puzzles that random pairs are often the same one: both answers are put to the test."""
    generator = random.Random(0)
    drawn = [draw_puzzle(generator, 2).statements for _ in range(60)]
    verdicts = [
        (canonical_form(a) == canonical_form(b), same_puzzle(a, b)) for a, b in itertools.combinations(drawn, 2)
    ]
    assert all(ours == truth for ours, truth in verdicts)
    assert 20 < sum(truth for _, truth in verdicts) < len(verdicts) / 2


def test_canonical_form_of_the_most_symmetric_puzzles() -> None:
    nobody = tuple(("telling-truth", i) for i in range(7))
    circle = tuple(("lying", (i + 1) % 7) for i in range(7))
    assert canonical_form(reordered(circle, (3, 0, 6, 2, 5, 1, 4))) == canonical_form(circle) != canonical_form(nobody)
    two_circles = tuple(("lying", j) for j in (1, 2, 0, 4, 5, 6, 3))  # colors alone cannot tell it from one circle
    assert canonical_form(two_circles) != canonical_form(circle)


def test_a_known_puzzle() -> None:
    """The first says "we are both knaves": only a knave with a knight beside him can."""
    statements = parse_statements("(('and', ('lying', 0), ('lying', 1)), ['not', ('telling-truth', 0)])")
    assert statements == (("and", ("lying", 0), ("lying", 1)), ("not", ("telling-truth", 0)))
    assert solutions(statements) == [(False, True)]
    assert solutions((("lying", 0),)) == []  # "I am a knave"
    assert len(solutions((("telling-truth", 0),))) == 2  # "I am a knight"
    assert len(solutions((("telling-truth", 0),) * 16)) == 2


@pytest.mark.parametrize(
    "statement",
    [(), "lying", ("lying", 2), ("lying", -1), ("lying", True), ("lying",), ("xor", ("lying", 0), ("lying", 1)),
     ("->", ("lying", 0)), ("not", ("lying", 0), ("lying", 1)), ("and",), ("and", 1)],
)  # fmt: skip
def test_malformed_statements(statement: object) -> None:
    with pytest.raises(ValueError):
        solutions((statement, ("lying", 0)))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "()", "1", "('lying', 0)", "__import__('os')", "((('lying',", "(" * 10_000, None])
def test_text_that_is_no_puzzle(text: str) -> None:
    with pytest.raises(ValueError):
        parse_statements(text)


def test_too_many_people() -> None:
    with pytest.raises(ValueError, match="1 to 16"):
        solutions((("lying", 0),) * 17)
