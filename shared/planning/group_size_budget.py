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
directions, and the scatter r (its mean square over the squared distance of the two means) is the same for all. r is not
known beforehand; in language models it is large, and then hardly matters: the sizes for r = 1 to 1000 are given beside
the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.planning.solve_rates import SolveRates
from grpo_replications.shared.theory.closed_forms import expected_update, silent_fraction, silent_rate

BINS = 10
SCATTERS = (1.0, 10.0, 100.0, 1000.0)
NEAR = 0.98  # of the best gain: sizes this good are as good
_WIDEST = 16  # times the single size: the largest size that an allocation may give


@dataclass(frozen=True)
class Candidate:
    """One size for all problems at the budget; `gain` is relative to the best size's.

    `problems_per_step`: N / G. `fidelity`: mean expected update over its limit. `nonzero`: expected completions of
    a step with nonzero advantage.
    """

    group_size: int
    problems_per_step: int
    gain: float
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
    """The best single size for N completions a step, all candidates (divisors of N), and the sizes as good as it.

    `by_scatter`: best size for each of SCATTERS as r.
    """

    completions: int
    scatter: float
    best: Candidate
    candidates: list[Candidate]
    as_good: list[int]
    by_scatter: list[tuple[float, int]]
    allocation: Allocation


def bin_edges(bins: int) -> list[tuple[float, float]]:
    """Lower and upper edges of bins of equal width over [0, 1]."""
    return [(i / bins, (i + 1) / bins) for i in range(bins)]


def set_fidelity(rates: SolveRates, size: int) -> float:
    """Mean expected update of GRPO over its limit for infinite groups, E[g(p, G)] / E[sqrt(p (1-p))], over problems."""
    p, weight = rates.rates, rates.counts
    return float(expected_update(p, size, "grpo") @ weight / (np.sqrt(p * (1 - p)) @ weight))


def gain(rates: SolveRates, size: int, scatter: float) -> float:
    """Progress per completion of a step at the optimal learning rate: the formula above with N = 1; `scatter` is r."""
    p, share = rates.rates, rates.counts / rates.counts.sum()
    signal = (np.sqrt(p * (1 - p)) * expected_update(p, size, "grpo")) @ share
    noise = (size - 1) * ((p * (1 - p)) @ share) + scatter * (1 - silent_rate(p, size)) @ share
    return float(signal**2 / noise)


def plan_budget(
    rates: SolveRates, completions: int, max_group_size: int = 1024, scatter: float = 100.0, bins: int = BINS
) -> Budget:
    """The best single group size for a step of `completions`, among its divisors of at most `max_group_size`."""
    sizes = [size for size in range(2, min(completions, max_group_size) + 1) if completions % size == 0]
    if not sizes:
        raise ReplicationError(
            f"{completions} completions do not divide into groups of one size between 2 and {max_group_size}; choose "
            "another budget."
        )
    gains = [gain(rates, size, scatter) for size in sizes]
    candidates = [_candidate(rates, size, completions, one / max(gains)) for size, one in zip(sizes, gains)]
    best = candidates[int(np.argmax(gains))]
    return Budget(
        completions=completions,
        scatter=scatter,
        best=best,
        candidates=candidates,
        as_good=[one.group_size for one in candidates if one.gain >= NEAR],
        by_scatter=[(r, max(sizes, key=lambda size: gain(rates, size, r))) for r in SCATTERS],
        allocation=allocate(rates, best.group_size, max_group_size, bins),
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


def _candidate(rates: SolveRates, size: int, completions: int, relative_gain: float) -> Candidate:
    silent = float(silent_fraction(rates.rates, rates.counts, size))
    return Candidate(
        group_size=size,
        problems_per_step=completions // size,
        gain=relative_gain,
        fidelity=set_fidelity(rates, size),
        silent=silent,
        nonzero=completions * (1 - silent),
    )
