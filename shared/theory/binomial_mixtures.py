"""Counts of right completions as a mixture of binomials: the distribution of solve rates behind them.

A problem with n rollouts has k right, k ~ Binomial(n, p), and p differs from problem to problem. Nothing is assumed
about the distribution of p. What the counts say about it:

- the likelihood has its maximum at a distribution of finitely many rates (Lindsay 1983); `fit_rates` finds it on a
  grid, with a bound on what any other distribution on the grid could gain;
- neighbouring counts constrain each other (Cauchy-Schwarz): with c_k the share of problems with k right over C(n, k),
  c_0 c_2 >= c_1^2. `end_inequality` is the ratio of the two sides, and problems that are *never* right can only be as
  many as leave the inequality standing (`most_at_the_end`). Both need no fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls
from scipy.stats import binom

EM_STEPS = 200  # before Newton steps: they bring every grid point to a sensible size
NEWTON_STEPS = 100
SUM_WEIGHT = 1e3  # how strongly the least squares hold the weights to a sum of one
SHORTEST_STEP = 1e-6


class RateFit(NamedTuple):
    """Weights (m,) of the solve rates (m,), and what the mean log-likelihood of a problem could still gain."""

    rates: np.ndarray
    weights: np.ndarray
    gap: float

    def silent_share(self, size: int) -> float:
        """E[p^G + (1-p)^G] under the fitted distribution."""
        return float(self.weights @ (self.rates**size + (1 - self.rates) ** size))


def rate_grid(points: int) -> np.ndarray:
    """Solve rates from 0 to 1, both included, as close near the ends as the binomial's spread there asks for."""
    return np.sin(np.linspace(0, np.pi / 2, points)) ** 2


def fit_rates(counts: np.ndarray, rates: np.ndarray, tolerance: float = 1e-9) -> RateFit:
    """Maximum-likelihood weights on `rates` (m,) of a binomial mixture for `counts` (n + 1,), problems with k right.

    Constrained Newton steps (a quadratic approximation solved by non-negative least squares, then a line search)
    after a few EM steps. `gap` bounds what the mean log-likelihood could still gain: the largest directional
    derivative (Lindsay 1983). Raises ValueError without any problem, and where the gap stays above `tolerance`. Cost:
    a few least-squares problems of (n + 1) x m.
    """
    counts, rates = np.asarray(counts, dtype=np.float64), np.asarray(rates, dtype=np.float64)
    if not counts.sum() > 0:
        raise ValueError("there are no problems to fit solve rates to")
    n = len(counts) - 1
    seen = counts > 0
    share = counts[seen] / counts.sum()
    chance = binom.pmf(np.flatnonzero(seen)[:, np.newaxis], n, rates)  # (counts seen, m)
    weights = np.full(len(rates), 1 / len(rates))
    for _ in range(EM_STEPS):
        weights = weights * (chance.T @ (share / (chance @ weights)))
        weights /= weights.sum()
    return RateFit(rates, *_climb(weights, share, chance, tolerance))


def fit_rates_of_each(counts: np.ndarray, rates: np.ndarray, tolerance: float = 1e-9) -> np.ndarray:
    """Weights (d, m) on `rates` (m,) as `fit_rates` finds them for each row of `counts` (d, n + 1); errors as there.

    Cost: the EM steps of all rows together, then a few least-squares problems of (n + 1) x m for each.
    """
    counts = np.asarray(counts, dtype=np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    if not (totals > 0).all():
        raise ValueError("there are no problems to fit solve rates to")
    shares, n = counts / totals, counts.shape[1] - 1
    chance = binom.pmf(np.arange(n + 1)[:, np.newaxis], n, rates)
    starts = np.full((len(counts), len(rates)), 1 / len(rates))
    for _ in range(EM_STEPS):
        starts *= (shares / (starts @ chance.T)) @ chance
        starts /= starts.sum(axis=1, keepdims=True)
    return np.array(
        [
            _climb(start, share[share > 0], chance[share > 0], tolerance)[0]
            for start, share in zip(starts, shares, strict=True)
        ]
    )


def end_inequality(counts: np.ndarray) -> tuple[float, float]:
    """c_0 c_2 / c_1^2 of `counts` (n + 1,) and its standard error; at least 1 for every mixture of binomials.

    The error is that of independent Poisson counts (delta method). For the other end reverse the counts.
    """
    n = len(counts) - 1
    none, one, two = (float(count) for count in counts[:3])
    ratio = none * two / (n * (n - 1) / 2) / (one / n) ** 2
    return ratio, ratio * float(np.sqrt(1 / none + 1 / two + 4 / one))


def most_at_the_end(counts: np.ndarray) -> float:
    """Largest share of problems with a solve rate of exactly 0 that `counts` (n + 1,) allow; reversed, of exactly 1.

    Without them c_0 must still be at least c_1^2 / c_2. 0 where the inequality fails with them already.
    """
    ratio, _ = end_inequality(counts)
    return max(0.0, 1 - 1 / ratio) * float(counts[0]) / float(np.sum(counts))


def _climb(weights: np.ndarray, share: np.ndarray, chance: np.ndarray, tolerance: float) -> tuple[np.ndarray, float]:
    """Newton steps from `weights` (m,) to the maximum, and the gap that is left there."""
    for _ in range(NEWTON_STEPS):
        gain = chance.T @ (share / (chance @ weights))
        gap = float(gain.max()) - 1
        if gap <= tolerance:
            return weights, gap
        weights = _line_search(weights, _newton_target(weights, share, chance), share, chance, gain)
    raise ValueError(f"the mixture is still {gap:.3g} of log-likelihood a problem from its maximum")


def _newton_target(weights: np.ndarray, share: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Weights that maximize the quadratic approximation: min || sqrt(share) (chance w / now - 2) || with sum w = 1."""
    root = np.sqrt(share)
    scaled = root[:, np.newaxis] * chance / (chance @ weights)[:, np.newaxis]
    design = np.vstack([scaled, np.full(len(weights), SUM_WEIGHT)])
    target, _ = nnls(design, np.append(2 * root, SUM_WEIGHT), maxiter=100 * len(weights))
    return target / target.sum()


def _line_search(
    weights: np.ndarray, target: np.ndarray, share: np.ndarray, chance: np.ndarray, gain: np.ndarray
) -> np.ndarray:
    """The longest step towards `target` that gains at least a part of what the slope promises."""
    before, slope = share @ np.log(chance @ weights), gain @ (target - weights)
    step = 1.0
    while step > SHORTEST_STEP:
        moved = weights + step * (target - weights)
        with np.errstate(divide="ignore"):
            if share @ np.log(chance @ moved) >= before + 1e-4 * step * slope:
                return moved
        step /= 2
    return weights + step * (target - weights)
