"""The exact sign test and the corrections for several cells, against counting and against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.sign_tests import corrected_level, holm, minimum_seeds, sign_test
from grpo_replications.shared.statistics.states import FAILS, HOLDS, UNDECIDED

DIFFERENCES = st.lists(st.integers(-2, 2).map(float), min_size=1, max_size=25).map(np.array)


@given(st.integers(0, 14), st.integers(0, 14), st.integers(0, 14))
@settings(deadline=None)
def test_sign_test_counts_the_outcomes_at_least_as_extreme(wins: int, losses: int, ties: int) -> None:
    if wins + losses + ties == 0:
        return
    test = sign_test(np.repeat([1.0, -1.0, 0.0], [wins, losses, ties]))
    untied = wins + losses
    extreme = sum(math.comb(untied, k) for k in range(untied + 1) if abs(2 * k - untied) >= abs(wins - losses))
    assert test.p_value == pytest.approx(extreme / 2**untied)
    assert (test.wins, test.losses, test.ties, test.n) == (wins, losses, ties, wins + losses + ties)


@given(st.floats(0.5, 0.999), st.integers(1, 40))
@settings(deadline=None)
def test_minimum_seeds_is_where_unanimity_becomes_significant(level: float, cells: int) -> None:
    n = minimum_seeds(level, cells)
    assert 2 * 0.5**n <= (1 - level) / cells * (1 + 1e-9)
    assert n == 6 or 2 * 0.5 ** (n - 1) > (1 - level) / cells * (1 - 1e-9)


@given(DIFFERENCES, st.integers(1, 6))
@settings(deadline=None)
def test_sign_test_turned_round_is_its_mirror_image(differences: np.ndarray, cells: int) -> None:
    forth, back = sign_test(differences, cells=cells), sign_test(-differences, cells=cells)
    assert forth.p_value == pytest.approx(back.p_value)
    assert {HOLDS: FAILS, FAILS: HOLDS, UNDECIDED: UNDECIDED}[forth.state] == back.state
    assert forth.share.low == pytest.approx(1 - back.share.high, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(deadline=None)
def test_holm_rejects_what_stepping_down_rejects(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for level in (0.01, 0.05, 0.2):
        rejected: set[int] = set()
        for step, index in enumerate(np.argsort(p_values)):
            if p_values[index] * (len(p_values) - step) > level:
                break
            rejected.add(int(index))
        assert {int(i) for i in np.flatnonzero(adjusted <= level)} == rejected


def test_holm_keeps_an_unknown_p_unknown_and_counts_it() -> None:
    adjusted = holm([0.02, math.nan, 0.5])
    assert adjusted[0] == pytest.approx(0.06) and math.isnan(adjusted[1])


@pytest.mark.parametrize(
    ("wins", "losses", "cells", "state"), [(9, 1, 1, HOLDS), (9, 1, 4, UNDECIDED), (11, 1, 4, HOLDS)]
)
def test_levels_are_corrected_for_the_cells(wins: int, losses: int, cells: int, state: str) -> None:
    assert sign_test(np.repeat([1.0, -1.0], [wins, losses]), cells=cells).state == state
    assert corrected_level(0.95, 4) == pytest.approx(0.9875)
    with pytest.raises(ReplicationError, match="one cell"):
        corrected_level(0.95, 0)
