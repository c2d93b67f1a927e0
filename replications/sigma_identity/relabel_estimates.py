"""What relabelled completions tell: ||Delta|| against p at a fixed prompt, and norms of groups that no fit has seen.

A *unit* is one prompt under one verifier: gram (n, n), the inner products of the scores of n completions, which is the
same for all verifiers of a prompt, and which completions are right. Delta = E[s | right] - E[s | wrong] = grad logit p.

What scores that know nothing of the verifier would give: let completions y have probabilities pi_y and orthogonal
scores of length n, and let the right ones be any set of them, chosen at random. Then grad p = sum_y pi_y (1_y - p) s_y,
E ||grad p||^2 = n^2 (sum pi_y^2) p (1-p), and since Delta = grad p / (p (1-p)),

    ||Delta|| = c (p (1-p))^(-1/2):    the exponent a is -1/2.

The Bernoulli-logit model has a = 0. A group's expected update is sqrt(p (1-p)) ||Delta|| for GRPO and p (1-p) ||Delta||
for Dr. GRPO in the limit of large groups: with a = -1/2 the first is the same for all p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grpo_replications.replications.sigma_identity.open_estimates import Classes, classes, difficulty_trend
from grpo_replications.shared.theory.closed_forms import sigma
from grpo_replications.shared.theory.group_norms import expected_squared_norm

FORMS = ("formula", "signal", "noise", "both")
"""Predictions of a group's squared norm: the formula, sigma^2 ||Delta||^2 alone, n^2 / G alone, and the sum of these
two with one n^2 = (v+ + v-) / 2 for both classes."""


@dataclass(frozen=True)
class Unit:
    """One prompt under one verifier; `rate` is p by all completions drawn, the scored ones included."""

    prompt: int
    family: str
    verifier: str
    gram: np.ndarray
    right: np.ndarray
    rate: float

    @cached_property
    def means(self) -> Classes:
        """Class means of all scored completions."""
        return classes(self.gram, self.right)

    def part(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Gram matrix and labels of every second completion, from `start` (0 or 1) on: two independent halves."""
        return self.gram[start::2, start::2], self.right[start::2]

    def has(self, smallest: int) -> bool:
        """Whether both classes hold at least so many scored completions."""
        return smallest <= self.right.sum() <= len(self.right) - smallest


def trend(units: Sequence[Unit]) -> np.ndarray:
    """(a, b) of ||Delta|| ~ c (4 p (1-p))^a exp(b (2p - 1)), a c of its own for each prompt and family: shape (2,).

    From unbiased squares. NaN where the units leave nothing to tell a and b by.
    """
    if len(units) < 3:
        return np.full(2, np.nan)
    _, level = np.unique([f"{unit.prompt}/{unit.family}" for unit in units], return_inverse=True)
    squared = np.array([unit.means.delta_squared for unit in units])
    return difficulty_trend(squared, np.array([unit.rate for unit in units]), level)


# --- groups that the prediction has not seen --------------------------------------------------------------------------


def group_norms(
    gram: np.ndarray, right: np.ndarray, size: int, draws: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of right completions (draws,) and squared norms (draws,) of GRPO gradients of groups drawn from a sample.

    A group is `size` different completions of the n; its gradient is (1/G) sum_i A_i s_i with the advantages of its own
    rewards, so that nothing of the identity enters. 0 for silent groups. Cost: draws x G^2. Raises ValueError for more
    completions than there are.
    """
    if size > len(right):
        raise ValueError(f"no group of {size} can be drawn from {len(right)} completions")
    chosen = generator.permuted(np.tile(np.arange(len(right)), (draws, 1)), axis=1)[:, :size]
    rewards = right[chosen].astype(np.float64)
    deviation = rewards.std(axis=1, keepdims=True)
    advantages = np.divide(
        rewards - rewards.mean(axis=1, keepdims=True), deviation, out=np.zeros_like(rewards), where=deviation > 0
    )
    inner = gram[chosen[:, :, None], chosen[:, None, :]]
    return rewards.sum(axis=1).astype(int), np.einsum("di,dij,dj->d", advantages, inner, advantages) / size**2


def predictions(means: Classes, size: int) -> dict[str, np.ndarray]:
    """Expected squared norm by k, (size + 1,), for each of FORMS; 0 for silent groups."""
    k = np.arange(size + 1)
    mixed = (k > 0) & (k < size)
    signal = sigma(k, size) ** 2 * means.delta_squared
    noise = np.where(mixed, means.spread / size, 0.0)
    formula = expected_squared_norm(k, size, means.delta_squared, means.spread_right, means.spread_wrong)
    return dict(zip(FORMS, (np.asarray(formula), signal, noise, signal + noise), strict=True))


@dataclass(frozen=True)
class HeldOutNorms:
    """Sums over groups of one size, by unit and k, (units, G + 1): their number, measured and predicted squares."""

    size: int
    groups: np.ndarray
    measured: np.ndarray
    predicted: dict[str, np.ndarray]

    def curve(self, name: str) -> np.ndarray:
        """Root mean square norm by k, (G + 1,), of "measured" or of one of FORMS; NaN for a k without groups."""
        squared = self.measured if name == "measured" else self.predicted[name]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.sqrt(np.maximum(squared.sum(axis=0) / self.groups.sum(axis=0), 0.0))

    def error(self, form: str) -> float:
        """Mean |log(predicted / measured)| of the norm over mixed groups, by k. Infinite where a prediction is 0."""
        weight = self.groups.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            off = np.abs(np.log(self.curve(form) / self.curve("measured")))
        return float(np.average(off[weight > 0], weights=weight[weight > 0])) if (weight > 0).any() else np.nan

    def slope(self, name: str) -> float:
        """Slope of log norm on log sigma(k, G) over mixed groups, a level for each unit, weighted by groups."""
        k = np.arange(1, self.size)
        squared = (self.measured if name == "measured" else self.predicted[name])[:, k]
        groups = self.groups[:, k]
        mean = np.divide(squared, groups, out=np.zeros_like(squared), where=groups > 0)
        return weighted_slope(np.log(sigma(k, self.size)), mean, groups)


def held_out_norms(units: Sequence[Unit], size: int, draws: int, generator: np.random.Generator) -> HeldOutNorms:
    """Groups of one half of each unit's completions against predictions from the other half, both ways.

    `draws` groups of each half. Only units with two completions of each class in both halves should be given.
    """
    counted, measured = np.zeros((2, len(units), size + 1))
    predicted = {form: np.zeros((len(units), size + 1)) for form in FORMS}
    for i, unit in enumerate(units):
        for fitted, other in ((0, 1), (1, 0)):
            k, squared = group_norms(*unit.part(other), size, draws, generator)
            mixed = (k > 0) & (k < size)
            groups = np.bincount(k[mixed], minlength=size + 1)
            counted[i] += groups
            measured[i] += np.bincount(k[mixed], weights=squared[mixed], minlength=size + 1)
            for form, values in predictions(classes(*unit.part(fitted)), size).items():
                predicted[form][i] += groups * values
    return HeldOutNorms(size, counted, measured, predicted)


def weighted_slope(x: np.ndarray, squared: np.ndarray, weights: np.ndarray) -> float:
    """Slope of log sqrt(squared) (units, k) on x (k,), each unit with a level of its own, weighted (units, k).

    Entries that are not positive or weigh nothing are left out; NaN where x does not vary within any unit.
    """
    usable = (squared > 0) & (weights > 0)
    w = np.where(usable, weights, 0.0)
    y = np.log(np.where(usable, squared, 1.0)) / 2
    rows = w.sum(axis=1) > 0
    w, y = w[rows], y[rows]
    if not len(w):
        return np.nan
    total = w.sum(axis=1, keepdims=True)
    dx = x - (w * x).sum(axis=1, keepdims=True) / total
    dy = y - (w * y).sum(axis=1, keepdims=True) / total
    variance = (w * dx**2).sum()
    return float((w * dx * dy).sum() / variance) if variance > 1e-12 else np.nan
