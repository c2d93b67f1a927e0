"""Times to a common threshold, censored: a run that never reaches it counts as the whole horizon, not as missing.

One threshold for all runs, fixed on other seeds beforehand.  A run's own peak is no threshold: a run that never learns
peaks at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.decisions import difference_interval
from grpo_replications.shared.statistics.estimates import DRAWS, Estimate, expanded_tail, resample_counts
from grpo_replications.shared.statistics.proportions import share
from grpo_replications.shared.statistics.states import LEVEL


def time_to_threshold(curves: np.ndarray, steps: Sequence[float], threshold: float) -> np.ndarray:
    """First step at which each curve `(..., steps)` is at least `threshold`; inf if never: `(...)`, one per run.

    A curve with a nan before it reaches the threshold gives nan: the time is unknown.
    Raises ReplicationError unless steps increase and are as many as the curve has values.
    """
    curves, at = np.asarray(curves, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    if at.ndim != 1 or len(at) != curves.shape[-1] or (np.diff(at) <= 0).any() or math.isnan(threshold):
        raise ReplicationError("steps must increase and be as many as the curve has values; the threshold a number")
    reached, unknown = curves >= threshold, np.isnan(curves)
    first = np.where(reached.any(axis=-1), at[reached.argmax(axis=-1)], np.inf)
    first_unknown = np.where(unknown.any(axis=-1), at[unknown.argmax(axis=-1)], np.inf)
    return np.where(first_unknown < first, np.nan, first)


def restricted_times(times: np.ndarray, horizon: float) -> np.ndarray:
    """min(time, horizon) of each run: what its time contributes to the restricted mean; nan stays nan.

    All runs must have been followed up to the horizon, so that an inf means "not reached by then".
    Raises ReplicationError if the horizon is not positive and finite, or a time is negative.
    """
    times = np.asarray(times, dtype=np.float64)
    if not (math.isfinite(horizon) and horizon > 0):
        raise ReplicationError(f"horizon {horizon:g}: give the number of steps up to which every run was followed")
    if (times < 0).any():
        raise ReplicationError("a time to the threshold is negative")
    return np.minimum(times, horizon)


def restricted_mean_time(times: np.ndarray, horizon: float, level: float = LEVEL) -> Estimate:
    """Mean over runs `(..., n)` of min(time to threshold, horizon), with `difference_interval`'s interval.

    In steps; the area above the curve of the share of runs that have reached the threshold.  The interval is cut to
    [0, horizon].  Runs that are all alike (none reached it) show no spread; a share of up to 1 - tail^(1/n) of all runs
    may be unlike them unseen, and the interval reaches as far towards 0 and the horizon as such a share can move the
    mean.  A nan among the times makes the estimate nan.
    """
    restricted = restricted_times(times, horizon)
    estimate = difference_interval(restricted, level)
    n = restricted.shape[-1]
    unseen = 1 - ((1 - level) / 2) ** (1 / n)
    value = np.asarray(estimate.value)
    low = np.where(np.isinf(estimate.low), value * (1 - unseen), np.maximum(estimate.low, 0))
    high = np.where(np.isinf(estimate.high), value + (horizon - value) * unseen, np.minimum(estimate.high, horizon))
    if value.ndim == 0:
        low, high = float(low), float(high)
    return Estimate(estimate.value, low, high, n, estimate.kind, level)


def share_reached(times: np.ndarray, horizon: float, level: float = LEVEL) -> Estimate:
    """Share of runs `(n,)` that reach the threshold by the horizon, with Wilson's interval; nan if a time is nan."""
    times = np.asarray(times, dtype=np.float64)
    if np.isnan(times).any():
        return Estimate(math.nan, math.nan, math.nan, len(times), "Wilson", level)
    return share(int((restricted_times(times, horizon) >= times).sum()), len(times), level)


def ratio_of_times(
    x: np.ndarray,
    y: np.ndarray,
    horizon: float,
    level: float = LEVEL,
    draws: int = DRAWS,
    generator: np.random.Generator | None = None,
) -> Estimate:
    """Restricted mean time of x over that of y, `(n,)` both and paired by seed: below 1 where x is faster.

    The interval is the wider, at each end, of two: the joint bootstrap of the seeds (expanded percentiles), and
    Student's t and Hall's interval of the logarithm by the delta method, from each seed's x / mean(x) - y / mean(y).
    Censoring at the horizon draws the ratio towards 1, so that "faster" is never made larger by it; give
    `share_reached` beside it.  A nan makes the ratio nan; one pair, or pairs all of one ratio, an interval of
    (0, inf).  Raises ReplicationError if the samples differ in length or every time is 0.
    """
    a, b = restricted_times(x, horizon), restricted_times(y, horizon)
    if a.ndim != 1 or a.shape != b.shape or len(a) == 0:
        raise ReplicationError(f"times of shapes {a.shape} and {b.shape}: one of each per seed, paired, is wanted")
    n, kind = len(a), "joint bootstrap and delta"
    if np.isnan(a).any() or np.isnan(b).any():
        return Estimate(math.nan, math.nan, math.nan, n, kind, level)
    if a.mean() == 0 or b.mean() == 0:
        raise ReplicationError("every run is at the threshold at step 0; choose a higher threshold")
    value = float(a.mean() / b.mean())
    delta = difference_interval(a / a.mean() - b / b.mean(), level)
    if math.isinf(delta.low):
        return Estimate(value, 0.0, math.inf, n, kind, level)
    counts = resample_counts(n, draws, generator)
    with np.errstate(divide="ignore", invalid="ignore"):
        resampled = (counts @ a) / (counts @ b)
    tail = expanded_tail(level, n)
    # A resample of zeros only has no ratio; it counts as the farthest at either end.
    low = np.quantile(np.nan_to_num(resampled, nan=0.0, posinf=np.inf), tail)
    high = np.quantile(np.nan_to_num(resampled, nan=np.inf, posinf=np.inf), 1 - tail)
    low, high = min(low, value * math.exp(delta.low)), max(high, value * math.exp(delta.high))
    return Estimate(value, float(low), float(high), n, kind, level)
