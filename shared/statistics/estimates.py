"""Estimates that never travel without their interval.

Every function returns an `Estimate`.  The unit of replication is one seed (one independent run) unless the
docstring says otherwise, and the interval covers the uncertainty that comes from having run `n` of them: it says
nothing about other settings, models or data.  Too few values give an infinite interval, never a false certainty.

The bootstrap draws come from the generator passed as `generator`; without one, from a generator with a fixed seed,
so that the same values always give the same interval.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

DRAWS = 10_000
BLOCK = 4_000_000  # resampled values held in memory at once (32 MB)
MANY_SEEDS = 2000  # above this, a table of all resamples (draws x n) is too large to keep
SMALL_SAMPLE = 10  # below this, resampling sees too few distinct values and the mean's interval is Student's t


class Estimate(NamedTuple):
    """A value, the ends of its interval, the number of independent values behind it, and the interval's kind and level.

    `value`, `low` and `high` are floats for one sample and arrays for many samples treated in one call.  `kind` names
    the method of the interval ("Student's t", "bootstrap", "Wilson"); it is empty where there is no interval, or where
    `low` and `high` are ends of another sort of range.
    """

    value: float | np.ndarray
    low: float | np.ndarray
    high: float | np.ndarray
    n: int
    kind: str = ""
    level: float = 0.95


def default_generator() -> np.random.Generator:
    """The generator used when the caller passes none: always the same stream."""
    return np.random.default_rng(20_250_921)


def mean_interval(
    values: np.ndarray,
    level: float = 0.95,
    draws: int = DRAWS,
    generator: np.random.Generator | None = None,
) -> Estimate:
    """Mean over seeds with an interval for the mean over all seeds that could have been run.

    `values`: `(..., n)`, one value per seed on the last axis; every leading index is a sample of its own and all
    are resampled with the same seeds.  Fewer than 10 seeds: Student's t interval.  From 10 on: percentile bootstrap
    with expanded percentiles, `alpha' = Phi(-sqrt(n / (n - 1)) t_{n-1})`, which removes the plain percentile
    bootstrap's narrowness (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 5.3).
    A description, not a decision: on skewed or yes-or-no values of few seeds it covers less than its level (measured
    in `calibration.py`); `difference_interval` decides.  One seed: `(-inf, inf)`; none: nan; a nan gives nan.
    Time grows as `draws * n` per sample, memory as `draws * n` up to 160 MB.
    """
    values = np.asarray(values, dtype=np.float64)
    n = values.shape[-1]
    if n == 0:
        empty = np.full(values.shape[:-1], np.nan)
        return _estimate(empty, empty, empty, 0, "", level)
    mean = values.mean(axis=-1)
    if n == 1:
        unknown = np.where(np.isnan(mean), np.nan, np.inf)
        return _estimate(mean, -unknown, unknown, 1, "", level)
    if n < SMALL_SAMPLE:
        half_width = student_quantile(level, n - 1) * values.std(axis=-1, ddof=1) / math.sqrt(n)
        return _estimate(mean, mean - half_width, mean + half_width, n, "Student's t", level)
    tail = expanded_tail(level, n)
    if n <= MANY_SEEDS:
        counts = resample_counts(n, draws, generator)
        flat = values.reshape(-1, n)
        size = max(1, BLOCK // draws)
        blocks = [flat[start : start + size] for start in range(0, len(flat), size)]
        # One product per block: means of all resamples, (samples of the block, draws).
        ends = np.hstack([np.quantile(block @ counts.T / n, [tail, 1 - tail], axis=1) for block in blocks])
        low, high = ends.reshape(2, *values.shape[:-1])
    else:
        resampled = bootstrap(values, lambda sample: sample.mean(axis=-1), draws, generator)
        low, high = np.quantile(resampled, [tail, 1 - tail], axis=0)
    # Averaging equal numbers may round away from them; the interval must contain the mean whatever the rounding.
    return _estimate(mean, np.minimum(low, mean), np.maximum(high, mean), n, "bootstrap", level)


def wilson_interval(k: float, n: int, level: float = 0.95) -> Estimate:
    """Share `k / n` of successes with Wilson's score interval; the unit is one independent trial.

    `k` may be fractional (a tie counts one half).  `n = 0` gives `(nan, 0, 1)`: nothing is known.
    """
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0, "Wilson", level)
    if math.isnan(k):
        return Estimate(math.nan, math.nan, math.nan, n, "Wilson", level)
    if not 0 <= k <= n:
        raise ValueError(f"{k} successes in {n} trials")
    z = normal_quantile(level)
    share = k / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half_width = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At 0 and n successes one end equals the share itself; rounding must not push it past.
    low, high = min(max(0.0, centre - half_width), share), max(min(1.0, centre + half_width), share)
    return Estimate(share, low, high, n, "Wilson", level)


def paired_difference(
    x: np.ndarray,
    y: np.ndarray,
    level: float = 0.95,
    draws: int = DRAWS,
    generator: np.random.Generator | None = None,
) -> Estimate:
    """Mean of `x - y` over pairs, with `mean_interval`'s interval; the unit is one pair.

    `x` and `y`: `(..., n)`, where entry i of both comes from the same seed.
    """
    return mean_interval(np.asarray(x, dtype=np.float64) - np.asarray(y, dtype=np.float64), level, draws, generator)


def unpaired_difference(x: np.ndarray, y: np.ndarray, level: float = 0.95) -> Estimate:
    """Mean of `x` minus mean of `y` for two independent samples `(n,)` and `(m,)`, with Welch's t interval.

    Returns `min(n, m)` as n; fewer than two values on either side give an infinite interval.
    """
    from scipy.stats import ttest_ind

    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    n = min(len(x), len(y))
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0, "", level)
    difference = float(x.mean() - y.mean())
    if n == 1:
        unknown = math.nan if math.isnan(difference) else math.inf
        return Estimate(difference, -unknown, unknown, 1, "", level)
    if np.ptp(x) == 0 == np.ptp(y):  # no variance, no t statistic
        return Estimate(difference, difference, difference, n, "Welch's t", level)
    with warnings.catch_warnings():
        # One sample may be constant: its variance is 0, which scipy reports as lost precision.
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        interval = ttest_ind(x, y, equal_var=False).confidence_interval(level)
    return Estimate(difference, float(interval.low), float(interval.high), n, "Welch's t", level)


def probability_of_improvement(
    x: np.ndarray,
    y: np.ndarray,
    paired: bool = True,
    level: float = 0.95,
    draws: int = DRAWS,
    generator: np.random.Generator | None = None,
) -> Estimate:
    """P(X > Y) + P(X = Y) / 2, the chance that a new seed of X beats one of Y, with its interval.

    `paired`: `x` and `y` are `(n,)` and entry i of both comes from the same seed; the unit is one pair.
    Otherwise they are independent samples `(n,)` and `(m,)`, every pair is compared and n is `min(n, m)`.
    The interval is the percentile bootstrap's, widened where it is narrower to the score interval (Wilson's for pairs,
    Newcombe 2006, method 5, for two samples): where X wins every time, resampling returns the single point 1 and
    would call five wins out of five a certainty.  A value that is no number beats nothing and loses to nothing: the
    estimate is nan.  Memory grows as `n * m` when unpaired.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if paired and len(x) != len(y):
        raise ValueError(f"paired samples of different length: {len(x)} and {len(y)}")
    n = min(len(x), len(y))
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0, "", level)
    if np.isnan(x).any() or np.isnan(y).any():
        return Estimate(math.nan, math.nan, math.nan, n, "", level)
    tail = (1 - level) / 2
    generator = generator or default_generator()
    if paired:
        wins = _wins(x, y)
        value = float(wins.mean())
        counts = np.array([(wins == 1).sum(), (wins == 0.5).sum(), (wins == 0).sum()])
        resampled = generator.multinomial(n, counts / n, size=draws) @ np.array([1, 0.5, 0]) / n
        score = wilson_interval(float(wins.sum()), n, level)
    else:
        wins = _wins(x[:, None], y[None, :])
        value = float(wins.mean())
        resampled = _resampled_wins(wins, draws, generator)
        low, high = _area_score_interval(value, len(x), len(y), level)
        score = Estimate(value, low, high, n)
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Estimate(value, min(float(low), score.low), max(float(high), score.high), n, "bootstrap and score", level)


def k_seed_mean_distribution(
    values: np.ndarray,
    k: int,
    draws: int = DRAWS,
    generator: np.random.Generator | None = None,
    own_uncertainty: bool = False,
) -> np.ndarray:
    """Means that a study with `k` seeds would have reported, `(draws,)`, drawn from our `n` values `(n,)`.

    With `own_uncertainty` every draw first resamples our n values, so the spread also holds the uncertainty that
    comes from our own n being finite (variance about `s^2 (1 / k + 1 / n)` in place of `s^2 / k`).
    Time and memory grow as `draws * k`, with own uncertainty as `draws * (k + n)`.
    """
    values = np.asarray(values, dtype=np.float64)
    n = len(values)
    if n == 0 or k < 1:
        raise ValueError(f"need at least one value and k >= 1, got {n} values and k = {k}")
    generator = generator or default_generator()
    block = max(1, BLOCK // (k + n))
    means = []
    for start in range(0, draws, block):
        rows = min(block, draws - start)
        chosen = generator.integers(n, size=(rows, k))
        if own_uncertainty:
            resample = generator.integers(n, size=(rows, n))
            chosen = np.take_along_axis(resample, chosen, axis=1)
        means.append(values[chosen].mean(axis=1))
    return np.concatenate(means)


def bootstrap(
    values: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    draws: int = DRAWS,
    generator: np.random.Generator | None = None,
) -> np.ndarray:
    """`statistic` of `draws` resamples of the last axis: `(..., n)` -> `(draws, ...)`.

    `statistic` maps `(..., draws, n)` to `(..., draws)`.  Time grows as `draws * values.size`; memory does not
    grow with draws.
    """
    values = np.asarray(values, dtype=np.float64)
    n = values.shape[-1]
    generator = generator or default_generator()
    block = max(1, BLOCK // max(1, values.size))
    results = []
    for start in range(0, draws, block):
        indices = generator.integers(n, size=(min(block, draws - start), n))
        results.append(np.moveaxis(statistic(values[..., indices]), -1, 0))
    return np.concatenate(results)


def resample_counts(n: int, draws: int, generator: np.random.Generator | None = None) -> np.ndarray:
    """How often each of n values is drawn in each resample, `(draws, n)`; kept for the fixed default generator."""
    return _default_counts(n, draws) if generator is None else _draw_counts(n, draws, generator)


@lru_cache(maxsize=2)
def _default_counts(n: int, draws: int) -> np.ndarray:
    return _draw_counts(n, draws, default_generator())


def _draw_counts(n: int, draws: int, generator: np.random.Generator) -> np.ndarray:
    offsets = np.arange(draws)[:, None] * n
    drawn = (generator.integers(n, size=(draws, n)) + offsets).ravel()
    return np.bincount(drawn, minlength=draws * n).reshape(draws, n).astype(np.float64)


def _estimate(value: np.ndarray, low: np.ndarray, high: np.ndarray, n: int, kind: str, level: float) -> Estimate:
    if np.ndim(value) == 0:
        return Estimate(float(value), float(low), float(high), n, kind, level)
    return Estimate(np.asarray(value), np.asarray(low), np.asarray(high), n, kind, level)


def _wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x > y) + 0.5 * (x == y)


def _resampled_wins(wins: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    """Mean of the win matrix `(n, m)` under independent resampling of its rows and columns, `(draws,)`."""
    n, m = wins.shape
    block = max(1, BLOCK // (n + m))
    results = []
    for start in range(0, draws, block):
        size = min(block, draws - start)
        rows = generator.multinomial(n, np.full(n, 1 / n), size=size).astype(np.float64)
        columns = generator.multinomial(m, np.full(m, 1 / m), size=size)
        # Sums of whole and half numbers are exact in float64, so the order of summation cannot change the result.
        results.append((rows @ wins * columns).sum(axis=1) / (n * m))
    return np.concatenate(results)


def _area_score_interval(value: float, n: int, m: int, level: float) -> tuple[float, float]:
    """Newcombe (2006), method 5: all theta with `|value - theta| <= z sqrt(V(theta))`, V of Hanley and McNeil."""
    z = normal_quantile(level)
    pairs = (n + m) / 2 - 1

    def excess(theta: float) -> float:
        spread = 1 + pairs * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return abs(value - theta) - z * math.sqrt(theta * (1 - theta) * spread / (n * m))

    return _bisect(excess, 0.0, value), _bisect(excess, 1.0, value)


def _bisect(excess: Callable[[float], float], outside: float, inside: float) -> float:
    if excess(outside) <= 0:
        return outside
    for _ in range(60):
        middle = (outside + inside) / 2
        outside, inside = (middle, inside) if excess(middle) > 0 else (outside, middle)
    return outside


def normal_quantile(level: float) -> float:
    """Half width, in standard errors, of the two-sided normal interval at `level`."""
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2))


def student_quantile(level: float, freedom: float) -> float:
    """Half width, in standard errors, of the two-sided Student's t interval at `level` with `freedom` degrees."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


def expanded_tail(level: float, n: int) -> float:
    """Tail probability of the percentile bootstrap of n values that undoes its narrowness (Hesterberg 2015)."""
    from scipy.special import ndtr

    return float(ndtr(-math.sqrt(n / (n - 1)) * student_quantile(level, n - 1)))
