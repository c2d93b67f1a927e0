"""Numbers of seeds: the promised power is found by simulation or enumeration, and hopeless plans say so."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.decisions import direction_states, equivalence_states
from grpo_replications.shared.statistics.proportions import share
from grpo_replications.shared.statistics.seeds import (
    groups_for_share,
    seeds_for_direction,
    seeds_for_equivalence,
    seeds_for_sign_test,
    seeds_needed,
)
from grpo_replications.shared.statistics.sign_tests import sign_test
from grpo_replications.shared.statistics.states import EQUIVALENT, FAILS, HOLDS


def sample(mean: float, spread: float = 1.0, n: int = 10) -> np.ndarray:
    """Values with exactly this mean and standard deviation."""
    values = np.linspace(-1, 1, n)
    return mean + spread * values / values.std(ddof=1)


@pytest.mark.parametrize(
    ("mean", "margin", "beyond"), [(0.7, 0.2, "margin"), (-0.7, 0.2, "margin"), (0.6, 0.2, "zero")]
)
def test_direction_is_decided_with_the_promised_power(mean: float, margin: float, beyond: str) -> None:
    plan = seeds_for_direction(sample(mean), margin, beyond=beyond)
    assert plan.state == (HOLDS if mean > 0 else FAILS)
    draws = np.random.default_rng(0).normal(mean, 1, size=(4000, plan.n))
    assert np.mean(direction_states(draws, margin, beyond=beyond) == plan.state) == pytest.approx(0.8, abs=0.05)


def test_equivalence_is_decided_with_the_promised_power() -> None:
    plan = seeds_for_equivalence(sample(0.1), margin=0.6)
    draws = np.random.default_rng(0).normal(0.1, 1, size=(4000, plan.n))
    assert np.mean(equivalence_states(draws, 0.6) == EQUIVALENT) == pytest.approx(0.8, abs=0.05)


def test_t_power_is_scipy_s_smallest() -> None:
    plan = seeds_for_direction(sample(0.5), 0.0)
    power = [stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, 0.5 * math.sqrt(n)) for n in (plan.n - 1, plan.n)]
    assert power[0] < 0.8 <= power[1]


def test_no_number_of_seeds_passes_a_margin_that_the_observed_difference_does_not() -> None:
    assert seeds_for_direction(sample(0.1), margin=0.2).n is None
    assert "no number of seeds" in str(seeds_for_direction(sample(0.1), margin=0.2))
    assert seeds_for_equivalence(sample(0.3), margin=0.2).n is None
    assert seeds_for_sign_test(np.array([1, 1, -1, -1, 0, 0, 0.0])).n is None
    assert seeds_for_sign_test(np.array([1, 1, 1, 0, 0, 0.0])).n is None
    assert groups_for_share(9, 10, 0.9).n is None
    assert groups_for_share(10, 10, 1.0).n is None
    assert seeds_for_direction(sample(1e-7), 0.0).n is None


def test_inside_the_margin_equivalence_is_what_more_seeds_would_decide() -> None:
    assert seeds_needed(sample(0.1), margin=0.5).state == EQUIVALENT
    assert seeds_needed(sample(-0.9), margin=0.5).state == FAILS
    assert seeds_needed(sample(0.5), margin=0.5).n is None


@given(st.floats(0.2, 3), st.floats(0.3, 3), st.floats(0, 0.1), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_more_spread_more_cells_and_more_power_need_more_seeds(
    mean: float, spread: float, margin: float, cells: int
) -> None:
    plan = seeds_for_direction(sample(mean, spread), margin).n
    assert plan is not None and plan >= 6
    assert seeds_for_direction(sample(mean, 2 * spread), margin).n >= plan
    assert seeds_for_direction(sample(mean, spread), margin, cells=cells).n >= plan
    assert seeds_for_direction(sample(mean, spread), margin, power=0.95).n >= plan


@pytest.mark.parametrize(("wins", "losses"), [(7, 3), (9, 1), (6, 0)])
def test_sign_test_power_by_enumeration(wins: int, losses: int) -> None:
    plan = seeds_for_sign_test(np.repeat([1.0, -1.0], [wins, losses]))
    p = wins / (wins + losses)

    def power(n: int) -> float:
        decides = [sign_test(np.repeat([1.0, -1.0], [k, n - k])).state == HOLDS for k in range(n + 1)]
        return float(stats.binom.pmf(np.flatnonzero(decides), n, p).sum())

    assert min(power(n) for n in range(plan.n, plan.n + 10)) >= 0.8
    assert plan.n == 6 or power(plan.n - 1) < 0.8


def test_ties_cost_seeds() -> None:
    without = seeds_for_sign_test(np.repeat([1.0, -1.0], [9, 1])).n
    assert seeds_for_sign_test(np.repeat([1.0, -1.0, 0.0], [9, 1, 5])).n == pytest.approx(1.5 * without, abs=1)


def test_share_power_by_enumeration() -> None:
    plan = groups_for_share(16, 20, 0.6)

    def power(n: int) -> float:
        decides = [k for k in range(n + 1) if share(k, n, exact=True).low > 0.6]
        return float(stats.binom.pmf(decides, n, 0.8).sum())

    assert power(plan.n) >= 0.8 and power(plan.n - 1) < 0.8
    assert groups_for_share(4, 20, 0.4).n == plan.n  # mirrored


def test_perfect_shares_need_as_many_groups_as_the_rule_for_unseen_events_says() -> None:
    assert groups_for_share(5, 5, 0.99).n == math.ceil(math.log(0.025) / math.log(0.99))


def test_nothing_known_about_the_spread_is_no_plan() -> None:
    for values in ([1.0], [1.0, 1.0, 1.0], [1.0, math.nan, 2.0]):
        for plan in (seeds_for_direction, seeds_for_equivalence, seeds_needed):
            assert plan(np.array(values), 0.1).n is None
    assert seeds_for_sign_test(np.array([1.0, math.nan])).n is None
    with pytest.raises(ReplicationError, match="power"):
        seeds_for_direction(sample(1.0), 0.1, power=80)
    with pytest.raises(ReplicationError):
        groups_for_share(0, 0, 0.5)
