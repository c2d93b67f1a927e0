"""Methods compared each at its own best learning rate: whole curves over the rates, resampled jointly.

A rate picked on a few seeds and then treated as known compares learning rates, not methods.  Here the best rate is
picked again in every resample of the seeds, and once more for every seed on the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.decisions import Decision, decide_direction, difference_interval
from grpo_replications.shared.statistics.estimates import DRAWS, Estimate, expanded_tail, resample_counts
from grpo_replications.shared.statistics.states import LEVEL

INTERVAL = "joint bootstrap and held-out"


@dataclass(frozen=True)
class Peaks:
    """The best mean over the rates of each method.

    `means`: `(methods, rates)`, over seeds.  `resampled`: `(draws, methods)`, the peak in each joint resample of the
    seeds, best rate picked anew.  `held_out`: `(methods, seeds)`, each seed's value at the rate that is best on all
    other seeds.  `chosen_share`: `(methods, rates)`, share of resamples in which a rate is the best.
    """

    means: np.ndarray
    resampled: np.ndarray
    held_out: np.ndarray
    chosen_share: np.ndarray

    @property
    def n(self) -> int:
        """Seeds."""
        return self.held_out.shape[1]

    @property
    def best(self) -> np.ndarray:
        """Index of the best rate of each method `(methods,)`, the first of equals."""
        return self.means.argmax(axis=1)

    @property
    def bias(self) -> np.ndarray:
        """By how much picking the largest of noisy means raises each method's peak, estimated by the bootstrap."""
        return self.resampled.mean(axis=0) - self.means.max(axis=1)

    def peak(self, method: int, level: float = LEVEL) -> Estimate:
        """One method's best mean with its interval (`difference`'s, against 0)."""
        return self._estimate(self.means[method].max(), self.resampled[:, method], self.held_out[method], level)

    def difference(self, method: int, reference: int, level: float = LEVEL) -> Estimate:
        """One method's best mean minus another's.

        The largest of several noisy means lies above the largest true mean: by nothing where one rate is clearly best,
        by up to about one standard error where many rates are equally good.  In the difference this cancels between
        curves of one shape, not between a flat and a sharp one.  So the interval is the widest of three: percentiles
        of the joint bootstrap; the same turned around the value (basic bootstrap), which moves against the bias; and
        the interval of the held-out differences, which have no such bias.  Tails are expanded as in `mean_interval`.
        """
        value = self.means[method].max() - self.means[reference].max()
        resampled = self.resampled[:, method] - self.resampled[:, reference]
        return self._estimate(value, resampled, self.held_out[method] - self.held_out[reference], level)

    def _estimate(self, value: float, resampled: np.ndarray, held_out: np.ndarray, level: float) -> Estimate:
        if self.n < 2:
            return Estimate(float(value), -math.inf, math.inf, self.n, INTERVAL, level)
        tail = expanded_tail(level, self.n)
        low, high = np.quantile(resampled, [tail, 1 - tail])
        other = difference_interval(held_out, level)
        low = min(low, 2 * value - high, other.low)
        high = max(high, 2 * value - np.quantile(resampled, tail), other.high)
        return Estimate(float(value), float(low), float(high), self.n, INTERVAL, level)


def peak_of_curves(curves: np.ndarray, draws: int = DRAWS, generator: np.random.Generator | None = None) -> Peaks:
    """Peaks of learning-rate curves `(methods, rates, seeds)`, higher is better, the same seeds in every cell.

    Methods may have different rates; fill a shorter row with `-inf` for all seeds.  Seeds are resampled jointly over
    methods and rates, so that what they share cancels.  Time grows as draws * methods * rates * seeds.
    Raises ReplicationError if a run has no number (nan, or -inf for some seeds of a rate only): a diverged run needs a
    value of its own, such as chance accuracy, chosen before the comparison.
    """
    curves = np.asarray(curves, dtype=np.float64)
    if curves.ndim != 3 or 0 in curves.shape:
        raise ReplicationError(f"curves of shape {curves.shape}: (methods, rates, seeds) is wanted, none of them empty")
    absent = np.isneginf(curves).all(axis=-1)
    if absent.all(axis=1).any():
        raise ReplicationError("a method has no rate at all; leave it out of the comparison")
    broken = ~np.isfinite(curves).all(axis=-1) & ~absent
    if broken.any():
        method, rate = (int(index) for index in np.argwhere(broken)[0])
        wild = int((~np.isfinite(curves[method, rate])).sum())
        raise ReplicationError(
            f"method {method}, rate {rate}: {wild} of {curves.shape[2]} seeds have a value that is not finite; "
            "say what a diverged run counts as, or leave the rate out"
        )
    filled = np.where(absent[..., None], 0.0, curves)
    methods, rates, n = curves.shape
    counts = resample_counts(n, draws, generator)
    resampled, chosen = np.empty((draws, methods)), np.empty((methods, rates))
    for method in range(methods):
        resampled_means = np.where(absent[method], -np.inf, counts @ filled[method].T / n)  # (draws, rates)
        resampled[:, method] = resampled_means.max(axis=1)
        chosen[method] = np.bincount(resampled_means.argmax(axis=1), minlength=rates) / draws
    means = np.where(absent, -np.inf, filled.mean(axis=-1))
    held_out = np.take_along_axis(filled, _best_on_the_others(filled, absent)[:, None], axis=1)[:, 0]
    return Peaks(means, resampled, held_out, chosen)


def decide_peaks(
    peaks: Peaks,
    method: int,
    reference: int,
    margin: float,
    level: float = LEVEL,
    cells: int = 1,
    beyond: Literal["margin", "zero"] = "margin",
) -> Decision:
    """`decide_direction` for the difference of two peaks; the sign test counts the held-out differences."""
    held_out = peaks.held_out[method] - peaks.held_out[reference]
    return decide_direction(
        held_out, margin, level, cells, beyond, interval=lambda at: peaks.difference(method, reference, at)
    )


def area_under_curve(curves: np.ndarray, steps: Sequence[float], horizon: float | None = None) -> np.ndarray:
    """Mean height of each curve `(..., steps)` over the steps up to `horizon`, by trapezoids: `(...)`, one per run.

    In the curve's own unit, so that runs of one length can be compared by `decide_direction`.  A curve that has a nan
    up to the horizon gives nan.  Raises ReplicationError unless steps increase and one of them is the horizon.
    """
    curves, at = np.asarray(curves, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    if at.ndim != 1 or len(at) != curves.shape[-1] or len(at) < 2 or (np.diff(at) <= 0).any():
        raise ReplicationError("steps must increase and be as many as the curve has values, two at least")
    if horizon is not None:
        if horizon not in at[1:]:
            raise ReplicationError(f"no value was measured at the horizon {horizon:g}")
        curves, at = curves[..., at <= horizon], at[at <= horizon]
    return np.trapezoid(curves, at, axis=-1) / (at[-1] - at[0])


def _best_on_the_others(curves: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """Index of the rate with the best mean over all seeds but one, `(methods, seeds)`."""
    others = curves.sum(axis=-1, keepdims=True) - curves
    return np.where(absent[..., None], -np.inf, others).argmax(axis=1)
