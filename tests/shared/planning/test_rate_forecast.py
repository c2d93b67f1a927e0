"""Forecasts from counts: the mixture finds shapes that a Beta distribution lacks; beyond its reach, that is said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grpo_replications.shared.planning.difficulty_fit import Counts
from grpo_replications.shared.planning.rate_forecast import BETA, MIXTURE, RateForecast
from grpo_replications.shared.theory.closed_forms import expected_update, silent_rate

CLUSTERS = np.array([0.1, 0.5, 0.9])


def counts_of(p: np.ndarray, size: int, seed: int = 0, unknown: int = 0) -> Counts:
    k = np.random.default_rng(seed).binomial(size, p)
    return Counts(np.bincount(k, minlength=size + 1).astype(float), unknown)


def test_the_mixture_forecasts_where_a_beta_distribution_misleads() -> None:
    """Difficulties in three clusters, 400 groups of 8: the silent rate at 32 is nearer, and its intervals hold more."""
    truth = float(np.mean(silent_rate(CLUSTERS, 32)))
    held, error = {MIXTURE: 0, BETA: 0}, {MIXTURE: 0.0, BETA: 0.0}
    for seed in range(4):
        p = np.random.default_rng([1, seed]).choice(CLUSTERS, 400)
        forecast = RateForecast.of(counts_of(p, 8, seed))
        for name, fit in ((MIXTURE, forecast.mixture), (BETA, forecast.beta)):
            one = fit.silent_rate(32)
            held[name] += one.low <= truth <= one.high
            error[name] += abs(one.value - truth)
    assert held[MIXTURE] >= 2 and held[BETA] == 0
    assert error[MIXTURE] < 0.8 * error[BETA]


def test_every_size_is_answered_by_the_fit_that_reaches_it() -> None:
    p = np.random.default_rng(2).choice(CLUSTERS, 2000)
    forecast = RateForecast.of(counts_of(p, 8))
    assert forecast.reach == 32 and [forecast.method(size) for size in (2, 32, 33)] == [MIXTURE, MIXTURE, BETA]
    assert forecast.silent_rate(32) == forecast.mixture.silent_rate(32)
    assert forecast.fidelity(64) == forecast.beta.fidelity(64)
    rates = forecast.rates("made")
    assert rates.counts.sum() == pytest.approx(2000)
    assert forecast.mixture.solve_rate().value == pytest.approx(rates.rates @ rates.counts / 2000)


def test_a_size_for_a_target_is_the_smallest_that_reaches_it() -> None:
    p = np.array([0.2, 0.5])
    forecast = RateForecast.of(counts_of(np.repeat(p, 20_000), 16))
    mean_fidelity = [
        float(np.mean(expected_update(p, size, "grpo")) / np.mean(np.sqrt(p * (1 - p)))) for size in range(1, 65)
    ]
    exact = 1 + next(i for i, one in enumerate(mean_fidelity) if one >= 0.95)
    found = forecast.smallest_group_size(0.95)
    assert forecast.method_of_size(found) == MIXTURE and found.low <= exact <= found.high
    assert found.high - found.low <= 2
    silence = forecast.smallest_group_size_for_silence(0.01)
    quiet = 1 + next(i for i in range(64) if np.mean(silent_rate(p, i + 1)) <= 0.01)
    assert silence.low <= quiet <= silence.high
    unreached = forecast.smallest_group_size(0.9999)
    assert forecast.method_of_size(unreached) == BETA or math.isinf(unreached.value)


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        (counts_of(np.full(20, 0.5), 8), "20 groups are too few"),
        (counts_of(np.full(200, 0.5), 2), "groups of 2"),
        (counts_of(np.full(200, 0.5), 8, unknown=3), "redrawn"),
        (counts_of(np.full(200, 0.001), 8), "groups have both right and wrong"),
    ],
)
def test_where_counts_say_too_little_the_shape_is_assumed_and_that_is_said(counts: Counts, why: str) -> None:
    forecast = RateForecast.of(counts)
    assert why in forecast.why_beta and forecast.reach == 0 and forecast.method(2) == BETA
    assert forecast.silent_rate(8) == forecast.beta.silent_rate(8)
    assert forecast.rates("made").counts.sum() == pytest.approx(counts.groups)
