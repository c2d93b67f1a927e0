"""Forecasts of silent shares from a log of groups: at other group sizes, and later in training.

The log holds n groups of G completions, k of them right. Wanted is the expected share of silent groups at another size
G', E[p^G' + (1-p)^G'], or at this size some steps later. Every forecast is a value with a 95 % interval.

At another size, four ways: `plug-in` inserts k / G for p, which is biased (the silent rate is convex in p); `subsets`
counts silent subsets of G' <= G completions, which is unbiased and assumes nothing; `beta` fits a Beta distribution of
solve rates; `mixture` the distribution that fits the counts best, of any shape, with a bootstrap over groups. A
distribution of solve rates is known from its first G moments only, so that beyond G no counts pin the answer down.

Later: `persist` says that all stays as it is; `trend` goes on along the line through two successive windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import hypergeom

from grpo_replications.shared.planning.difficulty_fit import Counts, fit_beta
from grpo_replications.shared.theory.binomial_mixtures import fit_rates, rate_grid

METHODS = ("plug-in", "subsets", "beta", "mixture")
NORMAL_95 = 1.96
_GRID_POINTS = 61
_TOLERANCE = 1e-6  # of a group's mean log-likelihood: a tenth of a group in 1e5


class Forecast(NamedTuple):
    """A value and the ends of its 95 % interval, shares from 0 to 1."""

    value: float
    low: float
    high: float

    def covers(self, truth: float) -> bool:
        """Whether the interval holds `truth`."""
        return self.low <= truth <= self.high


def at_other_sizes(
    method: str, by_k: np.ndarray, sizes: Sequence[int], draws: int, generator: np.random.Generator
) -> dict[int, Forecast]:
    """The silent share at each of `sizes` from counts (G + 1,) of groups with k right, by one of METHODS.

    `draws`: bootstrap draws of the mixture, shared by all sizes; the other methods draw nothing. `subsets` leaves out
    sizes above G. Raises ValueError for an unknown method and for counts without a group.
    """
    by_k = np.asarray(by_k)
    largest, groups = len(by_k) - 1, by_k.sum()
    if not groups > 0:
        raise ValueError("a forecast needs at least one group")
    k = np.arange(largest + 1)
    if method == "plug-in":
        return {size: _mean(by_k, (k / largest) ** size + (1 - k / largest) ** size) for size in sizes}
    if method == "subsets":
        silent = {size: hypergeom.pmf(0, largest, k, size) + hypergeom.pmf(size, largest, k, size)
                  for size in sizes if size <= largest}  # fmt: skip
        return {size: _mean(by_k, values) for size, values in silent.items()}
    if method == "beta":
        fitted = fit_beta(Counts(by_k.astype(int)))
        estimates = {size: fitted.silent_rate(size) for size in sizes}
        return {size: Forecast(one.value, one.low, one.high) for size, one in estimates.items()}
    if method != "mixture":
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    rates = rate_grid(_GRID_POINTS)
    best, *again = (
        fit_rates(counts, rates, _TOLERANCE)
        for counts in (by_k, *generator.multinomial(int(groups), by_k / groups, size=draws))
    )
    found = {}
    for size in sizes:
        value = best.silent_share(size)
        low, high = np.quantile([one.silent_share(size) for one in again], (0.025, 0.975))
        found[size] = Forecast(value, min(low, value), max(high, value))
    return found


def later(method: str, before: np.ndarray, now: np.ndarray, steps: int, ahead: float) -> Forecast:
    """The silent share at the log's own size, `ahead` steps after the end of the second of two windows.

    `before`, `now` (G + 1,): counts of two successive windows of `steps` each; their shares stand for the middles.
    """
    first, second = (_mean(counts, _is_silent(counts)) for counts in (before, now))
    if method == "persist":
        return second
    if method != "trend":
        raise ValueError(f"method must be persist or trend, not {method!r}")
    reach = (ahead + steps / 2) / steps  # in windows, from the middle of the second one
    value = second.value + reach * (second.value - first.value)
    error = np.hypot((1 + reach) * (second.high - second.value), reach * (first.high - first.value))
    return Forecast(*np.clip([value, value - error, value + error], 0.0, 1.0))


def _is_silent(by_k: np.ndarray) -> np.ndarray:
    return np.isin(np.arange(len(by_k)), (0, len(by_k) - 1)).astype(np.float64)


def _mean(by_k: np.ndarray, values: np.ndarray) -> Forecast:
    """Mean of values[k] over the groups, with a normal interval; never narrower than that of one group in doubt."""
    groups = by_k.sum()
    mean = float(by_k @ values / groups)
    variance = float(by_k @ (values - mean) ** 2 / groups)
    error = NORMAL_95 * np.sqrt(max(variance, 1 / groups / 4) / groups)
    return Forecast(mean, max(0.0, mean - error), min(1.0, mean + error))
