"""Shares of groups (or problems, puzzles, steps): independent ones, and ones nested in seeds.

A share of groups is judged per group.  Judged per seed, five seeds without a single exception could show no more than
57 %, however many groups each of them has.
"""

from __future__ import annotations

import math

import numpy as np

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.estimates import Estimate, normal_quantile, student_quantile, wilson_interval


def share(successes: float, total: int, level: float = 0.95, exact: bool = False) -> Estimate:
    """Share of successes among `total` independent trials, with Wilson's interval or, `exact`, Clopper and Pearson's.

    The unit is one trial.  Clopper and Pearson's covers at least `level` always; Wilson's covers it on average and is
    narrower.  No trial gives `(nan, 0, 1)`; a nan gives nan.
    Raises ReplicationError if there are more successes than trials, or fewer than none.
    """
    if math.isnan(successes) or math.isnan(total):
        return Estimate(math.nan, math.nan, math.nan, 0, "Clopper-Pearson" if exact else "Wilson", level)
    if not 0 <= successes <= total:
        raise ReplicationError(f"{successes:g} successes in {total:g} trials: count both over the same trials")
    if not exact:
        return wilson_interval(successes, total, level)
    value = successes / total if total else math.nan
    low, high = clopper_pearson(successes, total, level)
    return Estimate(value, float(low), float(high), int(total), "Clopper-Pearson", level)


def clopper_pearson(successes: np.ndarray, total: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of Clopper and Pearson's interval, for arrays; counts may be fractional, as effective sample sizes are."""
    from scipy.special import betaincinv

    k, n = np.broadcast_arrays(np.asarray(successes, dtype=np.float64), np.asarray(total, dtype=np.float64))
    tail, tiny = (1 - level) / 2, np.finfo(np.float64).tiny
    low = np.where(k > 0, betaincinv(np.maximum(k, tiny), n - k + 1, tail), 0.0)
    high = np.where(k < n, betaincinv(k + 1, np.maximum(n - k, tiny), 1 - tail), 1.0)
    return low, high


def clustered_share(
    successes: np.ndarray, totals: np.ndarray, level: float = 0.95, correlation: float = 0.0
) -> Estimate:
    """Share of groups of which a property holds, groups nested in seeds; it covers other groups of other seeds.

    `successes` and `totals`: `(..., seeds)`, counts per seed; every leading index is a sample of its own.  The
    interval is Clopper and Pearson's at the effective number of groups (Korn and Graubard 1998): the number at which
    independent groups would have the variance that the seeds' shares show (linearized ratio, c / (c - 1) for c seeds),
    reduced by (normal / Student's quantile with c - 1 degrees)^2 because c is small.  The effective number never
    exceeds the number of groups.  `n` is the number of groups.

    Seeds that agree by chance look like independent groups; `correlation` is the smallest intraclass correlation to
    assume, so that the effective number is at most groups / (1 + (mean groups per seed - 1) * correlation).  With no
    exception at all, or nothing but exceptions, the data cannot show any, and only `correlation` guards.
    One seed gives (value, 0, 1); a nan gives nan.  Seeds without groups are left out.
    Raises ReplicationError if the shapes differ or there are more successes than groups.
    """
    k, m = np.asarray(successes, dtype=np.float64), np.asarray(totals, dtype=np.float64)
    if k.shape != m.shape or k.ndim == 0:
        raise ReplicationError(f"successes of shape {k.shape} and totals of shape {m.shape}: one of each per seed")
    if (k > m).any() or (k < 0).any() or not 0 <= correlation <= 1:
        raise ReplicationError("more successes than groups, fewer than none, or a correlation outside [0, 1]")
    unknown = (np.isnan(k) | np.isnan(m)).any(axis=-1)
    k, m = (np.where(unknown[..., None], 0.0, counts) for counts in (k, m))
    seeds, groups = (m > 0).sum(axis=-1), m.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = k.sum(axis=-1) / groups
        variance = seeds / (seeds - 1) * ((k - value[..., None] * m) ** 2).sum(axis=-1) / groups**2
        effective = value * (1 - value) / variance
        effective = np.where(np.isnan(effective) | (effective > groups), groups, effective)
        effective = np.minimum(effective, groups / (1 + np.maximum(groups / seeds - 1, 0) * correlation))
        few = np.maximum(seeds - 1, 1)
        student = np.vectorize(lambda freedom: student_quantile(level, float(freedom)), otypes=[float])(few)
        effective = effective * (normal_quantile(level) / student) ** 2
        low, high = clopper_pearson(value * effective, effective, level)
    alone = seeds < 2
    low, high = np.where(alone, 0.0, np.minimum(low, value)), np.where(alone, 1.0, np.maximum(high, value))
    value, low, high = (np.where(unknown, np.nan, end) for end in (value, low, high))
    kind = "Clopper-Pearson, groups within seeds"
    if value.ndim == 0:
        return Estimate(float(value), float(low), float(high), int(groups), kind, level)
    return Estimate(value, low, high, int(groups.flat[0]) if groups.size else 0, kind, level)
