"""Estimates behind the open test, without plug-in bias: from counts of right completions and inner products of scores.

Notation of one prompt: n completions drawn, K of them right, R their rewards (n,) in {0, 1}, gram (n, n) the inner
products of their scores. Delta = E[s | right] - E[s | wrong]; p the solve rate; k right ones in a group of G.

Everything said about "the" p of a prompt by inserting K / n into a power would be biased (the mean of (K / n)^G is not
p^G). A group drawn without replacement from n completions is a group drawn from the policy, so the mean over all such
groups is unbiased and has the least variance: a hypergeometric mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.stats import hypergeom

from grpo_replications.shared.theory.closed_forms import sigma

BINS = ("p < .1", ".1-.4", ".4-.6", ".6-.9", "p > .9")
EXTREME, MEDIUM = (0, 4), (2,)
"""Difficulty bins; "extreme" and "medium" are those of the paper's statement on Big-Math."""
DRAWS = 2000


def difficulty_bin(rates: np.ndarray) -> np.ndarray:
    """Bin of each solve rate, 0 (hardest) to 4; .1, .4, .6 and .9 themselves belong to the inner bin."""
    rates = np.asarray(rates, dtype=np.float64)
    return (rates >= 0.1).astype(int) + (rates >= 0.4) + (rates > 0.6) + (rates > 0.9)


# --- functions of the number of right completions ---------------------------------------------------------------------


def by_count(quantity: str, size: int) -> np.ndarray:
    """A quantity of a group of `size` by its number of right completions, (size + 1,).

    "silent", "all_right", "all_wrong": indicators. "grpo": sigma, the factor of GRPO's group gradient (Theorem 1);
    "dr-grpo": sigma^2. "noise": 1 for a mixed group, the shape of a GRPO group's gradient norm where scores are
    orthogonal and equally long.
    """
    k = np.arange(size + 1)
    silent = (k == 0) | (k == size)
    known = {
        "silent": silent,
        "all_right": k == size,
        "all_wrong": k == 0,
        "grpo": sigma(k, size),
        "dr-grpo": sigma(k, size) ** 2,
        "noise": ~silent,
    }
    if quantity not in known:
        raise ValueError(f"quantity must be one of {', '.join(known)}, not {quantity!r}")
    return np.asarray(known[quantity], dtype=np.float64)


def without_replacement(values: np.ndarray, right: np.ndarray, drawn: int) -> np.ndarray:
    """Mean of `values[k]` over all groups within `drawn` completions of which `right` (...) are right: shape (...).

    Unbiased for E[values[k]], k ~ Binomial(G, p), G = len(values) - 1. Raises ValueError where drawn < G.
    """
    size = len(values) - 1
    if drawn < size:
        raise ValueError(f"no group of {size} can be drawn from {drawn} completions")
    k = np.arange(size + 1)
    return hypergeom.pmf(k, drawn, np.asarray(right)[..., None], size) @ np.asarray(values, dtype=np.float64)


# --- intervals over prompts -------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """Values (m,) and their standard errors (m,) over prompts."""

    value: np.ndarray
    error: np.ndarray

    @property
    def z(self) -> np.ndarray:
        """Value over standard error; 0 where both vanish."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(np.abs(self.value) < 1e-12, 0.0, self.value / self.error)


def over_prompts(
    features: np.ndarray, prompts: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], draws: int = DRAWS
) -> Measured:
    """A function of summed features, with its bootstrap standard error over prompts.

    features (units, f), `prompts` (units,) the prompt of each unit: units of one prompt are drawn together. `statistic`
    maps sums (..., f) to (..., m). The generator is fixed. Cost: draws x prompts x f.
    """
    _, index = np.unique(prompts, return_inverse=True)
    sums = np.zeros((index.max() + 1, features.shape[1]))
    np.add.at(sums, index, features)
    counts = np.random.default_rng(20_260_630).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=draws)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Measured(statistic(sums.sum(axis=0)), finite_spread(statistic(counts @ sums)))


def finite_spread(values: np.ndarray) -> np.ndarray:
    """Standard deviation (m,) of the finite values of each column (draws, m); NaN with fewer than two."""
    columns = [column[np.isfinite(column)] for column in values.T]
    return np.array([column.std(ddof=1) if len(column) > 1 else np.nan for column in columns])


def mean_gap(measured: np.ndarray, predicted: np.ndarray, prompts: np.ndarray) -> Measured:
    """Mean of measured - predicted over units (units,), as a Measured of one value."""
    features = np.stack([measured - predicted, np.ones(len(measured))], axis=1)
    return over_prompts(features, prompts, lambda sums: sums[..., :1] / sums[..., 1:])


def share_gaps(measured: np.ndarray, predicted: np.ndarray, bins: np.ndarray, prompts: np.ndarray) -> Measured:
    """Per difficulty bin (5,), then extreme and medium: share of all measured mass minus share of all predicted mass.

    measured, predicted (units,): mass of each unit; bins, prompts (units,).
    """
    features = np.hstack([_by_bin(measured, bins), _by_bin(predicted, bins)])
    return over_prompts(features, prompts, lambda sums: _shares(sums[..., :5]) - _shares(sums[..., 5:]))


def root_share_gaps(squared: np.ndarray, predicted: np.ndarray, bins: np.ndarray, prompts: np.ndarray) -> Measured:
    """`share_gaps` of masses that are known by their squares; a bin's mass is as in `root_shares`, on both sides.

    squared, predicted (units,): unbiased squares, so single ones may be negative.
    """
    return over_prompts(_root_features(squared, predicted, bins), prompts, _root_gap)


def shares(mass: np.ndarray, bins: np.ndarray) -> np.ndarray:
    """Share of all mass by bin (5,), then extreme and medium, (7,)."""
    return _shares(_by_bin(mass, bins).sum(axis=0))


def root_shares(squared: np.ndarray, bins: np.ndarray) -> np.ndarray:
    """`shares` where the mass of a bin is its number of units times the root of their mean square."""
    return _shares(_root_mass(_by_bin(np.ones(len(bins)), bins).sum(axis=0), _by_bin(squared, bins).sum(axis=0)))


def _by_bin(values: np.ndarray, bins: np.ndarray) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)[:, None] * (np.asarray(bins)[:, None] == np.arange(len(BINS)))


def _shares(mass: np.ndarray) -> np.ndarray:
    total = mass.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = mass / total
    return np.concatenate(
        [share, share[..., EXTREME].sum(axis=-1, keepdims=True), share[..., MEDIUM].sum(axis=-1, keepdims=True)],
        axis=-1,
    )


def _root_features(squared: np.ndarray, predicted: np.ndarray, bins: np.ndarray) -> np.ndarray:
    return np.hstack([_by_bin(np.ones(len(bins)), bins), _by_bin(squared, bins), _by_bin(predicted, bins)])


def _root_gap(sums: np.ndarray) -> np.ndarray:
    count, squared, predicted = sums[..., :5], sums[..., 5:10], sums[..., 10:]
    return _shares(_root_mass(count, squared)) - _shares(_root_mass(count, predicted))


def _root_mass(count: np.ndarray, squared: np.ndarray) -> np.ndarray:
    return np.sqrt(count * np.maximum(squared, 0.0))


# --- from inner products of scores ------------------------------------------------------------------------------------


class Classes(NamedTuple):
    """Means of a Gram matrix by class: squared norm and inner product of different completions within right and wrong
    ones, and across. NaN where a class is too small."""

    norm_right: float
    norm_wrong: float
    pair_right: float
    pair_wrong: float
    across: float

    @property
    def delta_squared(self) -> float:
        """Unbiased estimate of ||Delta||^2; it can be negative."""
        return self.pair_right + self.pair_wrong - 2 * self.across

    @property
    def spread_right(self) -> float:
        """Variance of the score within the right completions, v+."""
        return self.norm_right - self.pair_right

    @property
    def spread_wrong(self) -> float:
        """Variance of the score within the wrong completions, v-."""
        return self.norm_wrong - self.pair_wrong

    @property
    def spread(self) -> float:
        """Within-class variance of the score, mean of both classes: the n^2 of the noise prediction n / sqrt(G)."""
        return (self.spread_right + self.spread_wrong) / 2


def classes(gram: np.ndarray, rewards: np.ndarray) -> Classes:
    """The class means of gram (n, n) under rewards (n,) in {0, 1}."""
    right, wrong = np.asarray(rewards, dtype=bool), ~np.asarray(rewards, dtype=bool)

    def norm(rows: np.ndarray) -> float:
        return float(np.diag(gram)[rows].mean()) if rows.any() else np.nan

    def pairs(rows: np.ndarray) -> float:
        count = int(rows.sum())
        block = gram[np.ix_(rows, rows)]
        return float((block.sum() - np.trace(block)) / (count * (count - 1))) if count > 1 else np.nan

    across = float(gram[np.ix_(right, wrong)].mean()) if right.any() and wrong.any() else np.nan
    return Classes(norm(right), norm(wrong), pairs(right), pairs(wrong), across)


def group_norm_squared(means: Classes, size: int) -> np.ndarray:
    """E ||sigma (sbar+ - sbar-)||^2 over groups with k right, for every k, (size + 1,): the mean over all groups within
    the sample, and unbiased also for a k that the sample does not hold. 0 for silent groups; NaN where more than one
    of a class is needed and the sample has no two.
    """
    k = np.arange(1, size)
    # A class of one has no pairs, and needs none.
    right = (means.norm_right + np.where(k > 1, (k - 1) * means.pair_right, 0.0)) / k
    wrong = (means.norm_wrong + np.where(k < size - 1, (size - k - 1) * means.pair_wrong, 0.0)) / (size - k)
    squared = sigma(k, size) ** 2 * (right + wrong - 2 * means.across)
    return np.concatenate([[0.0], squared, [0.0]])


def signal_squared(
    gram: np.ndarray, rewards: np.ndarray, factor: np.ndarray, splits: int, generator: np.random.Generator
) -> float:
    """Unbiased estimate of ||E g||^2, the squared norm of the expected update of one prompt, by independent halves.

    `factor` (G + 1,) is sigma or sigma^2 by count. In each of `splits` random divisions of the n completions in two,
    the half's mean over all its groups is c (sbar+ - sbar-), with c the hypergeometric mean of `factor` and the means
    over the half's right and wrong completions; a half without both classes has only silent groups and gives 0. The
    estimate is the mean of <g_A, g_B>. Cost: splits x n^2.
    """
    n = len(rewards)
    order = generator.permuted(np.tile(np.arange(n), (splits, 1)), axis=1)
    weights = []
    for half in (order[:, : n // 2], order[:, n // 2 :]):
        r = np.asarray(rewards, dtype=np.float64)[half]
        right = r.sum(axis=1).astype(int)
        size = half.shape[1]
        scale = without_replacement(factor, right, size)
        w = r / np.maximum(right, 1)[:, None] - (1 - r) / np.maximum(size - right, 1)[:, None]
        mixed = (right > 0) & (right < size)
        full = np.zeros((splits, n))
        np.put_along_axis(full, half, np.where(mixed, scale, 0.0)[:, None] * w, axis=1)
        weights.append(full)
    return float(np.einsum("si,ij,sj->s", weights[0], gram, weights[1], optimize=True).mean())


def difficulty_trend(squared: np.ndarray, rates: np.ndarray, levels: np.ndarray, steps: int = 100) -> np.ndarray:
    """(a, b) of ||Delta|| ~ c (4 p (1-p))^a exp(b (2 p - 1)), from unbiased, possibly negative squares.

    Each value of `levels` has a c of its own; with `levels` (units, kinds), such as checkpoint and prompt, c has one
    factor a kind. Quasi-likelihood with a logarithmic link and variance proportional to the mean, whose estimating
    equations sum (y - mu) x = 0 allow negative y. The Bernoulli-logit model says a = b = 0. NaN
    where it does not converge, and where the levels leave nothing to tell a and b by. squared, rates (units,) with
    0 < rates < 1.
    """
    y, p = np.asarray(squared, dtype=np.float64), np.asarray(rates, dtype=np.float64)
    scale = y.mean()
    if not scale > 0:
        return np.full(2, np.nan)
    kinds = np.asarray(levels).reshape(len(y), -1).T
    # Every kind after the first leaves out one level: its factor is in the first kind's.
    own_level = [(kind[:, None] == np.unique(kind)[min(i, 1) :]).astype(np.float64) for i, kind in enumerate(kinds)]
    x = np.hstack([*own_level, np.stack([2 * np.log(4 * p * (1 - p)), 2 * (2 * p - 1)], axis=1)])
    beta = np.zeros(x.shape[1])
    for _ in range(steps):
        mu = np.exp(np.clip(x @ beta, -30, 30))
        try:
            change = np.linalg.solve(x.T @ (mu[:, None] * x), x.T @ (y / scale - mu))
        except np.linalg.LinAlgError:
            break
        beta += np.clip(change, -1, 1)
        if np.abs(change).max() < 1e-9:
            return beta[-2:]
    return np.full(2, np.nan)
