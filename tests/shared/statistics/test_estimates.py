"""Do the intervals mean what their docstrings say: coverage on simulated data, closed forms, and honest ignorance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from grpo_replications.shared.statistics.estimates import (
    Estimate,
    bootstrap,
    k_seed_mean_distribution,
    mean_interval,
    paired_difference,
    probability_of_improvement,
    unpaired_difference,
    wilson_interval,
)


def coverage(estimate: Estimate, truth: float) -> float:
    return float(np.mean((estimate.low <= truth) & (truth <= estimate.high)))


@pytest.mark.parametrize("n", [3, 9, 10, 30])
def test_mean_interval_covers_a_normal_mean_as_often_as_it_says(n: int) -> None:
    samples = np.random.default_rng(n).normal(2.0, 3.0, size=(1500, n))
    assert coverage(mean_interval(samples, draws=2000), 2.0) == pytest.approx(0.95, abs=0.025)


def test_mean_interval_covers_a_skewed_mean_nearly_as_often() -> None:
    samples = np.random.default_rng(1).exponential(1.0, size=(1500, 40))
    assert coverage(mean_interval(samples, draws=2000), 1.0) == pytest.approx(0.94, abs=0.03)


def test_mean_interval_follows_its_level() -> None:
    samples = np.random.default_rng(2).normal(size=(1500, 20))
    assert coverage(mean_interval(samples, level=0.5, draws=1000), 0.0) == pytest.approx(0.5, abs=0.05)


def test_few_values_give_student_t() -> None:
    values = np.array([1.0, 2.0, 4.0, 7.0])
    low, high = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    estimate = mean_interval(values)
    assert (estimate.low, estimate.high) == pytest.approx((low, high))


def test_one_value_is_no_certainty() -> None:
    assert mean_interval(np.array([0.3])) == Estimate(0.3, -math.inf, math.inf, 1)
    assert math.isnan(mean_interval(np.array([])).value)
    assert paired_difference(np.array([1.0]), np.array([0.0])).low == -math.inf
    assert unpaired_difference(np.array([1.0]), np.array([0.0, 1.0])).low == -math.inf
    single = probability_of_improvement(np.array([1.0]), np.array([0.0]))
    assert single.value == 1.0 and single.low < 0.5


def test_same_values_same_interval_and_another_generator_another_interval() -> None:
    values = np.random.default_rng(0).normal(size=25)
    assert mean_interval(values) == mean_interval(values)
    assert mean_interval(values).low != mean_interval(values, generator=np.random.default_rng(1)).low


def test_rows_of_a_batch_agree_with_single_calls() -> None:
    samples = np.random.default_rng(0).normal(size=(2, 3, 12))
    batch = mean_interval(samples)
    assert np.shape(batch.value) == (2, 3)
    assert batch.low[1, 2] == pytest.approx(mean_interval(samples[1, 2]).low)


def test_many_seeds_take_another_road_to_the_same_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.random.default_rng(0).normal(size=(3, 40))
    short = mean_interval(samples)
    monkeypatch.setattr("grpo_replications.shared.statistics.estimates.MANY_SEEDS", 1)
    np.testing.assert_allclose(mean_interval(samples).low, short.low, rtol=1e-12)


def test_an_interval_always_contains_its_value() -> None:
    for values in (np.full(30, 0.1), np.full(3, 0.1), np.array([0.0] * 29 + [1.0])):
        estimate = mean_interval(values)
        assert estimate.low <= estimate.value <= estimate.high


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (81, 263)])
def test_wilson_matches_scipy(k: int, n: int) -> None:
    expected = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    estimate = wilson_interval(k, n)
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert estimate.low <= estimate.value <= estimate.high


def test_wilson_of_nothing_and_of_nonsense() -> None:
    assert wilson_interval(0, 0)[1:4] == (0.0, 1.0, 0)
    with pytest.raises(ValueError, match="11 successes"):
        wilson_interval(11, 10)


def test_probability_of_improvement_counts_ties_as_half() -> None:
    x, y = np.array([1.0, 2.0, 3.0, 3.0]), np.array([0.0, 2.0, 4.0, 1.0])
    assert probability_of_improvement(x, y, paired=True).value == pytest.approx(2.5 / 4)
    brute = np.mean([(a > b) + 0.5 * (a == b) for a in x for b in y])
    assert probability_of_improvement(x, y, paired=False).value == pytest.approx(brute)


@pytest.mark.parametrize("paired", [True, False])
def test_probability_of_improvement_covers_its_closed_form(paired: bool) -> None:
    generator = np.random.default_rng(3)
    truth = stats.norm.cdf(0.8 / math.sqrt(2))  # P(N(0.8, 1) > N(0, 1))
    hits = []
    for _ in range(300):
        x, y = generator.normal(0.8, 1, 30), generator.normal(0, 1, 30)
        estimate = probability_of_improvement(x, y, paired, draws=400)
        hits.append(estimate.low <= truth <= estimate.high)
    assert np.mean(hits) == pytest.approx(0.955, abs=0.03)


@pytest.mark.parametrize("paired", [True, False])
def test_no_difference_is_called_an_improvement_in_one_of_forty(paired: bool) -> None:
    generator = np.random.default_rng(4)
    called = []
    for _ in range(600):
        x, y = generator.normal(size=12), generator.normal(size=12)
        called.append(probability_of_improvement(x, y, paired, draws=400).low > 0.5)
    assert np.mean(called) < 0.05


@pytest.mark.parametrize("paired", [True, False])
def test_winning_every_time_is_not_certainty(paired: bool) -> None:
    few = probability_of_improvement(np.arange(5) + 10.0, np.arange(5.0), paired)
    many = probability_of_improvement(np.arange(200) + 300.0, np.arange(200.0), paired)
    assert few.value == many.value == 1.0
    assert few.low < 0.75 and 0.95 < many.low < 1.0


def test_improvement_one_way_is_worsening_the_other_way() -> None:
    generator = np.random.default_rng(6)
    x, y = generator.normal(0.3, 1, 15), generator.normal(0, 1, 15)
    forth, back = probability_of_improvement(x, y), probability_of_improvement(y, x)
    assert forth.value == pytest.approx(1 - back.value)
    assert forth.low == pytest.approx(1 - back.high, abs=0.07)


def test_paired_samples_must_be_as_long_as_each_other() -> None:
    with pytest.raises(ValueError, match="different length: 3 and 2"):
        probability_of_improvement(np.zeros(3), np.zeros(2))


def test_a_value_that_is_no_number_makes_the_estimate_unknown() -> None:
    x, y = np.array([1.0, 2.0, math.nan, 4.0]), np.array([0.0, 1.0, 2.0, 3.0])
    estimates = [probability_of_improvement(a, b, paired) for a, b in ((x, y), (y, x)) for paired in (True, False)]
    estimates += [mean_interval(x), mean_interval(x[2:3]), mean_interval(np.tile(x, 5)), paired_difference(x, y)]
    estimates += [unpaired_difference(x, y), unpaired_difference(x[2:3], y), wilson_interval(math.nan, 3)]
    for estimate in estimates:
        assert np.isnan([estimate.value, estimate.low, estimate.high]).all()


def test_estimates_say_what_kind_of_interval_theirs_is() -> None:
    values = np.random.default_rng(0).normal(size=12)
    assert mean_interval(values[:9], 0.9)[3:] == (9, "Student's t", 0.9)
    assert mean_interval(values)[3:] == (12, "bootstrap", 0.95)
    assert unpaired_difference(values, values)[3:] == (12, "Welch's t", 0.95)
    assert wilson_interval(3, 4, 0.5)[3:] == (4, "Wilson", 0.5)


def test_pairing_removes_what_the_seeds_share() -> None:
    generator = np.random.default_rng(7)
    shared_part = generator.normal(0, 10, 40)
    x, y = shared_part + 0.5 + generator.normal(0, 0.1, 40), shared_part + generator.normal(0, 0.1, 40)
    assert paired_difference(x, y).low > 0.4
    assert unpaired_difference(x, y).low < 0 < unpaired_difference(x, y).high


def test_unpaired_difference_is_welch() -> None:
    x, y = np.array([1.0, 2.0, 4.0]), np.array([0.0, 0.5, 0.2, 0.9])
    expected = stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.95)
    estimate = unpaired_difference(x, y)
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high))


def test_k_seed_means_spread_as_a_k_seed_study_would() -> None:
    values = np.random.default_rng(8).normal(1.0, 2.0, 400)
    means = k_seed_mean_distribution(values, 5, 20_000)
    assert means.mean() == pytest.approx(values.mean(), abs=0.03)
    assert means.std() == pytest.approx(values.std() / math.sqrt(5), rel=0.03)


def test_own_uncertainty_widens_as_one_over_n() -> None:
    values = np.random.default_rng(9).normal(0.0, 1.0, 10)
    wide = k_seed_mean_distribution(values, 5, 40_000, own_uncertainty=True)
    assert wide.var() == pytest.approx(values.var() * (1 / 5 + (1 - 1 / 5) / 10), rel=0.05)


def test_k_seed_means_refuse_nothing() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        k_seed_mean_distribution(np.array([]), 5)


def test_blocks_do_not_change_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_replications.shared.statistics.estimates.BLOCK", 50)
    values = np.random.default_rng(0).normal(size=(2, 11))
    assert np.shape(mean_interval(values, draws=20).low) == (2,)
    assert bootstrap(values, lambda sample: sample.mean(axis=-1), draws=17).shape == (17, 2)
    assert k_seed_mean_distribution(values[0], 3, draws=17).shape == (17,)
