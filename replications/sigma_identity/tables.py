"""The paper's closed forms and tables: Prop. 2, Cor. 1 and 2, silent groups, difficulty weight, and Big-Math.

Every closed form is checked three ways, so that an error in one would show: against arithmetic with 60 digits that
shares no formula with the code but the sum itself; against groups whose rewards are drawn and whose update comes from
the project's advantages and the scores y - p; and against the printed numbers.
"""

from __future__ import annotations

import decimal
import math

import numpy as np

from grpo_replications.replications.sigma_identity.settings import BigMathSettings, ClosedFormsSettings
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.planning.solve_rates import SolveRates, load_solve_rates
from grpo_replications.shared.theory.closed_forms import (
    attenuation,
    difficulty_weight,
    expected_update,
    fidelity,
    gradient_mass_shares,
    group_size_law,
    silent_fraction,
    silent_fraction_without_replacement,
    silent_rate,
    smallest_group_size,
)

FIDELITIES = (90, 95, 99)  # in percent, as the paper's table has them
DIGITS = 60
_COMPLEX_STEP = 1e-30
_EXPANSION_VARIANCE = 50.0  # G p (1-p) at which the order of the expansion's error is measured
EXTREME_AND_MEDIUM = (0.0, 0.1, 0.4, 0.6, 0.9, 1.0)  # no solve rate k/64 lies on an inner edge


def closed_forms(settings: ClosedFormsSettings, seeds: range, context: JobContext) -> list[Row]:
    """All closed forms at one solve rate p; rows without a seed are not random.

    `*_error`: largest relative error over `exact_group_sizes`. `group_size_*` and `group_size_law_*`: smallest G and
    G* for a fidelity in percent. `fidelity` and `attenuation`: exact and expanded, at `group_size`.
    `expansion_order`: by which power of G the expansion's error falls. `monte_carlo_z_*`: distance between the mean of
    `groups` drawn groups of `group_size` and the closed form, in standard errors; `control_*_z`: the same with one
    thing wrong, so that it must be large. Nothing is drawn for p outside [0.01, 0.99]: too few groups are mixed there.
    """
    p, size = settings.p, settings.group_size
    values = {
        **exact_errors(p, settings.exact_group_sizes),
        **_group_sizes(p),
        "fidelity": float(fidelity(p, size)),
        "attenuation": float(attenuation(p, size)),
        "silent_rate": float(silent_rate(p, size)),
        "difficulty_weight": float(difficulty_weight(p)),
        "difficulty_weight_error": difficulty_weight_error(p),
        "objective_gradient_error": objective_gradient_error(p),
        "expansion_order": expansion_order(p),
    }
    rows: list[Row] = [{"metric": name, "value": value} for name, value in values.items()]
    for done, seed in enumerate(seeds if 0.01 <= p <= 0.99 else []):
        context.progress(done / len(seeds))
        scores = monte_carlo(p, size, settings.groups, np.random.default_rng([seed, size]))
        rows += [{"metric": name, "value": value, "seed": seed} for name, value in scores.items()]
    return rows


def exact_errors(p: float, sizes: list[int]) -> dict[str, float]:
    """Largest relative error over the group sizes of the closed forms in float64, against 60 digits.

    The float p counts as the number it is, exactly. Where the exact value is too small for float64 to hold with all its
    digits it is left out. Cost: the sum of the sizes, in decimal operations.
    """
    errors: dict[str, list[float]] = {"expected_update_error": [], "fidelity_error": [], "silent_rate_error": []}
    with decimal.localcontext(decimal.Context(prec=DIGITS)):
        right = decimal.Decimal(p)
        wrong = 1 - right
        for size in sizes:
            update, silent = _decimal_update(right, size), right**size + wrong**size
            pairs = {
                "expected_update_error": [
                    (expected_update(p, size, "grpo"), update),
                    (expected_update(p, size, "dr-grpo"), right * wrong * (size - 1) / size),
                    (expected_update(p, size, "dapo"), update / (1 - silent)),
                    (expected_update(p, size, "dapo", 3), update * (1 - silent**4) / (1 - silent)),
                ],
                "fidelity_error": [(fidelity(p, size), update / (right * wrong).sqrt())],
                "silent_rate_error": [(silent_rate(p, size), silent)],
            }
            for name, checks in pairs.items():
                errors[name] += [
                    float(abs(decimal.Decimal(float(value)) / exact - 1))
                    for value, exact in checks
                    if exact > decimal.Decimal("1e-290")
                ]
    return {name: max(found) for name, found in errors.items()}


def _decimal_update(right: decimal.Decimal, size: int) -> decimal.Decimal:
    """Prop. 2, term by term, at the precision of the context."""
    weight, update = (1 - right) ** size, decimal.Decimal(0)
    for k in range(1, size):
        weight = weight * (size - k + 1) / k * right / (1 - right)
        update += weight * decimal.Decimal(k * (size - k)).sqrt()
    return update / size


def _group_sizes(p: float) -> dict[str, float]:
    sizes = {f"group_size_{percent}": float(smallest_group_size(p, percent / 100)) for percent in FIDELITIES}
    return sizes | {
        f"group_size_law_{percent}": float(group_size_law(p, (100 - percent) / 100)) for percent in FIDELITIES
    }


def difficulty_weight_error(p: float) -> float:
    """Relative distance between w(p) and the derivative of 2 arcsin sqrt(p), taken with a complex step."""
    derivative = (2 * np.arcsin(np.sqrt(p + 1j * _COMPLEX_STEP))).imag / _COMPLEX_STEP
    return abs(float(difficulty_weight(p)) / derivative - 1)


def objective_gradient_error(p: float) -> float:
    """Relative distance, the larger of two: GRPO at infinite G to d/dtheta 2 arcsin sqrt(p), RLOO to dp/dtheta.

    p = sigmoid(theta). RLOO's expected update is Dr. GRPO's at infinite G.
    """
    theta = math.log(p) - math.log1p(-p) + 1j * _COMPLEX_STEP
    rate = 1 / (1 + np.exp(-theta))
    derivatives = [(2 * np.arcsin(np.sqrt(rate))).imag / _COMPLEX_STEP, rate.imag / _COMPLEX_STEP]
    limits = [math.sqrt(p * (1 - p)), float(expected_update(p, 2, "rloo"))]
    return max(abs(limit / derivative - 1) for limit, derivative in zip(limits, derivatives))


def expansion_order(p: float) -> float:
    """-d log|error| / d log G of the expansion of the fidelity (Cor. 1), between two group sizes of ratio two."""
    sizes = round(_EXPANSION_VARIANCE / (p * (1 - p))) * np.array([1, 2])
    error = np.abs(fidelity(p, sizes) - attenuation(p, sizes))
    return float(np.log2(error[0] / error[1]))


def monte_carlo(p: float, size: int, groups: int, generator: np.random.Generator) -> dict[str, float]:
    """Standardized distances between updates of drawn groups and the closed forms, with two controls.

    An update is (1/G) sum of advantage times score y - p, with the advantages of `shared.theory.groups`. Controls: the
    limit of infinite G in place of Prop. 2, and the sample deviation (ddof = 1) in place of the population's.
    """
    from grpo_replications.shared.theory.groups import dr_grpo_advantages, grpo_advantages, is_silent, rloo_advantages

    rewards = (generator.random((groups, size)) < p).astype(np.float64)  # (groups, G)
    scores = rewards - p

    def z(advantages: np.ndarray, expected: float) -> float:
        return _z((advantages * scores).mean(axis=1), expected)

    grpo = grpo_advantages(rewards, ddof=0, eps=0.0)
    return {
        "monte_carlo_z_grpo": z(grpo, float(expected_update(p, size, "grpo"))),
        "monte_carlo_z_dr_grpo": z(dr_grpo_advantages(rewards), float(expected_update(p, size, "dr-grpo"))),
        "monte_carlo_z_rloo": z(rloo_advantages(rewards), float(expected_update(p, size, "rloo"))),
        "monte_carlo_z_silent": _z(is_silent(rewards).astype(np.float64), float(silent_rate(p, size))),
        "control_infinite_group_z": z(grpo, math.sqrt(p * (1 - p))),
        "control_sample_deviation_z": z(
            grpo_advantages(rewards, ddof=1, eps=0.0), float(expected_update(p, size, "grpo"))
        ),
    }


def _z(values: np.ndarray, expected: float) -> float:
    return float((values.mean() - expected) / (values.std(ddof=1) / math.sqrt(len(values))))


def big_math(settings: BigMathSettings, seed: int, context: JobContext) -> list[Row]:
    """Silent groups and gradient mass over a data set's solve rates; nothing is random, so the seed changes nothing.

    `solve_rates` is a source of `shared.planning.solve_rates`. `mass_*` are shares of the expected gradient on extreme
    (p < .1 or > .9) and medium (.4 to .6) prompts at infinite G, `mass_*_finite` at `group_size`; `gradient_mass_*`
    has a row per difficulty tenth (step 0 to 9). `silent_fraction` takes each rate as exact;
    `silent_fraction_without_replacement` draws each group from the rollouts there are.
    """
    rates = load_solve_rates(settings.solve_rates)
    size = settings.group_size
    values = {**_ends(rates), **_silent_fractions(rates, size), **mass_shares(rates, size)}
    rows: list[Row] = [{"metric": name, "value": float(value)} for name, value in values.items()]
    for method in ("grpo", "dr-grpo"):
        for G, suffix in ((None, ""), (size, "_finite")):
            name = f"gradient_mass_{method.replace('-', '_')}{suffix}"
            shares = gradient_mass_shares(rates.rates, rates.counts, 10, method, G)
            rows += [{"metric": name, "value": float(share), "step": tenth} for tenth, share in enumerate(shares)]
    context.progress(1.0)
    return rows


def _ends(rates: SolveRates) -> dict[str, float]:
    never = rates.counts[rates.rates == 0].sum() / rates.problems
    always = rates.counts[rates.rates == 1].sum() / rates.problems
    return {
        "problems": rates.problems,
        "never_solved": never,
        "always_solved": always,
        "silent_at_every_group_size": never + always,
    }


def _silent_fractions(rates: SolveRates, size: int) -> dict[str, float]:
    fractions = {"silent_fraction": float(silent_fraction(rates.rates, rates.counts, size))}
    if rates.samples is not None and size <= rates.samples:
        right = np.rint(rates.rates * rates.samples)
        fractions["silent_fraction_without_replacement"] = float(
            silent_fraction_without_replacement(right, rates.samples, rates.counts, size)
        )
    return fractions


def mass_shares(rates: SolveRates, size: int) -> dict[str, float]:
    """Shares of gradient mass on extreme and medium prompts, and GRPO's over Dr. GRPO's on the extreme ones."""
    shares: dict[str, float] = {}
    for method in ("grpo", "dr-grpo"):
        for G, suffix in ((None, ""), (size, "_finite")):
            bins = gradient_mass_shares(rates.rates, rates.counts, EXTREME_AND_MEDIUM, method, G)
            name = method.replace("-", "_")
            shares[f"mass_extreme_{name}{suffix}"] = float(bins[0] + bins[-1])
            shares[f"mass_medium_{name}{suffix}"] = float(bins[2])
    for suffix in ("", "_finite"):
        extreme, reference = (shares[f"mass_extreme_{name}{suffix}"] for name in ("grpo", "dr_grpo"))
        shares[f"mass_extreme_ratio{suffix}"] = extreme / reference if reference else math.nan
    return shares
