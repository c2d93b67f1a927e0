"""Shares of groups: closed forms, coverage with groups that are alike within their seed, and honest extremes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.proportions import clustered_share, share


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.99))
@settings(deadline=None)
def test_share_is_scipy_s(counts: tuple[int, int], level: float) -> None:
    k, n = counts
    for exact, method in ((False, "wilson"), (True, "exact")):
        expected = stats.binomtest(k, n).proportion_ci(level, method=method)
        estimate = share(k, n, level, exact)
        assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), abs=1e-7)
        assert estimate.low <= estimate.value <= estimate.high and estimate.n == n


def test_a_share_is_judged_per_group_not_per_seed() -> None:
    assert share(5, 5).low < 0.6
    assert share(1100, 1100).low > 0.99
    assert clustered_share(np.full(5, 220), np.full(5, 220)).low > 0.99


def test_no_trials_and_impossible_counts() -> None:
    assert share(0, 0)[1:4] == (0.0, 1.0, 0)
    with pytest.raises(ReplicationError, match="3 successes in 2 trials"):
        share(3, 2)
    with pytest.raises(ReplicationError):
        clustered_share(np.array([3, 1]), np.array([2, 2]))
    with pytest.raises(ReplicationError):
        clustered_share(np.array([1, 1]), np.array([2, 2, 2]))


def test_a_count_that_is_no_number_stays_none() -> None:
    assert math.isnan(share(math.nan, 10).value) and math.isnan(share(math.nan, 10, exact=True).low)
    estimate = clustered_share(np.array([[1.0, math.nan], [1.0, 2.0]]), np.full((2, 2), 4.0))
    assert math.isnan(estimate.value[0]) and math.isnan(estimate.high[0]) and estimate.value[1] == 3 / 8


@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_groups_alike_within_seeds_are_covered_where_independence_is_not(rate: float) -> None:
    generator, seeds, per_seed = np.random.default_rng(1), 8, 100
    rates = generator.beta(rate * 9, (1 - rate) * 9, size=(2000, seeds))
    k = generator.binomial(per_seed, rates)
    clustered = clustered_share(k, np.full_like(k, per_seed))
    assert np.mean((clustered.low <= rate) & (rate <= clustered.high)) > 0.93
    naive = [share(int(total), seeds * per_seed) for total in k.sum(axis=1)[:400]]
    assert np.mean([one.low <= rate <= one.high for one in naive]) < 0.6


def test_seeds_that_differ_widen_the_interval_and_a_known_correlation_does_too() -> None:
    totals = np.full(6, 50)
    alike, unlike = clustered_share(np.full(6, 25), totals), clustered_share(np.array([5, 45, 10, 40, 2, 48]), totals)
    assert alike.value == unlike.value == 0.5
    assert unlike.high - unlike.low > 2 * (alike.high - alike.low)
    known = clustered_share(np.full(6, 25), totals, correlation=0.2)
    assert known.low < alike.low and known.high > alike.high
    assert clustered_share(totals, totals, correlation=0.2).low < clustered_share(totals, totals).low


def test_groups_all_alike_leave_as_many_groups_as_seeds() -> None:
    """With correlation 1 the effective number is the seeds' (times the correction for their being few)."""
    estimate = clustered_share(np.array([20, 20, 0, 20, 0, 20, 20, 20]), np.full(8, 20), correlation=1.0)
    seeds = share(6, 8, exact=True)
    assert estimate.low <= seeds.low and estimate.high >= seeds.high


def test_one_seed_says_nothing_about_others_and_empty_seeds_do_not_count() -> None:
    assert clustered_share(np.array([30]), np.array([40]))[:3] == (0.75, 0.0, 1.0)
    with_empty = clustered_share(np.array([3, 0, 5, 4]), np.array([10, 0, 10, 10]))
    without = clustered_share(np.array([3, 5, 4]), np.array([10, 10, 10]))
    assert with_empty[:4] == pytest.approx(without[:4])
