"""One group size for a budget: N completions a step, for problems with given solve rates.

A step has M = N / G problems drawn at random, G completions each. Summed expected updates per completion are largest
at G = 2 whatever the problems are, and the expected mean update grows with G without end; neither chooses a size.
Chosen is the G that makes most progress in a step at the optimal learning rate, the *gain*:

    gain(G) = N (E[sqrt(p (1-p)) g(p, G)])^2 / ((G - 1) E[p (1-p)] + r (1 - S(G)))

with g(p, G) GRPO's expected update, S(G) the silent share and E over the problems (Bay & Yearick, arXiv:2607.00152,
Prop. 2; the criterion is ours). The numerator is the squared rise of GRPO's objective E[2 arcsin sqrt(p)] along the
step, the denominator the step's mean square. The update of one problem is sigma (s+ - s-); its mean square is sigma^2
from the mean scores of right and wrong completions, plus r / G, in groups that are not silent, from the scatter of
scores around these means: with advantages of unit variance it does not depend on k. Assumed: problems do not share
directions, and the noise ratio r (mean square of the scatter over the squared distance of the two means) is the same
for all. r can be given; else sizes are judged at r = 3, about what SmolLM2-135M showed on addition, and at 100, and the
size is chosen whose worse gain is best. The best size does not depend on N, which only says how many problems there
are; a size that does not divide N leaves some of it unused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpo_replications.shared.planning.solve_rates import SolveRates
from grpo_replications.shared.theory.closed_forms import expected_update, silent_fraction, silent_rate

BINS = 10
NOISE_RATIOS = (3.0, 100.0)
BY_NOISE = (1.0, 3.0, 10.0, 100.0, 1000.0)
USUAL = (2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
NEAR = 0.95  # of the best size's worse gain: sizes this good are as good
_WIDEST = 16  # times the single size: the largest size that an allocation may give


@dataclass(frozen=True)
class Candidate:
    """One size for all problems at the budget; `gains`, one for each noise ratio, are relative to the best size's.

    `problems_per_step`: N / G, rounded down; `unused`: completions left over. `fidelity`: mean expected update over its
    limit. `nonzero`: expected completions of a step with nonzero advantage.
    """

    group_size: int
    problems_per_step: int
    unused: int
    gains: tuple[float, ...]
    fidelity: float
    silent: float
    nonzero: float


@dataclass(frozen=True)
class Allocation:
    """A size for each difficulty, at as many problems and completions a step as the best single size has.

    Sizes maximize the mean expected update. `sizes`: (low, high, smallest, largest) of each bin; a size of 0 leaves
    problems out. `fidelity` and `silent` (share of completions in silent groups) stand beside those of the single
    size. Problems observed at 0 or 1 get no completion, which is right only as far as those rates are.
    """

    sizes: list[tuple[float, float, int, int]]
    fidelity: float
    single_fidelity: float
    silent: float
    single_silent: float


@dataclass(frozen=True)
class Budget:
    """The best single size for N completions a step, all candidates, and the sizes as good as it.

    Candidates are the divisors of N and the usual sizes. `noise_ratios`: those that the choice looks at. `by_noise`:
    best size for each of BY_NOISE as r.
    """

    completions: int
    noise_ratios: tuple[float, ...]
    best: Candidate
    candidates: list[Candidate]
    as_good: list[int]
    by_noise: list[tuple[float, int]]
    allocation: Allocation


def bin_edges(bins: int) -> list[tuple[float, float]]:
    """Lower and upper edges of bins of equal width over [0, 1]."""
    return [(i / bins, (i + 1) / bins) for i in range(bins)]


def set_fidelity(rates: SolveRates, size: int) -> float:
    """Mean expected update of GRPO over its limit for infinite groups, E[g(p, G)] / E[sqrt(p (1-p))], over problems."""
    p, weight = rates.rates, rates.counts
    return float(expected_update(p, size, "grpo") @ weight / (np.sqrt(p * (1 - p)) @ weight))


def gain(rates: SolveRates, size: int, noise_ratio: float) -> float:
    """Progress per completion of a step at the optimal learning rate: the formula above with N = 1; r is given."""
    p, share = rates.rates, rates.counts / rates.counts.sum()
    signal = (np.sqrt(p * (1 - p)) * expected_update(p, size, "grpo")) @ share
    noise = (size - 1) * ((p * (1 - p)) @ share) + noise_ratio * (1 - silent_rate(p, size)) @ share
    return float(signal**2 / noise)


def plan_budget(
    rates: SolveRates,
    completions: int,
    max_group_size: int = 1024,
    noise_ratio: float | None = None,
    observed: SolveRates | None = None,
    bins: int = BINS,
) -> Budget:
    """The best single group size of at most `max_group_size` for a step of `completions`.

    `rates`: the problems' solve rates, or a distribution fitted to them; `observed`: the rates by which a problem can
    be given a size of its own, where they differ.
    """
    largest = min(completions, max_group_size)
    sizes = sorted({n for n in range(2, largest + 1) if completions % n == 0 or n in USUAL})
    ratios = NOISE_RATIOS if noise_ratio is None else (noise_ratio,)
    used = np.array([completions // size * size / completions for size in sizes])
    gains = {r: used * [gain(rates, size, r) for size in sizes] for r in {*ratios, *BY_NOISE}}
    relative = np.array([gains[r] / gains[r].max() for r in ratios])
    candidates = [_candidate(rates, size, completions, tuple(map(float, one))) for size, one in zip(sizes, relative.T)]
    worst = relative.min(axis=0)
    # A size that leaves completions unused is chosen only where no divisor is about as good.
    divides = np.array([completions % size == 0 for size in sizes])
    enough = divides & (worst >= NEAR * worst.max())
    best = candidates[int(np.where(enough, worst, 0.0).argmax() if enough.any() else worst.argmax())]
    return Budget(
        completions=completions,
        noise_ratios=tuple(ratios),
        best=best,
        candidates=candidates,
        as_good=[size for size, one in zip(sizes, worst) if one >= NEAR * worst.max()],
        by_noise=[(r, sizes[int(gains[r].argmax())]) for r in BY_NOISE],
        allocation=allocate(rates if observed is None else observed, best.group_size, max_group_size, bins),
    )


def allocate(rates: SolveRates, size: int, max_group_size: int, bins: int = BINS) -> Allocation:
    """Sizes by difficulty with mean `size` over all problems, that maximize the mean expected update.

    The update is concave in the size (after the first two completions), so completions go where one more adds most.
    Sizes reach 16 x `size` at most.
    """
    inside = rates.within()
    p, counts = inside.rates, inside.counts
    largest = min(max_group_size, _WIDEST * size)
    update = expected_update(p[:, None], np.arange(1, largest + 1), "grpo")  # (rates, sizes); 0 for one completion
    added = np.diff(update, axis=1)
    added = np.concatenate([added[:, :1] / 2, added[:, :1] / 2, added[:, 1:]], axis=1)
    order = np.argsort(-added, axis=None, kind="stable")
    spent = np.cumsum(counts[order // largest])
    taken = order[spent <= size * rates.counts.sum()]
    chosen = np.bincount(taken // largest, minlength=len(p))
    chosen[chosen == 1] = 0
    held = np.where(chosen > 0, update[np.arange(len(p)), np.maximum(chosen, 1) - 1], 0.0)
    limit = np.sqrt(p * (1 - p)) @ counts
    used = chosen @ counts
    silent = float((silent_rate(p, np.maximum(chosen, 1)) * chosen) @ counts / used) if used else 0.0
    in_bins = []
    for low, high in bin_edges(bins):
        rows = (p >= low) & (p < high)
        if rows.any():
            in_bins.append((low, high, int(chosen[rows].min()), int(chosen[rows].max())))
    single_silent = float(silent_fraction(rates.rates, rates.counts, size))
    return Allocation(in_bins, float(held @ counts / limit), set_fidelity(rates, size), silent, single_silent)


def _candidate(rates: SolveRates, size: int, completions: int, gains: tuple[float, ...]) -> Candidate:
    silent = float(silent_fraction(rates.rates, rates.counts, size))
    return Candidate(
        group_size=size,
        problems_per_step=completions // size,
        unused=completions % size,
        gains=gains,
        fidelity=set_fidelity(rates, size),
        silent=silent,
        nonzero=(completions - completions % size) * (1 - silent),
    )
