"""Decisions on paired differences: intervals against equations and enumeration, decisions against their definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.decisions import (
    against_threshold,
    decide_direction,
    difference_interval,
    direction_states,
    equivalence,
    non_inferiority,
)
from grpo_replications.shared.statistics.estimates import Estimate
from grpo_replications.shared.statistics.sign_tests import minimum_seeds, sign_test
from grpo_replications.shared.statistics.states import EQUIVALENT, FAILS, HOLDS, UNDECIDED

DIFFERENCES = st.lists(st.integers(-20, 20).map(lambda k: k / 4), min_size=2, max_size=25).map(np.array)
SPREAD = np.array([-0.3, 0.1, -0.2, 0.25, 0.05, -0.1, 0.2, 0.0])


def test_five_of_five_never_decides_and_six_of_six_does() -> None:
    assert sign_test(np.ones(5)).p_value == 0.0625
    assert sign_test(np.ones(5), level=0.9).state == UNDECIDED
    for n, state in ((5, UNDECIDED), (6, HOLDS)):
        spread = np.linspace(1, 1.1, n)
        assert sign_test(spread).state == state
        assert decide_direction(spread, margin=0.1).state == state
        assert decide_direction(spread, margin=0.1, level=0.5).state == state
        assert equivalence(spread, margin=9.0).state == (UNDECIDED if n == 5 else EQUIVALENT)


def test_four_cells_need_eight_seeds() -> None:
    assert (minimum_seeds(), minimum_seeds(cells=4), minimum_seeds(level=0.5)) == (6, 8, 6)
    for n, state in ((7, UNDECIDED), (8, HOLDS)):
        assert sign_test(np.linspace(1, 1.1, n), cells=4).state == state
        assert decide_direction(np.linspace(1, 1.1, n), 0.1, cells=4).state == state


@given(st.integers(6, 20), st.integers(0, 30))
@settings(deadline=None)
def test_a_tie_is_no_win(wins: int, ties: int) -> None:
    state = sign_test(np.repeat([1.0, 0.0], [wins, ties])).state
    assert state == (HOLDS if wins > ties else UNDECIDED)
    differences = np.concatenate([np.linspace(5, 6, wins), np.zeros(ties)])
    if wins <= ties:
        assert decide_direction(differences, margin=0.01).state == UNDECIDED


def test_interval_of_symmetric_values_is_student_t() -> None:
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0, 7.0, -7.0]) + 0.5
    low, high = stats.t.interval(0.95, 6, loc=values.mean(), scale=stats.sem(values))
    estimate = difference_interval(values)
    assert (estimate.low, estimate.high) == pytest.approx((low, high))


def test_interval_of_skewed_values_solves_hall_s_equation() -> None:
    values = np.array([0.0, 0.1, 0.3, 0.2, 0.1, 4.0, 0.5, 0.2])
    n, mean, root = len(values), values.mean(), values.std()
    skew = stats.skew(values)
    estimate = difference_interval(values)
    t = (mean - estimate.high) / root
    quantile = stats.t.ppf(0.975, n - 1) / math.sqrt(n - 1)
    assert t + skew * t**2 / 3 + skew**2 * t**3 / 27 + skew / (6 * n) == pytest.approx(-quantile)
    assert estimate.high > stats.t.interval(0.95, n - 1, loc=mean, scale=stats.sem(values))[1]


@given(DIFFERENCES, st.floats(-5, 5), st.floats(0.1, 10))
@settings(deadline=None)
def test_interval_contains_the_mean_shifts_scales_and_mirrors(values: np.ndarray, shift: float, scale: float) -> None:
    values = np.append(values, 7.5)  # never -1, 0 and 1 only
    estimate = difference_interval(values)
    assert estimate.low <= estimate.value <= estimate.high
    moved = difference_interval(scale * values + shift)
    assert (moved.low, moved.high) == pytest.approx((scale * estimate.low + shift, scale * estimate.high + shift))
    mirrored = difference_interval(-values)
    assert (mirrored.low, mirrored.high) == pytest.approx((-estimate.high, -estimate.low))


@given(DIFFERENCES)
@settings(deadline=None)
def test_interval_widens_with_its_level(values: np.ndarray) -> None:
    narrow, wide = difference_interval(values, 0.9), difference_interval(values, 0.95)
    assert wide.low <= narrow.low + 1e-12 and narrow.high <= wide.high + 1e-12


@pytest.mark.parametrize("n", [6, 8, 12, 20])
def test_interval_of_yes_or_no_differences_covers_by_enumeration(n: int) -> None:
    """Every outcome with its multinomial probability: each end is wrong in at most 2.8 %."""
    counts = np.array([(w, lost, n - w - lost) for w in range(n + 1) for lost in range(n + 1 - w)])
    samples = np.array([np.repeat([1.0, -1.0, 0.0], row) for row in counts])
    interval = difference_interval(samples, unit=1)
    for win, lose in itertools.product(np.linspace(0, 1, 21), repeat=2):
        if win + lose <= 1 + 1e-9:
            p = stats.multinomial.pmf(counts, n, [win, lose, max(0.0, 1 - win - lose)])
            assert p[interval.low > win - lose + 1e-9].sum() < 0.028
            assert p[interval.high < win - lose - 1e-9].sum() < 0.028


def test_without_spread_nothing_is_decided_unless_the_outcomes_are_yes_or_no() -> None:
    for differences in (np.zeros(12), np.full(12, 0.1 + 0.2), np.full(12, 1.0)):
        assert decide_direction(differences, margin=0.9).state == UNDECIDED
        assert equivalence(differences, margin=9.0).state == UNDECIDED
    assert decide_direction(np.ones(12), margin=0.4, unit=1).state == HOLDS
    assert equivalence(np.zeros(12), margin=0.3, unit=1).state == EQUIVALENT
    assert equivalence(np.zeros(12), margin=0.2, unit=1).state == UNDECIDED
    with pytest.raises(ReplicationError, match="leave out `unit`"):
        difference_interval(np.array([0.5, 1.0]), unit=1)


@given(DIFFERENCES, st.floats(0, 3), st.integers(1, 5), st.sampled_from(["margin", "zero"]))
@settings(max_examples=300, deadline=None)
def test_direction_follows_from_interval_and_signs(d: np.ndarray, margin: float, cells: int, beyond: str) -> None:
    decision = decide_direction(d, margin, cells=cells, beyond=beyond)
    low, high, mean = decision.decisive.low, decision.decisive.high, decision.decisive.value
    if len(d) < minimum_seeds(cells=cells) or np.ptp(d) == 0:
        assert decision.state == UNDECIDED
        return
    inside = -margin <= low and high <= margin
    assert (decision.state == EQUIVALENT) == inside
    if beyond == "margin":
        up, down = low > margin, high < -margin
    else:
        up, down = low > 0 and mean >= margin and not inside, high < 0 and mean <= -margin and not inside
    assert (decision.state == HOLDS) == (up and 2 * (d > 0).sum() > len(d))
    assert (decision.state == FAILS) == (down and 2 * (d < 0).sum() > len(d))
    assert decision.estimate.low >= low and decision.estimate.high <= high


@given(DIFFERENCES, st.floats(0, 3))
@settings(deadline=None)
def test_direction_turned_round_is_its_mirror_image(d: np.ndarray, margin: float) -> None:
    mirror = {HOLDS: FAILS, FAILS: HOLDS, EQUIVALENT: EQUIVALENT, UNDECIDED: UNDECIDED}
    for beyond in ("margin", "zero"):
        assert (
            mirror[decide_direction(d, margin, beyond=beyond).state]
            == decide_direction(-d, margin, beyond=beyond).state
        )


def test_one_seed_that_outweighs_the_others_decides_nothing() -> None:
    differences = np.array([-0.1, -0.11, -0.09, -0.1, -0.12, -0.1, 40.0, 42.0, 41.0, 43.0])
    assert difference_interval(differences).low > 0
    assert decide_direction(differences, margin=0.01).state == UNDECIDED


def test_many_samples_at_once_decide_like_one_by_one() -> None:
    samples = np.random.default_rng(0).normal(0.8, 1, size=(4, 25, 9))
    states = direction_states(samples, 0.1, beyond="zero")
    assert len(set(states.ravel())) > 1
    for index in np.ndindex(4, 25):
        assert states[index] == decide_direction(samples[index], 0.1, beyond="zero").state


def test_equivalence_needs_the_whole_95_percent_interval_inside_the_margin() -> None:
    estimate = difference_interval(SPREAD)
    reach = max(-estimate.low, estimate.high)
    assert equivalence(SPREAD, reach * 1.001).state == EQUIVALENT
    assert equivalence(SPREAD, reach * 0.999).state == UNDECIDED
    assert equivalence(SPREAD, reach * 1.001, cells=2).state == UNDECIDED
    assert equivalence(SPREAD + 5, 1.0).state == FAILS
    assert equivalence(SPREAD - 5, 1.0).state == FAILS


def test_non_inferiority_looks_at_one_end_only() -> None:
    estimate = difference_interval(SPREAD)
    assert non_inferiority(SPREAD, -estimate.low * 1.001).state == HOLDS
    assert non_inferiority(SPREAD, -estimate.low * 0.999).state == UNDECIDED
    assert non_inferiority(SPREAD + 100, 0.1).state == HOLDS
    assert non_inferiority(SPREAD - 5, 1.0).state == FAILS


@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_neither_won_nor_lost(wild: float) -> None:
    differences = np.append(np.linspace(1, 2, 11), wild)
    for decision in (
        decide_direction(differences, 0.1),
        equivalence(differences, 10.0),
        non_inferiority(differences, 10.0),
    ):
        assert decision.state == UNDECIDED
        assert math.isnan(decision.estimate.value) and math.isnan(decision.estimate.low)
    if math.isnan(wild):
        test = sign_test(differences)
        assert math.isnan(test.p_value) and math.isnan(test.share.value) and test.state == UNDECIDED


@pytest.mark.parametrize("margin", [-0.1, math.nan, math.inf])
def test_a_margin_that_is_no_margin_is_refused(margin: float) -> None:
    for decide in (decide_direction, equivalence, non_inferiority):
        with pytest.raises(ReplicationError, match="smallest effect that matters"):
            decide(SPREAD, margin)


def test_data_without_seeds_and_levels_that_are_none_are_refused() -> None:
    for differences in (np.array([]), np.zeros((2, 3)), np.array(1.0)):
        with pytest.raises(ReplicationError):
            decide_direction(differences, 0.1)
        with pytest.raises(ReplicationError):
            sign_test(differences)
    with pytest.raises(ReplicationError, match="level between"):
        sign_test(SPREAD, level=95)


def test_against_threshold() -> None:
    estimate = Estimate(0.3, 0.2, 0.4, 10)
    assert against_threshold(estimate, 0.5, "below")[0] == HOLDS
    assert against_threshold(estimate, 0.5, "above")[0] == FAILS
    assert against_threshold(estimate, 0.3, "above")[0] == UNDECIDED
    assert against_threshold(estimate, 0.4, "below")[0] == UNDECIDED
    assert against_threshold(estimate, 0.4, "below", strict=False)[0] == HOLDS
    assert against_threshold(Estimate(1.0, math.nan, math.nan, 1), 0.5, "above")[0] == UNDECIDED
    with pytest.raises(ReplicationError):
        against_threshold(estimate, math.nan, "above")
