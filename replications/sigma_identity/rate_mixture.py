"""Which problems of Big-Math stay silent however large the group: not all that were silent in 64 rollouts.

The paper counts the problems that were solved in none or in all of 64 rollouts, 11.2 %, and calls them silent at every
group size: "no amount of additional sampling" helps them. The count is the silent rate *at G = 64*. A problem with a
solve rate of 1 % is never solved in 64 rollouts one time in two, and a group of 256 is silent for it one time in
thirteen. What the counts allow to say of larger groups, without an assumption on how difficult problems are:

- the share of silent groups at other sizes, under the distribution of solve rates that fits the counts best;
- a bound on the problems that are silent at every size, from the first three and the last three counts alone.

Both take the counts of a problem as binomial. At the lower end they are not quite: too few problems have 0 or 2 right
for the many with 1 (`end_inequality_wrong` below 1), which no distribution of solve rates explains; a selection of the
problems by their solve rate would. A prediction for G far above 64 is an extrapolation.
"""

from __future__ import annotations

import numpy as np

from grpo_replications.replications.sigma_identity.settings import RateMixtureSettings
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.planning.solve_rates import SolveRates, load_solve_rates
from grpo_replications.shared.theory.binomial_mixtures import (
    RateFit,
    end_inequality,
    fit_rates,
    most_at_the_end,
    rate_grid,
)

INTERVAL = (0.025, 0.975)


def rate_mixture(settings: RateMixtureSettings, seed: int, context: JobContext) -> list[Row]:
    """The fitted distribution's silent shares, its mass at 0 and 1, and what needs no fit.

    `silent/G` with `silent_low/G` and `silent_high/G` (95 % over resampled problems); `mass_never` and `mass_always`:
    fitted share of problems with p = 0 and p = 1. `end_inequality_*`: a ratio that is at least 1 for every mixture of
    binomials, `end_shortfall_*` how many standard errors it lies below 1. `bound_*`: largest share of problems with
    p = 0 (`never`), with p = 1 (`always`), and with either (`ends`) that the counts allow.
    """
    counts = counts_by_k(load_solve_rates(settings.solve_rates))
    rates = rate_grid(settings.grid_points)
    found = fit_rates(counts, rates)
    generator = np.random.default_rng([seed, settings.grid_points])
    drawn = []
    for draw in range(settings.draws):
        context.progress(draw / settings.draws)
        resampled = generator.multinomial(int(counts.sum()), counts / counts.sum())
        drawn.append(_silent_shares(fit_rates(resampled, rates), settings.group_sizes))
    low, high = np.quantile(drawn, INTERVAL, axis=0)
    rows = [row("mass_never", found.weights[0]), row("mass_always", found.weights[-1]), row("fit_gap", found.gap)]
    shares = _silent_shares(found, settings.group_sizes)
    for name, values in (("silent", shares), ("silent_low", low), ("silent_high", high)):
        rows += [row(f"{name}/{size}", value) for size, value in zip(settings.group_sizes, values, strict=True)]
    bounds = {"never": most_at_the_end(counts), "always": most_at_the_end(counts[::-1])}
    for name, ordered in (("wrong", counts), ("right", counts[::-1])):
        ratio, error = end_inequality(ordered)
        rows += [row(f"end_inequality_{name}", ratio), row(f"end_shortfall_{name}", max(0.0, (1 - ratio) / error))]
    rows += [row(f"bound_{name}", bound) for name, bound in bounds.items()]
    return [*rows, row("bound_ends", sum(bounds.values()))]


def counts_by_k(rates: SolveRates) -> np.ndarray:
    """Problems with k of n rollouts right, (n + 1,)."""
    if rates.samples is None:
        raise ReplicationError(f"{rates.source} does not say how many rollouts a solve rate comes from.")
    right = np.rint(rates.rates * rates.samples).astype(int)
    return np.bincount(right, weights=rates.counts, minlength=rates.samples + 1)


def _silent_shares(found: RateFit, sizes: list[int]) -> list[float]:
    return [found.silent_share(size) for size in sizes]
