"""Drawn puzzles: one solution each, seeded, worded as their statements say."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from grpo_replications.shared.grading.puzzle_answers import read_roles
from grpo_replications.shared.tasks.puzzles.drawing import NAMES, claim_in_words, draw_puzzle
from grpo_replications.shared.tasks.puzzles.statements import solutions, truth_table


@pytest.mark.parametrize("people", range(2, 8))
def test_every_puzzle_has_exactly_its_solution(people: int) -> None:
    generator = random.Random(people)
    for _ in range(100):
        puzzle = draw_puzzle(generator, people)
        assert solutions(puzzle.statements) == [puzzle.solution]
        assert len(puzzle.names) == len(set(puzzle.names)) == people
        assert all(0 < truth_table(s, people) < 2 ** (2**people) - 1 for s in puzzle.statements)
        introduced = puzzle.text.partition("islanders: ")[2].partition(".")[0]
        assert tuple(re.split(", | and ", introduced)) == puzzle.names
        for name, statement in zip(puzzle.names, puzzle.statements):
            assert claim_in_words(statement, puzzle.names).lower() in puzzle.text.lower()
            assert name in puzzle.text
        assert read_roles(puzzle.answer, puzzle.names) == puzzle.roles


def test_seeded_and_apart_from_the_global_generator() -> None:
    state = random.getstate()
    one, again, other = (draw_puzzle(random.Random(seed), 5) for seed in (1, 1, 2))
    assert one == again != other
    assert random.getstate() == state


def test_no_constant_answer_is_often_right() -> None:
    generator = random.Random(0)
    drawn = Counter(draw_puzzle(generator, 3).solution for _ in range(1000))
    assert len(drawn) == 8 and max(drawn.values()) < 250  # 125 of each if all were equally likely


def test_depth_and_width() -> None:
    def depth(statement: tuple) -> int:
        parts = [part for part in statement[1:] if isinstance(part, tuple)]
        return 1 + max(map(depth, parts), default=0)

    generator = random.Random(0)
    deep = [s for _ in range(100) for s in draw_puzzle(generator, 4, depth=3, width=3).statements]
    assert max(map(depth, deep)) == 3 and max(map(len, deep)) == 4
    assert draw_puzzle(generator, 2, depth=4, width=3)
    flat = [s for _ in range(100) for s in draw_puzzle(generator, 4).statements]
    assert max(map(depth, flat)) == 2 and max(map(len, flat)) == 3
    assert {s[0] for s in flat} == {"telling-truth", "lying", "not", "and", "or", "->", "<=>"}


def test_words() -> None:
    names = ("Ada", "Otto", "Zeno")
    claim = ("->", ("lying", 0), ("not", ("telling-truth", 1)))
    assert claim_in_words(claim, names) == "if Ada is a knave then Otto is not a knight"
    assert claim_in_words(("not", claim), names).startswith("it is not the case that (if Ada")
    assert claim_in_words(("<=>", ("or", claim, ("lying", 2)), ("lying", 1)), names) == (
        "((if Ada is a knave then Otto is not a knight) or Zeno is a knave) if and only if Otto is a knave"
    )


def test_names_cannot_be_taken_for_words_or_for_each_other() -> None:
    assert len(NAMES) == len({name.lower() for name in NAMES})
    assert not [(a, b) for a in NAMES for b in NAMES if a != b and re.search(rf"\b{a}\b", b)]
    assert all(read_roles(f"{name} is a knight", [name]) == {name: "knight"} for name in NAMES)


@pytest.mark.parametrize("people, depth, width", [(1, 2, 2), (8, 2, 2), (3, 1, 2), (3, 5, 2), (3, 2, 1), (3, 2, 4)])
def test_out_of_range(people: int, depth: int, width: int) -> None:
    with pytest.raises(ValueError):
        draw_puzzle(random.Random(0), people, depth, width)


def test_agrees_with_reasoning_gym() -> None:
    """An outside generator and solver, where it is installed: our solver finds its solutions, our parser reads them."""
    gym = pytest.importorskip("reasoning_gym")
    for people in (2, 3, 5):
        for item in gym.create_dataset("knights_knaves", n_people=people, size=40, seed=1):
            details = item["metadata"]
            assert solutions(details["statements"]) == [tuple(map(bool, details["solution"]))]
            if details["knight_knave_terms"]["knight"] == "knight":
                roles = read_roles(item["answer"], [str(name) for name in details["names"]])
                assert roles is not None
                assert [role == "knight" for role in roles.values()] == list(map(bool, details["solution"]))
