"""A sentence shows the number that its mark names, in the form that its words ask for, and no other."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.number_marks import filled, problem_in, shown
from grpo_replications.shared.harness.outcomes import CellLine
from grpo_replications.shared.statistics.estimates import Estimate


def line(name: str, *cells: tuple[str, str, Estimate]) -> SimpleNamespace:
    """What `filled` reads of a check's line."""
    lines = tuple(CellLine(where, state, estimate, "", None, math.nan, "") for where, state, estimate in cells)
    return SimpleNamespace(check=SimpleNamespace(id=name), cells=lines)


LINES = [
    line("p/gain", ("", "holds", Estimate(-0.0022, -0.0122, 0.0013, 10))),
    line(
        "p/a/rate", ("lr=0.1", "holds", Estimate(0.08, 0.01, 0.2, 64)), ("lr=1", "fails", Estimate(0.27, 0.1, 0.4, 32))
    ),
    line("p/b/rate", ("lr=0.1", "undecided", Estimate(-0.064, -0.1, 0.2, 64))),
    line("p/log", ("", "holds", Estimate(math.log(28), math.log(14), math.log(56), 16))),
    line("p/one-run", ("", "undecided", Estimate(0.09375, -math.inf, math.inf, 1))),
    line("p/tiny", ("", "holds", Estimate(3.9e-14, math.nan, math.nan, 4))),
    line("p/never"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{p/gain}", "−0.0022"),
        ("{p/gain|points signed interval} points", "−0.2 [−1.2, 0.1] points"),
        ("n = {p/gain|n}", "n = 10"),
        ("{p/a/rate[lr=1]|percent}", "27 %"),
        ("{p/*/rate[lr=0.1]|signed}", "−0.064 to +0.080"),
        ("{p/a/rate*|n}, {p/*/rate*|holds} of {p/*/rate*|of}", "32, 1 of 3"),
        ("{p/*/rate*|largest}", "0.27"),
        ("{p/a/rate[lr=1]|low} to {p/a/rate[lr=1]|high}", "0.1 to 0.4"),
        ("×{p/log|exp interval}", "×28 [14, 56]"),
        ("{p/one-run|points signed interval}", "+9.4 (interval unknown)"),
        ("{p/tiny}", "3.9e-14"),
        ("no mark", "no mark"),
    ],
)
def test_a_mark_becomes_its_number(text: str, expected: str) -> None:
    assert filled(text, LINES) == expected


def test_a_number_that_was_not_measured_is_not_made_up() -> None:
    assert filled("{p/gain}, {p/never}", LINES) is None
    assert filled("{p/a/rate}", LINES) is None, "a name is whole, with its conditions"


def test_the_interval_of_several_numbers_is_refused() -> None:
    with pytest.raises(ReplicationError, match="name one"):
        filled("{p/*/rate*|interval}", LINES)


def test_a_mark_that_cannot_be_right_is_told() -> None:
    ids = ["p/gain", "p/a/rate"]
    assert problem_in("{p/gain|points} and {p/*/rate[lr=1]}", ids) == ""
    assert "no check of the paper" in problem_in("{p/gone}", ids)
    assert "'pionts'" in problem_in("{p/gain|pionts}", ids)


def test_numbers_are_readable() -> None:
    assert [shown(value) for value in (215608, 0.0, -0.5, 1.35, 11, 2.7e-8, -3e-9, math.inf)] == [
        *("215,608", "0", "−0.5", "1.35", "11", "2.7e-8", "−3e-9", "∞"),
    ]
    assert shown(-0.0001, 2) == "0.00"
