"""Times to a common threshold: censoring, the area behind the restricted mean, coverage of the ratio."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.times import (
    ratio_of_times,
    restricted_mean_time,
    restricted_times,
    share_reached,
    time_to_threshold,
)

TIMES = st.lists(st.one_of(st.integers(1, 200).map(float), st.just(math.inf)), min_size=2, max_size=30).map(np.array)


def test_first_step_at_the_threshold() -> None:
    rows = np.array([[0.1, 0.6, 0.2, 0.9], [0, 0, 0, 0], [0.5, 0, 0, 0], [0, math.nan, 1, 1], [0, 0.5, math.nan, 0]])
    times = time_to_threshold(rows, [0, 25, 50, 75], 0.5)
    np.testing.assert_array_equal(times, [25, math.inf, 0, math.nan, 25])
    with pytest.raises(ReplicationError):
        time_to_threshold(rows, [0, 25, 25, 75], 0.5)
    with pytest.raises(ReplicationError):
        time_to_threshold(rows, [0, 25], 0.5)


@given(TIMES, st.integers(1, 250))
@settings(deadline=None)
def test_restricted_mean_is_the_area_above_the_share_of_runs_at_the_threshold(times: np.ndarray, horizon: int) -> None:
    area = sum(np.mean(times > step) for step in range(horizon))  # whole steps: the share is constant in between
    estimate = restricted_mean_time(times, horizon)
    assert estimate.value == pytest.approx(area)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= horizon
    assert share_reached(times, horizon).value == np.mean(times <= horizon)


def test_a_run_that_never_learns_counts_as_the_whole_horizon() -> None:
    """Both never learn: no win for either; one never learns: the other is faster, however early it stops moving."""
    never, learns = np.full(8, math.inf), np.linspace(10, 24, 8)
    assert ratio_of_times(never, never, 100)[:3] == (1.0, 0.0, math.inf)
    assert ratio_of_times(learns, never, 100).high < 0.3
    assert restricted_mean_time(never, 100).low == pytest.approx(100 * 0.025 ** (1 / 8))


@given(TIMES, st.integers(0, 10))
@settings(deadline=None)
def test_ratio_turned_round_is_its_inverse(times: np.ndarray, seed: int) -> None:
    other = np.random.default_rng(seed).permutation(times) + 3
    forth, back = (ratio_of_times(*pair, 150, draws=300) for pair in ((times, other), (other, times)))
    assert forth.value == pytest.approx(1 / back.value)
    assert forth.low <= forth.value <= forth.high


@pytest.mark.parametrize("n", [8, 24])
def test_ratio_covers_the_closed_form(n: int) -> None:
    generator, horizon = np.random.default_rng(n), 100.0
    truth = 30 * (1 - math.exp(-horizon / 30)) / (90 * (1 - math.exp(-horizon / 90)))
    hits = []
    for _ in range(400):
        x, y = generator.exponential(30, n), generator.exponential(90, n)
        x, y = (np.where(t > horizon, math.inf, t) for t in (x, y))
        estimate = ratio_of_times(x, y, horizon, draws=300)
        hits.append(estimate.low <= truth <= estimate.high)
    assert np.mean(hits) > 0.95 - 3 * math.sqrt(0.05 * 0.95 / 400)


def test_pairing_by_seed_narrows_the_ratio() -> None:
    generator = np.random.default_rng(0)
    difficulty = generator.exponential(40, 20) + 5
    x, y = difficulty * generator.normal(0.5, 0.02, 20), difficulty
    paired, mixed = ratio_of_times(x, y, 1000), ratio_of_times(x, generator.permutation(y), 1000)
    assert paired.high - paired.low < 0.2 * (mixed.high - mixed.low)
    assert paired.low < 0.5 < paired.high


def test_unknown_times_stay_unknown_and_nonsense_is_refused() -> None:
    times = np.array([3.0, math.nan, 5.0])
    assert math.isnan(restricted_mean_time(times, 10).value) and math.isnan(restricted_mean_time(times, 10).low)
    assert math.isnan(ratio_of_times(times, np.ones(3), 10).value)
    assert math.isnan(share_reached(times, 10).value)
    for horizon in (0, -1, math.inf, math.nan):
        with pytest.raises(ReplicationError, match="horizon"):
            restricted_times(np.ones(3), horizon)
    with pytest.raises(ReplicationError, match="negative"):
        restricted_times(np.array([-1.0]), 10)
    with pytest.raises(ReplicationError, match="shapes"):
        ratio_of_times(np.ones(3), np.ones(2), 10)
    with pytest.raises(ReplicationError, match="higher threshold"):
        ratio_of_times(np.zeros(6), np.ones(6), 10)
