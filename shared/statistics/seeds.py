"""How many seeds would decide, if the mean and the spread seen so far hold.

A plan, not a promise: the observed effect of an undecided comparison is itself uncertain, and adding seeds until a
verdict appears is no test.  Plan once, then run that many new ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.decisions import unusable
from grpo_replications.shared.statistics.estimates import normal_quantile, student_quantile
from grpo_replications.shared.statistics.proportions import clopper_pearson
from grpo_replications.shared.statistics.sign_tests import corrected_level, minimum_seeds, sign_test
from grpo_replications.shared.statistics.states import EQUIVALENT, FAILS, HOLDS, LEVEL

POWER = 0.8
MOST = 1_000_000


class SeedsNeeded(NamedTuple):
    """Number of seeds (or groups) that would decide with the power asked for, or None, and why.

    `n` counts all of them, the ones already run included.  `state` is what they would decide.
    """

    n: int | None
    state: str
    reason: str
    unit: str = "seeds"

    def __str__(self) -> str:
        """For a sentence: "24 seeds would decide (holds)"; "no number of seeds would decide: …"."""
        if self.n is None:
            return f"no number of {self.unit} would decide: {self.reason}"
        return f"{self.n:,} {self.unit} would decide ({self.state})"


def seeds_for_direction(
    differences: np.ndarray,
    margin: float,
    level: float = LEVEL,
    power: float = POWER,
    cells: int = 1,
    beyond: Literal["margin", "zero"] = "margin",
) -> SeedsNeeded:
    """Seeds with which `decide_direction` would hold or fail, from the mean and standard deviation of `(n,)`.

    The power of Student's t test against the margin (0 with `beyond="zero"`), from the noncentral t distribution; the
    decision's interval is a little wider, by 4 % at 20 seeds.  None if the observed mean does not pass the margin.
    """
    mean, spread, problem = _observed(differences, margin, power)
    state = HOLDS if mean > 0 else FAILS
    if problem:
        return SeedsNeeded(None, state, problem)
    excess = abs(mean) - margin
    if excess <= 0:
        return SeedsNeeded(None, state, f"the observed difference, {mean:.3g}, lies within the margin of {margin:g}")
    alpha = corrected_level(level, cells)
    if beyond == "zero":
        # The mean must reach the margin as well: a normal mean with this excess does so with its own probability.
        return _smallest(
            lambda n: np.minimum(_power_t(abs(mean) / spread, n, alpha), _power_z(excess / spread, n)),
            power,
            minimum_seeds(level, cells),
            state,
        )
    return _smallest(lambda n: _power_t(excess / spread, n, alpha), power, minimum_seeds(level, cells), state)


def seeds_for_equivalence(
    differences: np.ndarray, margin: float, level: float = LEVEL, power: float = POWER, cells: int = 1
) -> SeedsNeeded:
    """Seeds with which `equivalence` would call the difference equivalent, from mean and standard deviation of `(n,)`.

    Power of both one-sided t tests, bounded below by the sum of their powers less 1.  None if the observed mean does
    not lie inside the margin.
    """
    mean, spread, problem = _observed(differences, margin, power)
    if problem:
        return SeedsNeeded(None, EQUIVALENT, problem)
    if abs(mean) >= margin:
        reason = f"the observed difference, {mean:.3g}, does not lie inside the margin of {margin:g}"
        return SeedsNeeded(None, EQUIVALENT, reason)
    alpha = corrected_level(level, cells)
    return _smallest(
        lambda n: _power_t((margin - mean) / spread, n, alpha) + _power_t((margin + mean) / spread, n, alpha) - 1,
        power,
        minimum_seeds(level, cells),
        EQUIVALENT,
    )


def seeds_needed(
    differences: np.ndarray,
    margin: float,
    level: float = LEVEL,
    power: float = POWER,
    cells: int = 1,
    beyond: Literal["margin", "zero"] = "margin",
) -> SeedsNeeded:
    """Seeds with which `decide_direction` would decide one way or the other: direction, else equivalence.

    None only if the observed difference equals the margin, or the seeds so far say nothing about the spread.
    """
    direction = seeds_for_direction(differences, margin, level, power, cells, beyond)
    if direction.n is not None:
        return direction
    same = seeds_for_equivalence(differences, margin, level, power, cells)
    return same if same.n is not None or margin > 0 else direction


def seeds_for_sign_test(
    differences: np.ndarray, level: float = LEVEL, power: float = POWER, cells: int = 1
) -> SeedsNeeded:
    """Seeds with which `sign_test` would decide, from the shares of wins, losses and ties among `(n,)`.

    Exact: from this number on the power stays at `power` (it is no smooth function of the number).  A tie is no win:
    its share is kept.  None if neither side has won more than half of all seeds.
    """
    differences = np.asarray(differences, dtype=np.float64)
    test = sign_test(differences, level, cells)
    state = HOLDS if test.wins > test.losses else FAILS
    if math.isnan(test.p_value):
        return SeedsNeeded(None, state, "a seed gave no number")
    _check_power(power)
    more = max(test.wins, test.losses)
    if 2 * more <= test.n:
        return SeedsNeeded(None, state, f"the leading side won {more} of {test.n} seeds, not more than half")
    untied = test.wins + test.losses
    alpha = (1 - level) / cells
    found = _smallest(
        lambda n: _power_sign(n, more / untied, alpha), power, minimum_seeds(level, cells), state, steady=32
    )
    if found.n is None or untied == test.n:
        return found
    return found._replace(n=math.ceil(found.n * test.n / untied))


def groups_for_share(
    successes: float, total: float, threshold: float, level: float = LEVEL, power: float = POWER, unit: str = "groups"
) -> SeedsNeeded:
    """Independent trials with which the interval of a share would lie on one side of `threshold`, from k of n so far.

    Exact power of the Clopper-Pearson interval, from this number on.  Give effective counts for groups nested in
    seeds.  Where the share is 0 or 1, the trials at which the same result would decide.  None if the observed share
    equals the threshold, or the threshold does not lie between 0 and 1.
    """
    _check_power(power)
    if math.isnan(successes) or math.isnan(total) or not 0 <= successes <= total or total == 0:
        raise ReplicationError(f"{successes:g} successes in {total:g} trials: at least one trial is needed")
    share = successes / total
    state = "above" if share > threshold else "below"
    if share == threshold:
        return SeedsNeeded(None, state, f"the observed share equals the threshold {threshold:g}", unit)
    if not 0 < threshold < 1:
        return SeedsNeeded(None, state, f"a share always lies on this side of {threshold:g}, or never does", unit)
    above = state == "above"

    def passed(n: np.ndarray) -> np.ndarray:
        from scipy.stats import binom

        # Mirror a share below the threshold, so that the lower end always has to pass it.
        p, bar = (share, threshold) if above else (1 - share, 1 - threshold)
        return np.array([binom.sf(_fewest_successes(int(m), bar, level) - 1, m, p) for m in n])

    return _smallest(passed, power, 1, state, steady=32, unit=unit)


def seeds_for_range(
    values: np.ndarray, value: float, study: int, level: float = LEVEL, power: float = POWER
) -> SeedsNeeded:
    """Seeds with which `value` would lie outside the range of means of `study` seeds, our own uncertainty included.

    From the mean m and standard deviation s of `(n,)`, normal: value and the mean of n seeds must lie further apart
    than z s sqrt(1 / study + 1 / n), with a standard error s / sqrt(n) of the mean itself.  None if the value lies
    inside the range that infinitely many seeds would leave.
    """
    d = np.asarray(values, dtype=np.float64) - value
    mean, spread, problem = _observed(d, 0.0, power)
    if problem:
        return SeedsNeeded(None, FAILS, problem)
    effect, quantile = abs(mean) / spread, normal_quantile(level)
    if effect <= quantile / math.sqrt(study):
        reason = f"{value:g} lies inside the range of means of {study} seeds, however many are run"
        return SeedsNeeded(None, FAILS, reason)

    def outside(n: np.ndarray) -> np.ndarray:
        return _power_z(effect, n, quantile * np.sqrt(1 + np.asarray(n) / study))

    return _smallest(outside, power, minimum_seeds(level), FAILS)


def _fewest_successes(n: int, bar: float, level: float) -> int:
    """Fewest of n successes whose Clopper-Pearson lower end lies above `bar`; n + 1 if not even all do."""
    low, high = 0, n + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if float(clopper_pearson(middle, n, level)[0]) > bar else (middle, high)
    return high


def _observed(differences: np.ndarray, margin: float, power: float) -> tuple[float, float, str]:
    d = np.asarray(differences, dtype=np.float64)
    _check_power(power)
    if d.ndim != 1 or not (math.isfinite(margin) and margin >= 0):
        raise ReplicationError("one difference per seed and a margin of at least 0 are wanted")
    problem = unusable(d)
    if len(d) < 2 or "finite" in problem:
        return math.nan, math.nan, problem
    spread = float(d.std(ddof=1))
    if spread <= 1e-12 * float(np.abs(d).max()):
        return float(d.mean()), 0.0, "all seeds so far gave the same difference, so their spread is unknown"
    return float(d.mean()), spread, ""


def _check_power(power: float) -> None:
    if not 0 < power < 1:
        raise ReplicationError(f"power {power:g}: give the chance of a decision, between 0 and 1")


def _power_t(effect: float, n: np.ndarray, level: float) -> np.ndarray:
    """P(the lower end of the t interval lies above the bar), the true mean `effect` standard deviations above it."""
    from scipy.stats import nct

    n = np.asarray(n, dtype=np.float64)
    many = n > 1000  # the noncentral t is normal there, and its own series slow
    z = _power_z(effect, n, normal_quantile(level))
    quantile = np.array([student_quantile(level, float(m) - 1) for m in n])
    exact = nct.sf(quantile, n - 1, np.minimum(effect * np.sqrt(n), 30.0))
    return np.where(many | (effect * np.sqrt(n) > 30), z, exact)


def _power_z(effect: float, n: np.ndarray, quantile: float | np.ndarray = 0.0) -> np.ndarray:
    from scipy.special import ndtr

    return ndtr(effect * np.sqrt(np.asarray(n, dtype=np.float64)) - quantile)


def _power_sign(n: np.ndarray, win: float, alpha: float) -> np.ndarray:
    from scipy.stats import binom

    n = np.asarray(n)
    # Most losses m with 2 P(at most m losses of n | one half) <= alpha.
    most = binom.ppf(alpha / 2, n, 0.5)
    most = np.where(2 * binom.cdf(most, n, 0.5) <= alpha * (1 + 1e-9), most, most - 1)
    return binom.cdf(most, n, 1 - win)


def _smallest(
    power_at: Callable[[np.ndarray], np.ndarray],
    power: float,
    fewest: int,
    state: str,
    steady: int = 1,
    unit: str = "seeds",
) -> SeedsNeeded:
    """Smallest n from which the power stays at `power` for `steady` successive n, by doubling and bisection."""

    def enough(n: int) -> bool:
        return bool((power_at(np.arange(n, n + steady)) >= power).all())

    if enough(fewest):
        return SeedsNeeded(fewest, state, "", unit)
    low, high = fewest, 2 * fewest
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST:
            return SeedsNeeded(None, state, f"more than {MOST:,} would be needed", unit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return SeedsNeeded(high, state, "", unit)
