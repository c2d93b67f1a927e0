"""What the paper says around its closed forms, as numbers: each sentence that names or implies one.

- Corollary 2: a prompt needs 1 / (4 p (1-p)) times the group of an even one ("penalty"; 2.8 at p = .1, 5.3 at .05).
- "One uniform group size spends too much on mid-difficulty prompts and too little on the hard tails."
- "Estimator variance is equalized": 2 arcsin sqrt(k/G) has a variance near 1/G whatever the solve rate.
- Silent groups drawn from the logged rollouts are "within two points" of the closed form, "the small gap being the
  finite-pool correction".

And one distinction that the word DAPO hides. A silent group can be redrawn from its own prompt, as in the paper's
controlled run, or replaced by another prompt, as in DAPO. The first multiplies a prompt's expected update by the
expected number of its mixed groups, (1 - P^(r+1)) / (1 - P), which is largest for extreme prompts; the second keeps
GRPO's proportions between prompts.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from grpo_replications.replications.sigma_identity.settings import CorollariesSettings
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.planning.solve_rates import SolveRates, load_solve_rates
from grpo_replications.shared.theory.closed_forms import (
    fidelity,
    gradient_mass_shares,
    group_size_law,
    silent_fraction,
    silent_fraction_without_replacement,
    silent_rate,
    smallest_group_size,
)

EVEN = 0.5
LOSS = 0.05  # fidelity of 95 %
CLIP = (0.02, 0.98)  # of the initial rates in the controlled run
REDRAWS = 3  # of a silent group in the controlled run
TENTHS = 10


def corollaries(settings: CorollariesSettings, seed: int, context: JobContext) -> list[Row]:
    """All numbers at one group size and one hard solve rate; nothing is random, so the seed changes nothing.

    `penalty` and `penalty_exact`: group size for a fidelity of 95 % at p over that at 1/2, by the law and exactly.
    `even_fidelity`, `hard_fidelity`: of the same G at 1/2 and at p. `variance_even`, `variance_hard`: G times the
    variance of 2 arcsin sqrt(k/G). `pool_gap`: silent fraction with the rates taken as exact minus that of groups drawn
    from the rollouts. `outer_mass/*`: share of expected gradient in the outer two of ten bins of the controlled run's
    initial rates; `outer_mass_ratio`, `outer_mass_to_limit`: with redraws of the same prompt over GRPO, at G and for
    infinite groups; `silent_after_redraws`: its groups that are still silent after the redraws.
    """
    rates = load_solve_rates(settings.solve_rates)
    size, p = settings.group_size, settings.p
    values = {
        "penalty": group_size_law(p, LOSS) / group_size_law(EVEN, LOSS),
        "penalty_exact": smallest_group_size(p, 1 - LOSS) / smallest_group_size(EVEN, 1 - LOSS),
        "even_fidelity": fidelity(EVEN, size),
        "hard_fidelity": fidelity(p, size),
        "variance_even": arcsine_variance(EVEN, size),
        "variance_hard": arcsine_variance(p, size),
        **_pool_gap(rates, size),
        **outer_masses(rates, size),
    }
    context.progress(1.0)
    return [row(name, value) for name, value in values.items()]


def arcsine_variance(p: float, size: int) -> float:
    """G Var(2 arcsin sqrt(k/G)) for k ~ Binomial(G, p): tends to 1 as G grows. Cost: G."""
    k = np.arange(size + 1)
    chance, angle = binom.pmf(k, size, p), 2 * np.arcsin(np.sqrt(k / size))
    return float(size * (chance @ angle**2 - (chance @ angle) ** 2))


def _pool_gap(rates: SolveRates, size: int) -> dict[str, float]:
    if rates.samples is None:
        raise ReplicationError(f"{rates.source} does not say how many rollouts a solve rate comes from.")
    if size > rates.samples:  # no group of this size can be drawn from the rollouts
        return {}
    drawn = silent_fraction_without_replacement(np.rint(rates.rates * rates.samples), rates.samples, rates.counts, size)
    return {"pool_gap": float(silent_fraction(rates.rates, rates.counts, size)) - float(drawn)}


def outer_masses(rates: SolveRates, size: int) -> dict[str, float]:
    """Gradient mass in the outer bins by method, and what of the groups is silent after all redraws.

    `outer_mass/grpo` also stands for DAPO with new prompts; `dapo_same_prompt` redraws silent groups from their prompt.
    """
    inner = rates.within()
    p = np.clip(inner.rates, *CLIP)
    chosen = {
        "dr_grpo": ("dr-grpo", size, None),
        "grpo": ("grpo", size, None),
        "grpo_infinite": ("grpo", None, None),
        "dapo_same_prompt": ("dapo", size, REDRAWS),
    }
    masses = {}
    for name, (method, G, redraws) in chosen.items():
        shares = gradient_mass_shares(p, inner.counts, TENTHS, method, G, redraws)
        masses[f"outer_mass/{name}"] = float(shares[0] + shares[-1])
    masses["outer_mass_ratio"] = masses["outer_mass/dapo_same_prompt"] / masses["outer_mass/grpo"]
    masses["outer_mass_to_limit"] = masses["outer_mass/dapo_same_prompt"] / masses["outer_mass/grpo_infinite"]
    still = silent_rate(p, size) ** (REDRAWS + 1)
    return masses | {"silent_after_redraws": float(still @ inner.counts / inner.counts.sum())}
