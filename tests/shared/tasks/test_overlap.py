"""Overlap of test and training problems against brute force, and AR-Lopti's leak on its own evaluation puzzles."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from grpo_replications.shared.tasks.knights_and_knaves import read_puzzles
from grpo_replications.shared.tasks.overlap import overlap, puzzle_overlap, words
from grpo_replications.shared.tasks.puzzles.drawing import Puzzle, draw_puzzle

DATA = Path(__file__).parents[4] / "shared" / "data" / "kk"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not beside this clone")


def test_counts_are_those_of_brute_force() -> None:
    draw = random.Random(5)
    texts = [[draw.choice("abc") for _ in range(draw.randint(2, 8))] for _ in range(60)]
    texts[40:44] = texts[:4]
    tests, training = texts[:25], texts[25:]
    found = overlap([" ".join(t) for t in tests], [" ".join(t) for t in training], run=5, common=10**9)

    def shares(one: list[str], other: list[str]) -> bool:
        pieces = [one[i : i + 5] for i in range(len(one) - 4)]
        return any(piece == other[i : i + 5] for piece in pieces for i in range(len(other) - 4))

    exact = [any(t == other for other in training) for t in tests]
    runs = [same or any(shares(t, other) for other in training) for t, same in zip(tests, exact, strict=True)]
    assert (found.exact, found.runs) == (sum(exact), sum(runs)) and 0 < found.exact < found.runs < len(tests)
    assert (found.tested, found.trained, found.run, found.common_runs) == (25, 35, 5, 0)


def test_wording_that_carries_nothing_does_not_hide_or_make_an_overlap() -> None:
    assert words(r"Find $\frac{x}{2}$, please: 12.") == ["find", "x", "2", "please", "12"]
    order = " Think step by step and put the final answer of this problem into a box."
    tests = [f"Is this problem {word}?{order}" for word in ("one", "two", "three", "four", "five", "six", "seven")]
    found = overlap(tests, ["Is this\nproblem TWO!", f"Is this problem eight?{order}"])
    assert found.exact == found.runs == 1 and found.examples[0]["test_row"] == 1
    phrase = " ".join("abcdefghijklmno")
    common = overlap([f"{i} {phrase} {i}" for i in range(7)], [f"x {phrase} y"])
    assert common.runs == 0 and common.common_runs == 3
    copied = overlap([f"{i} {phrase} {i}" for i in range(2)], [f"x {phrase} y", "z"])
    assert copied.runs == 2 and copied.examples[0] == {
        "test_row": 0, "training_row": 0, "kind": "run", "text": " ".join("abcdefghijklm"),
    }  # fmt: skip


@needs_data
def test_the_folder_that_ar_lopti_trains_on_holds_its_evaluation_puzzles() -> None:
    tests = read_puzzles(DATA / "3ppl_test.parquet")
    own = [draw_puzzle(random.Random(i), 3) for i in range(50)]
    clean, whole = puzzle_overlap(tests, own), puzzle_overlap(tests, own + tests)
    assert (whole.exact, whole.renamed, whole.runs) == (100, 100, None) and clean.exact == 0
    renamed = [Puzzle(("A", "B", "C"), one.statements, one.solution, f"Who is who? {i}") for i, one in enumerate(tests)]
    assert (puzzle_overlap(tests, renamed).exact, puzzle_overlap(tests, renamed).renamed) == (0, 100)
