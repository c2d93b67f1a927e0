"""Plan group sizes from solve rates: what each difficulty needs, and what stays silent.

Bay & Yearick, arXiv:2607.00152: the smallest group for a fidelity (Cor. 2 and its table), the silent rate (section on
silent groups) and GRPO's expected update (Prop. 2), applied to a set of problems. For one size at a budget of
completions see `shared.planning.group_size_budget`.

**Noise.** Rates estimated from n rollouts are not solve rates, and a plan that takes them as such moves with n: for
Big-Math at a fidelity of 0.95, G = 40, 20 and 15 from 64, 8 and 4 rollouts a problem. So where n is known, the plan for
the whole set is made from a distribution fitted to the counts (50, 47 and 49): the mixture of solve rates that fits
best, up to four times n, and a Beta distribution beyond (`rate_forecast`). What the rates as they are say stands beside
it. What each observed k of n leaves open is the exact (Clopper-Pearson) 95 % interval; sizes are given
for both its ends. Problems observed at 0 of n are not known to be unsolvable. The silent share from estimated rates is
too high by closed form; for G <= n it is also given without bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import beta as beta_distribution

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.planning.difficulty_fit import Counts, misfit
from grpo_replications.shared.planning.group_size_budget import BINS, Budget, bin_edges, plan_budget, set_fidelity
from grpo_replications.shared.planning.rate_forecast import RateForecast
from grpo_replications.shared.planning.solve_rates import SolveRates
from grpo_replications.shared.statistics.estimates import Estimate
from grpo_replications.shared.theory.closed_forms import (
    group_size_law,
    silent_fraction,
    silent_fraction_without_replacement,
    silent_rate,
    smallest_group_size,
)

SILENT_SIZES = (4, 8, 16, 32, 64)
MANY_RATES = 512  # more distinct rates than these are joined


@dataclass(frozen=True)
class BinPlan:
    """Problems with low <= p < high, rates of exactly 0 and 1 excepted.

    `smallest` and `largest`: exact smallest group for the fidelity, over the problems' rates; `law`: G* at the
    same two. `with_rate_error`: the same two over all rates that the rollouts leave open, None without a number
    of rollouts.
    `silent`: mean silent rate with each problem at its own size. `completions`: all problems once, each at its own
    size. `beyond`: problems that need more than the largest size allowed; they are counted at that size.
    """

    low: float
    high: float
    problems: int
    smallest: int
    largest: int
    law: tuple[float, float]
    with_rate_error: tuple[int, int] | None
    silent: float
    completions: int
    beyond: int


@dataclass(frozen=True)
class EndPoint:
    """Problems observed at a rate of 0 or 1, which no size would help if that were their true rate.

    `bound`: the rate that the rollouts leave possible (end of the exact 95 % interval); `helped_from`: the group
    size for the fidelity at that bound. None without a number of rollouts.
    """

    rate: float
    problems: int
    bound: float | None
    helped_from: int | None


@dataclass(frozen=True)
class SilentLine:
    """Silent share of the whole set at one size: closed form on the rates, without bias where G <= rollouts, fitted.

    `method`: which fit; None without a number of rollouts.
    """

    group_size: int
    closed_form: float
    without_replacement: float | None
    fitted: Estimate | None
    method: str | None


@dataclass(frozen=True)
class Fitted:
    """The set as a fitted distribution of solve rates: size for the fidelity, and which fit it comes from.

    `reach`: largest size that the mixture answers for, 0 for none, and then `why_beta` says why. `family_p_value`: of
    the test that a Beta distribution fits.
    """

    single: Estimate
    method: str
    reach: int
    why_beta: str | None
    family_p_value: float


@dataclass(frozen=True)
class Plan:
    """Everything that `plan_group_sizes` found.

    `completions`: all problems of the bins once, each at its own size. `single`: smallest G at which the mean
    expected update reaches the fidelity, for the set as a whole with the rates as they are; None above
    `max_group_size`. `fitted`: the same from the fit, None where the number of rollouts is not known.
    """

    source: str
    problems: int
    samples: int | None
    fidelity: float
    max_group_size: int
    bins: list[BinPlan]
    ends: list[EndPoint]
    silent: list[SilentLine]
    completions: int
    beyond: int
    single: int | None
    fitted: Fitted | None
    budget: Budget | None
    notes: list[str]


def plan_group_sizes(
    solve_rates: SolveRates,
    fidelity: float = 0.95,
    budget: int | None = None,
    max_group_size: int = 1024,
    noise_ratio: float | None = None,
    bins: int = BINS,
) -> Plan:
    """Plan for a set of problems; see the module's text.

    `fidelity` in (0, 1), `budget` completions a step, `noise_ratio` r >= 0, `bins` of equal width. ValueError for
    other values; ReplicationError where no problem has a rate between 0 and 1. Time: a second for up to 512 distinct
    rates; more are joined into so many, with a note.
    """
    if max_group_size < 2 or bins < 1 or not (noise_ratio is None or noise_ratio >= 0):
        raise ValueError("need a largest group size of at least 2, at least one bin and a noise ratio of at least 0")
    if budget is not None and budget < 2:
        raise ValueError(f"a budget of {budget} completions holds no group of two")
    notes: list[str] = []
    rates = join_rates(solve_rates)
    if rates is not solve_rates:
        notes.append(f"{len(solve_rates.rates)} distinct rates were joined into {len(rates.rates)}.")
    if rates.samples is None:
        notes.append("The number of rollouts behind each rate is not known: rates are taken as exact. Give --rollouts.")
    inside = rates.within()
    if not inside.problems:
        raise ReplicationError(
            f"{rates.source}: every rate is 0 or 1, so no group of any size is expected to teach anything."
        )
    counts = None if rates.samples is None else _counts(rates)
    fit = None if counts is None else RateForecast.of(counts)
    sizes = smallest_group_size(inside.rates, fidelity)
    lines = []
    for low, high in bin_edges(bins):
        rows = (inside.rates >= low) & (inside.rates < high)
        if rows.any():
            part = SolveRates(inside.rates[rows], inside.counts[rows], rates.samples, rates.source)
            lines.append(_bin(part, low, high, sizes[rows], fidelity, max_group_size))
    return Plan(
        source=rates.source,
        problems=rates.problems,
        samples=rates.samples,
        fidelity=fidelity,
        max_group_size=max_group_size,
        bins=lines,
        ends=[_end(rates, end, fidelity) for end in (0.0, 1.0) if (rates.rates == end).any()],
        silent=[_silent_line(rates, size, fit) for size in SILENT_SIZES if size <= max_group_size],
        completions=sum(line.completions for line in lines),
        beyond=sum(line.beyond for line in lines),
        single=smallest_single_size(rates, fidelity, max_group_size),
        fitted=None if fit is None else _fitted(fit, fidelity),
        budget=None if budget is None else _budget(rates, fit, budget, max_group_size, noise_ratio, bins, notes),
        notes=notes,
    )


def _fitted(fit: RateForecast, fidelity: float) -> Fitted:
    single = fit.smallest_group_size(fidelity)
    return Fitted(single, fit.method_of_size(single), fit.reach, fit.why_beta, misfit(fit.counts, fit.beta))


def _budget(
    rates: SolveRates,
    fit: RateForecast | None,
    budget: int,
    max_group_size: int,
    noise_ratio: float | None,
    bins: int,
    notes: list[str],
) -> Budget:
    """The plan for a budget on the fitted distribution, of sizes that it answers for; `notes` says what is left out."""
    if fit is None:
        return plan_budget(rates, budget, max_group_size, noise_ratio, rates, bins)
    largest = min(max_group_size, fit.largest)
    if largest < min(budget, max_group_size):
        notes.append(f"One size for the budget: up to {largest}, since {rates.samples} rollouts do not decide more.")
    return plan_budget(fit.rates(rates.source), budget, largest, noise_ratio, rates, bins)


def join_rates(solve_rates: SolveRates, most: int = MANY_RATES) -> SolveRates:
    """The same problems with at most `most` distinct rates: neighbors joined at their mean, 0 and 1 kept apart."""
    if len(solve_rates.rates) <= most:
        return solve_rates
    inside = solve_rates.within()
    middle = np.cumsum(inside.counts) - inside.counts / 2
    cell = np.floor(middle / inside.problems * (most - 2)).astype(np.int64)
    _, cell = np.unique(cell, return_inverse=True)
    counts = np.bincount(cell, weights=inside.counts)
    means = np.bincount(cell, weights=inside.counts * inside.rates) / counts
    ends = (solve_rates.rates == 0) | (solve_rates.rates == 1)
    rates = np.concatenate([solve_rates.rates[ends], means])
    order = np.argsort(rates)
    counts = np.concatenate([solve_rates.counts[ends], counts])[order]
    return SolveRates(rates[order], counts, solve_rates.samples, solve_rates.source)


def with_rollouts(solve_rates: SolveRates, samples: int) -> SolveRates:
    """The same rates as shares of `samples` rollouts; ReplicationError where they cannot be such shares.

    Rates are moved to the nearest k / samples; a tenth of a rollout is taken for rounding.
    """
    if solve_rates.samples not in (None, samples):
        raise ReplicationError(f"{solve_rates.source} has {solve_rates.samples} rollouts a problem, not {samples}.")
    right = np.rint(solve_rates.rates * samples)
    off = np.abs(solve_rates.rates * samples - right) > 0.1
    if off.any():
        raise ReplicationError(
            f"{solve_rates.source}: a rate of {solve_rates.rates[off][0]:g} is no share of {samples} rollouts; correct "
            "--rollouts or leave it out."
        )
    right, cell = np.unique(right, return_inverse=True)
    counts = np.bincount(cell, weights=solve_rates.counts)
    return SolveRates(right / samples, counts, samples, solve_rates.source)


def rate_interval(right: np.ndarray, samples: int, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Exact (Clopper-Pearson) interval of a solve rate from `right` (n,) of `samples` rollouts: two (n,) arrays."""
    tail = (1 - level) / 2
    right = np.asarray(right, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        low = np.where(right == 0, 0.0, beta_distribution.ppf(tail, right, samples - right + 1))
        high = np.where(right == samples, 1.0, beta_distribution.ppf(1 - tail, right + 1, samples - right))
    return low, high


def smallest_single_size(rates: SolveRates, fidelity: float, max_group_size: int) -> int | None:
    """Smallest G <= `max_group_size` with `set_fidelity` of at least `fidelity`, by halving; None above."""
    low, high = 1, max_group_size
    if set_fidelity(rates, high) < fidelity:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if set_fidelity(rates, middle) >= fidelity else (middle, high)
    return high


def _bin(part: SolveRates, low: float, high: float, exact: np.ndarray, fidelity: float, max_group_size: int) -> BinPlan:
    p, counts = part.rates, part.counts
    sizes = np.minimum(exact, max_group_size)
    law = group_size_law(p, 1 - fidelity)
    with_rate_error = None
    if part.samples is not None:
        bounds = rate_interval(np.rint(p * part.samples), part.samples)
        nearest = np.clip(0.5, *bounds)  # sizes grow with the distance from one half
        farthest = np.where(np.abs(bounds[0] - 0.5) > np.abs(bounds[1] - 0.5), *bounds)
        with_rate_error = (
            int(np.min(smallest_group_size(nearest, fidelity))),
            int(np.max(smallest_group_size(farthest, fidelity))),
        )
    return BinPlan(
        low=low,
        high=high,
        problems=int(counts.sum()),
        smallest=int(exact.min()),
        largest=int(exact.max()),
        law=(float(law.min()), float(law.max())),
        with_rate_error=with_rate_error,
        silent=float(silent_rate(p, sizes) @ counts / counts.sum()),
        completions=int(sizes @ counts),
        beyond=int(counts[exact > max_group_size].sum()),
    )


def _end(rates: SolveRates, end: float, fidelity: float) -> EndPoint:
    problems = int(rates.counts[rates.rates == end].sum())
    if rates.samples is None:
        return EndPoint(end, problems, None, None)
    low, high = rate_interval(np.array([end * rates.samples]), rates.samples)
    bound = float((high if end == 0 else low)[0])
    return EndPoint(end, problems, bound, int(smallest_group_size(bound, fidelity)))


def _counts(rates: SolveRates) -> Counts:
    """How many problems had k of their n rollouts right."""
    right = np.rint(rates.rates * rates.samples).astype(np.int64)
    return Counts(np.bincount(right, weights=rates.counts, minlength=rates.samples + 1))


def _silent_line(rates: SolveRates, size: int, fit: RateForecast | None) -> SilentLine:
    unbiased = None
    if rates.samples is not None and size <= rates.samples:
        right = np.rint(rates.rates * rates.samples)
        unbiased = float(silent_fraction_without_replacement(right, rates.samples, rates.counts, size))
    fitted = None if fit is None else fit.silent_rate(size)
    method = None if fit is None else fit.method(size)
    return SilentLine(size, float(silent_fraction(rates.rates, rates.counts, size)), unbiased, fitted, method)
