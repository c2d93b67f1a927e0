"""Decisions on differences between two methods run with the same seeds: direction, equivalence, non-inferiority.

The unit is one seed, and the data are differences `x - y` paired by seed.  The interval of their mean decides against
a margin, the smallest effect that matters; the exact sign test must not contradict it.  `calibration.py` measures how
often each decision is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.estimates import Estimate, student_quantile
from grpo_replications.shared.statistics.proportions import clopper_pearson
from grpo_replications.shared.statistics.sign_tests import (
    SignTest,
    check_level,
    corrected_level,
    minimum_seeds,
    one_per_seed,
    sign_test,
)
from grpo_replications.shared.statistics.states import EQUIVALENT, FAILS, HOLDS, LEVEL, UNDECIDED

INTERVAL = "Student's t and Hall"
INTERVAL_UNIT = "shares won and lost"


@dataclass(frozen=True)
class Decision:
    """What the data decide, and on what.

    `estimate`: the mean difference with its interval at the level asked for, to be shown.  `decisive`: the same with
    the wider interval that decided because several cells were judged at once; equal to `estimate` for one cell.
    `sign`: the sign test, for a direction.  `reason`: one sentence.
    """

    state: str
    estimate: Estimate
    decisive: Estimate
    reason: str
    sign: SignTest | None = None


def difference_interval(differences: np.ndarray, level: float = LEVEL, unit: float | None = None) -> Estimate:
    """Mean of paired differences `(..., n)` with the interval that decides; every leading index is a sample of its own.

    The wider, at each end, of Student's t interval and Hall's (1992, "On the removal of skewness by transformation"),
    which inverts the monotone cubic T + g T^2 / 3 + g^2 T^3 / 27 + g / (6 n) of the standardized mean, g the sample's
    skewness, at Student's quantile.  On symmetric data it is 4 % (n = 20) to 20 % (n = 6) wider than Student's t; on
    skewed data it halves the wrong decisions of Student's t and of the percentile bootstrap.

    `unit`: the differences can only be -unit, 0 and unit (1 for paired yes-or-no outcomes).  The interval is then the
    one of the share won less the share lost, combined from their Clopper-Pearson limits (Newcombe 1998, method 10,
    with the shares' correlation estimated from half a count more); it has a width even where all seeds agree.
    Without `unit`, differences that are all -1, 0 or 1 and not all equal get the wider of both intervals.

    Fewer than two values, or no spread and no `unit`: infinite.  A value that is no number makes the sample's nan.
    Raises ReplicationError if `unit` is given and other differences occur.  No random numbers; linear cost.
    """
    d = np.asarray(differences, dtype=np.float64)
    n = d.shape[-1]
    if n == 0:
        raise ReplicationError("no seed has measured both sides; nothing can be said about their difference")
    finite = np.isfinite(d).all(axis=-1)
    d = np.where(finite[..., None], d, 0.0)
    mean = d.mean(axis=-1)
    flat = np.ptp(d, axis=-1) <= 1e-12 * np.abs(d).max(axis=-1)  # equal but for rounding
    if n == 1:
        low, high = np.full_like(mean, -np.inf), np.full_like(mean, np.inf)
    else:
        centred = np.where(flat[..., None], 0.0, d - mean[..., None])
        root = np.sqrt((centred**2).mean(axis=-1))  # standard deviation with divisor n
        quantile = student_quantile(level, n - 1) / math.sqrt(n - 1)
        skew = (centred**3).mean(axis=-1) / np.where(flat, 1.0, root) ** 3
        low = mean - root * np.maximum(quantile, _hall(quantile, skew, n))
        high = mean - root * np.minimum(-quantile, _hall(-quantile, skew, n))
        low, high = np.where(flat, -np.inf, low), np.where(flat, np.inf, high)
    scale = 1.0 if unit is None else float(unit)
    lattice = finite & np.isin(d / scale, (-1.0, 0.0, 1.0)).all(axis=-1)
    if unit is not None and not (lattice | ~finite).all():
        raise ReplicationError(f"differences other than -{scale:g}, 0 and {scale:g} occur; leave out `unit`")
    if unit is None:
        lattice &= ~flat
    if lattice.any():
        shares = _share_difference((d > 0).sum(axis=-1), (d < 0).sum(axis=-1), n, level)
        share_low, share_high = (scale * end for end in shares)
        if unit is None:
            share_low, share_high = np.minimum(low, share_low), np.maximum(high, share_high)
        low, high = np.where(lattice, share_low, low), np.where(lattice, share_high, high)
    mean, low, high = (np.where(finite, values, np.nan) for values in (mean, low, high))
    kind = INTERVAL if unit is None else INTERVAL_UNIT
    if mean.ndim == 0:
        return Estimate(float(mean), float(low), float(high), n, kind, level)
    return Estimate(mean, low, high, n, kind, level)


def direction_states(
    differences: np.ndarray,
    margin: float,
    level: float = LEVEL,
    cells: int = 1,
    beyond: Literal["margin", "zero"] = "margin",
    unit: float | None = None,
    decisive: Estimate | None = None,
) -> np.ndarray:
    """`decide_direction`'s state for each of many samples `(..., n)`: an array of the words, shape `(...)`.

    `decisive`: the interval that decides, where it is another than `difference_interval`'s at the corrected level.
    """
    d = np.asarray(differences, dtype=np.float64)
    interval = difference_interval(d, corrected_level(level, cells), unit) if decisive is None else decisive
    holds, fails = _beyond(interval, margin, beyond)
    n = d.shape[-1]
    # The sign test contradicts a side that did not win more than half of all seeds, ties counted as no win.
    holds &= 2 * (d > 0).sum(axis=-1) > n
    fails &= 2 * (d < 0).sum(axis=-1) > n
    states = np.select([holds, fails, _inside(interval, margin)], [HOLDS, FAILS, EQUIVALENT], UNDECIDED)
    return states if n >= minimum_seeds(level, cells) else np.full_like(states, UNDECIDED)


def decide_direction(
    differences: np.ndarray,
    margin: float,
    level: float = LEVEL,
    cells: int = 1,
    beyond: Literal["margin", "zero"] = "margin",
    unit: float | None = None,
    interval: Callable[[float], Estimate] | None = None,
) -> Decision:
    """Whether x is above y, from differences `x - y` `(n,)` paired by seed, against the smallest effect that matters.

    The interval of the mean difference (`difference_interval`) at the level corrected for `cells` decides:
    holds if it lies above `+margin`; fails (reversed) if it lies below `-margin`; equivalent if it lies inside
    `[-margin, margin]`; undecided otherwise.  With `beyond="zero"` the direction alone is wanted: holds if the interval
    lies above 0 and the mean reaches the margin, fails likewise; this says nothing about the true effect's size.

    The sign test must not contradict it: more than half of all seeds on the mean's side, a tie being no win.  Fewer
    seeds than `minimum_seeds` (6; 8 for four cells) decide nothing; so do differences without spread (see `unit` in
    `difference_interval`), and a seed whose difference is no number, which makes the estimate nan.

    Error rates: with symmetric differences each wrong decision is made in at most (1 - level) / 2 of the studies;
    with strongly skewed differences more often (`calibration.py` has the numbers).
    `interval`: gives the estimate at a level, where it is no plain mean (`curves.decide_peaks`); the sign test still
    counts the differences.
    Raises ReplicationError if `margin` is negative or no number, or if the data are not one difference per seed.
    """
    interval = interval or (lambda at: difference_interval(differences, at, unit))
    d, estimate, decisive, undecided = _prepare(differences, margin, level, cells, interval)
    sign = sign_test(d, level, cells)
    state = UNDECIDED if undecided else str(direction_states(d, margin, level, cells, beyond, decisive=decisive))
    if undecided:
        reason = undecided
    elif state == EQUIVALENT:
        reason = f"the whole interval lies inside ±{margin:g}"
    elif state != UNDECIDED:
        bar = margin if beyond == "margin" else 0.0
        side = f"above {bar:g}" if state == HOLDS else f"below {0.0 - bar:g}"
        reason = f"the whole interval lies {side}"
    elif any(_beyond(decisive, margin, beyond)):
        reason = "the interval shows a direction, but not even half of the seeds share it"
    else:
        reason = f"the interval reaches across {_crossed(decisive, margin, beyond)}"
    tied = f", {sign.ties} tied" if sign.ties else ""
    reason += f" (seeds {sign.wins} to {sign.losses}{tied}, sign test p = {sign.p_value:.2g})"
    return Decision(state, estimate, decisive, reason, sign)


def equivalence_states(
    differences: np.ndarray, margin: float, level: float = LEVEL, cells: int = 1, unit: float | None = None
) -> np.ndarray:
    """`equivalence`'s state for each of many samples `(..., n)`: an array of the words, shape `(...)`."""
    interval = difference_interval(differences, corrected_level(level, cells), unit)
    outside = (np.asarray(interval.low) > margin) | (np.asarray(interval.high) < -margin)
    states = np.select([_inside(interval, margin), outside], [EQUIVALENT, FAILS], UNDECIDED)
    return states if interval.n >= minimum_seeds(level, cells) else np.full_like(states, UNDECIDED)


def equivalence(
    differences: np.ndarray, margin: float, level: float = LEVEL, cells: int = 1, unit: float | None = None
) -> Decision:
    """Whether x equals y within `margin`, from differences `(n,)` paired by seed.

    Equivalent if the whole interval at `level` lies inside `[-margin, margin]`; fails if it lies wholly outside on one
    side; undecided otherwise.  Two one-sided tests at 5 % would use the 90 % interval; the 95 % interval makes each
    of them a test at 2.5 %, and a true difference of the margin or more is called equivalent in at most
    (1 - level) / 2 of the studies.
    """
    d, estimate, decisive, undecided = _prepare(
        differences, margin, level, cells, lambda at: difference_interval(differences, at, unit)
    )
    if undecided:
        return Decision(UNDECIDED, estimate, decisive, undecided)
    state = str(equivalence_states(d, margin, level, cells, unit))
    reason = {
        EQUIVALENT: f"the whole interval lies inside ±{margin:g}",
        FAILS: f"the whole interval lies outside ±{margin:g}",
        UNDECIDED: f"the interval reaches across {_crossed(decisive, margin)}",
    }[state]
    return Decision(state, estimate, decisive, reason)


def non_inferiority_states(
    differences: np.ndarray, margin: float, level: float = LEVEL, cells: int = 1, unit: float | None = None
) -> np.ndarray:
    """`non_inferiority`'s state for each of many samples `(..., n)`: an array of the words, shape `(...)`."""
    interval = difference_interval(differences, corrected_level(level, cells), unit)
    holds, fails = np.asarray(interval.low) > -margin, np.asarray(interval.high) < -margin
    states = np.select([holds, fails], [HOLDS, FAILS], UNDECIDED)
    return states if interval.n >= minimum_seeds(level, cells) else np.full_like(states, UNDECIDED)


def non_inferiority(
    differences: np.ndarray, margin: float, level: float = LEVEL, cells: int = 1, unit: float | None = None
) -> Decision:
    """Whether x is not worse than y by more than `margin`, from differences `x - y` `(n,)`, higher is better.

    Holds if the interval lies above `-margin`, fails if it lies below it, undecided otherwise.  Each is wrong in at
    most (1 - level) / 2 of the studies: the 95 % interval makes a one-sided test at 2.5 %.
    """
    d, estimate, decisive, undecided = _prepare(
        differences, margin, level, cells, lambda at: difference_interval(differences, at, unit)
    )
    if undecided:
        return Decision(UNDECIDED, estimate, decisive, undecided)
    state = str(non_inferiority_states(d, margin, level, cells, unit))
    bar = f"{0.0 - margin:g}"
    reason = {HOLDS: f"lies above {bar}", FAILS: f"lies below {bar}", UNDECIDED: f"contains {bar}"}[state]
    return Decision(state, estimate, decisive, f"the {'' if state == UNDECIDED else 'whole '}interval {reason}")


def against_threshold(
    estimate: Estimate, threshold: float, side: Literal["above", "below"], strict: bool = True
) -> tuple[str, str]:
    """State and reason of one estimate against a threshold: holds, fails or undecided.

    The whole interval on the wanted side holds, on the other side fails.  An end equal to the threshold is on the
    wanted side unless `strict`.  An interval with an end that is no number is undecided.
    """
    if math.isnan(threshold):
        raise ReplicationError("the threshold is not a number; give one in the metric's unit")
    if side not in ("above", "below"):
        raise ReplicationError(f'side "{side}" is neither "above" nor "below"')
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return UNDECIDED, "the interval is unknown"
    sign = 1 if side == "above" else -1
    near, far = (estimate.low, estimate.high) if sign > 0 else (-estimate.high, -estimate.low)
    bar = sign * threshold
    if near > bar or (near == bar and not strict):
        return HOLDS, f"the whole interval lies {side} {threshold:g}"
    if far < bar or (far == bar and strict):
        return FAILS, f"the whole interval lies {'below' if sign > 0 else 'above'} {threshold:g}"
    return UNDECIDED, f"the interval contains {threshold:g}"


def unusable(values: np.ndarray, level: float = LEVEL, cells: int = 1) -> str:
    """Why these seeds cannot decide anything: too few of them, or values that are no numbers; empty if they can."""
    wild, n, needed = int((~np.isfinite(values)).sum()), len(values), minimum_seeds(level, cells)
    if wild:
        return f"{wild} of {n} seeds gave a value that is not finite"
    if n < needed:
        return f"{n} seed{'s' if n != 1 else ''}; at least {needed} are needed"
    return ""


def _prepare(
    differences: np.ndarray, margin: float, level: float, cells: int, interval: Callable[[float], Estimate]
) -> tuple[np.ndarray, Estimate, Estimate, str]:
    d = one_per_seed(differences)
    check_level(level, cells)
    if not (math.isfinite(margin) and margin >= 0):
        raise ReplicationError(f"margin {margin:g}: give the smallest effect that matters, in the metric's unit, >= 0")
    estimate, decisive = interval(level), interval(corrected_level(level, cells))
    undecided = unusable(d, level, cells)
    if not undecided and math.isinf(decisive.low):
        undecided = f"all {len(d)} seeds gave the same difference, so its spread is unknown"
    return d, estimate, decisive, undecided


def _hall(quantile: float, skew: np.ndarray, n: int) -> np.ndarray:
    """The T at which Hall's cubic equals `quantile`, in units of standard deviations of the mean."""
    steep = np.abs(skew) > 1e-6
    g = np.where(steep, skew, 1.0)
    inverse = 3 / g * (np.cbrt(1 + g * (quantile - g / (6 * n))) - 1)
    return np.where(steep, inverse, quantile)


def _share_difference(wins: np.ndarray, losses: np.ndarray, n: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the interval of P(win) - P(loss), from the Clopper-Pearson limits of the two shares."""
    up, down = wins / n, losses / n
    (up_low, up_high), (down_low, down_high) = (clopper_pearson(k, n, level) for k in (wins, losses))
    # Half a count more keeps the correlation defined, and near -1 where no seed is tied.
    smooth_up, smooth_down = (wins + 0.5) / (n + 1), (losses + 0.5) / (n + 1)
    correlation = -np.sqrt(smooth_up * smooth_down / ((1 - smooth_up) * (1 - smooth_down)))

    def reach(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.sqrt(a**2 - 2 * correlation * a * b + b**2)

    low = up - down - reach(up - up_low, down_high - down)
    high = up - down + reach(up_high - up, down - down_low)
    return np.maximum(low, -1), np.minimum(high, 1)


def _beyond(interval: Estimate, margin: float, beyond: str) -> tuple[np.ndarray, np.ndarray]:
    if beyond == "margin":
        return np.asarray(interval.low > margin), np.asarray(interval.high < -margin)
    if beyond != "zero":
        raise ReplicationError(f'beyond = "{beyond}": "margin" or "zero" is wanted')
    value, inside = np.asarray(interval.value), _inside(interval, margin)
    return (interval.low > 0) & (value >= margin) & ~inside, (interval.high < 0) & (value <= -margin) & ~inside


def _inside(interval: Estimate, margin: float) -> np.ndarray:
    return (np.asarray(interval.low) >= -margin) & (np.asarray(interval.high) <= margin)


def _crossed(interval: Estimate, margin: float, beyond: str = "margin") -> str:
    bars = sorted({0.0 - margin, margin} if beyond == "margin" else {0.0 - margin, 0.0, margin})
    crossed = [f"{bar:g}" for bar in bars if interval.low <= bar <= interval.high]
    return " and ".join(crossed)
