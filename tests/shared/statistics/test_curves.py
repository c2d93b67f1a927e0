"""Peaks of learning-rate curves: joint resampling against a loop, invariances, and the bias of the largest mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.curves import area_under_curve, decide_peaks, peak_of_curves
from grpo_replications.shared.statistics.decisions import difference_interval
from grpo_replications.shared.statistics.estimates import resample_counts
from grpo_replications.shared.statistics.states import HOLDS, UNDECIDED


def curves(seed: int, methods: int = 2, rates: int = 3, seeds: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(methods, rates, seeds))


def test_every_resample_picks_the_best_rate_anew_with_the_same_seeds_for_all() -> None:
    data = curves(0)
    peaks = peak_of_curves(data, draws=50)
    for draw, counts in enumerate(resample_counts(8, 50)):
        chosen = np.repeat(np.arange(8), counts.astype(int))
        assert peaks.resampled[draw] == pytest.approx(data[:, :, chosen].mean(axis=2).max(axis=1))


def test_held_out_values_come_from_the_rate_that_is_best_on_the_other_seeds() -> None:
    data = curves(1)
    held_out = peak_of_curves(data, draws=10).held_out
    for method in range(2):
        for seed in range(8):
            others = np.delete(data[method], seed, axis=1).mean(axis=1)
            assert held_out[method, seed] == data[method, others.argmax(), seed]


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_what_the_seeds_share_cancels(seed: int) -> None:
    data = curves(seed)
    shared_part = np.random.default_rng(seed + 1).normal(0, 100, size=8)
    plain, shifted = (peak_of_curves(d, draws=200).difference(0, 1) for d in (data, data + shared_part))
    assert shifted.value == pytest.approx(plain.value, abs=1e-9)
    assert (shifted.low, shifted.high) == pytest.approx((plain.low, plain.high), abs=1e-9)


def test_a_curve_against_itself_does_not_differ_and_turned_round_the_sign_changes() -> None:
    data = curves(2)
    peaks = peak_of_curves(np.concatenate([data, data[:1]]), draws=300)
    assert peaks.difference(0, 2).value == 0
    forth, back = peaks.difference(0, 1), peaks.difference(1, 0)
    assert (forth.low, forth.value, forth.high) == pytest.approx((-back.high, -back.value, -back.low))


def test_the_largest_of_equal_rates_is_biased_and_the_clear_peak_is_not() -> None:
    noise = np.random.default_rng(3).normal(size=(2, 5, 12))
    heights = np.array([[0.0] * 5, [-50.0, -50, 0, -50, -50]])
    peaks = peak_of_curves(heights[..., None] + noise, draws=2000)
    assert peaks.bias[0] > 0.05 and abs(peaks.bias[1]) < 0.05
    assert peaks.chosen_share[1, 2] == 1 and peaks.chosen_share[0].max() < 1
    assert peaks.chosen_share.sum(axis=1) == pytest.approx([1, 1])
    assert peaks.best[1] == 2


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_interval_is_the_widest_of_joint_bootstrap_its_reverse_and_held_out(seed: int) -> None:
    peaks = peak_of_curves(curves(seed, rates=4, seeds=7), draws=400)
    estimate = peaks.difference(0, 1)
    held_out = difference_interval(peaks.held_out[0] - peaks.held_out[1])
    low, high = np.quantile(peaks.resampled[:, 0] - peaks.resampled[:, 1], [0.025, 0.975])
    assert estimate.low <= min(low, 2 * estimate.value - high, held_out.low)
    assert estimate.high >= max(high, 2 * estimate.value - low, held_out.high)


def test_flat_against_sharp_is_rarely_called_better_though_the_largest_is_biased() -> None:
    """The joint bootstrap alone would call the flat curve better in a fifth of the studies."""
    generator, called, alone = np.random.default_rng(4), 0, 0
    heights = np.array([[0.0] * 5, [-50.0, -50, 0, -50, -50]])
    for _ in range(200):
        data = heights[..., None] + generator.normal(size=12) + generator.normal(size=(2, 5, 12))
        peaks = peak_of_curves(data, draws=300)
        called += peaks.difference(0, 1).low > 0
        alone += np.quantile(peaks.resampled[:, 0] - peaks.resampled[:, 1], 0.025) > 0
    assert called < 20 and alone > 30


def test_methods_with_other_rates_and_runs_without_a_number() -> None:
    data = curves(5)
    data[0, 2] = -np.inf
    short = peak_of_curves(data, draws=200)
    alone = peak_of_curves(data[:1, :2], draws=200)
    assert short.peak(0)[:3] == pytest.approx(alone.peak(0)[:3])
    assert np.isfinite(short.held_out).all()
    for wild in (math.nan, math.inf, -math.inf):
        broken = curves(5)
        broken[1, 2, 3] = wild
        with pytest.raises(ReplicationError, match="method 1, rate 2: 1 of 8 seeds"):
            peak_of_curves(broken)
    with pytest.raises(ReplicationError, match="shape"):
        peak_of_curves(np.zeros((2, 3)))


def test_decisions_on_peaks_need_seeds_and_a_margin_passed() -> None:
    data = curves(6, seeds=10) * 0.1
    data[0] += 5
    assert decide_peaks(peak_of_curves(data, draws=300), 0, 1, margin=1.0).state == HOLDS
    assert decide_peaks(peak_of_curves(data[..., :5], draws=300), 0, 1, margin=1.0).state == UNDECIDED
    assert decide_peaks(peak_of_curves(data, draws=300), 0, 1, margin=5.0).state == UNDECIDED
    assert peak_of_curves(data[..., :1], draws=5).difference(0, 1).low == -math.inf


def test_area_under_a_curve_is_its_mean_height() -> None:
    assert area_under_curve(np.array([0.0, 1.0, 1.0]), [0, 10, 40]) == pytest.approx((5 + 30) / 40)
    heights = area_under_curve(np.array([[0.0, 1.0, 9.0], [2.0, 2.0, math.nan]]), [0, 10, 40], horizon=10)
    assert heights == pytest.approx([0.5, 2.0])
    assert math.isnan(area_under_curve(np.array([2.0, math.nan]), [0, 1]))
    for steps in ([0, 0, 1], [0, 1]):
        with pytest.raises(ReplicationError):
            area_under_curve(np.zeros(3), steps)
    with pytest.raises(ReplicationError, match="horizon 5"):
        area_under_curve(np.zeros(3), [0, 1, 2], horizon=5)
