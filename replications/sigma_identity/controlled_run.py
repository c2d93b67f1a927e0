"""Experiments `controlled-run` and `controlled-group-size`: Bernoulli-logit prompts with real solve rates, many seeds.

The paper's run: 6,000 prompts whose initial p is drawn from the Big-Math rates strictly between 0 and 1 and clipped to
[.02, .98]; G = 8; 150 steps; theta <- theta + 0.5 g; DAPO draws a silent group up to three more times. It reports one
seed. Here a job runs all seeds of one method and setting.

"The hardest quartile" (p at most the 25 % quantile) needs care: initial rates are multiples of 1/64, and the quantile
of a draw of prompts is 6/64 or 7/64 as chance has it, so the set of hardest prompts jumps between two sets of different
size. Each seed reports the largest rate in its set, the set's size, and the result under other readings of the words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_replications.replications.sigma_identity.settings import ControlledRunSettings, ControlledSettings
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.planning.solve_rates import SolveRates, load_solve_rates
from grpo_replications.shared.theory.closed_forms import expected_update, silent_rate
from grpo_replications.synthetic.bernoulli_logit import (
    METHODS,
    Method,
    Trajectories,
    mean_field,
    simulate,
    with_redraws,
)

PAPER_HARDEST = {"grpo": 0.99, "dr-grpo": 0.88}
PAPER_SETTINGS = {"prompts": 6000, "group_size": 8, "steps": 150, "lr": 0.5}
QUARTILE = 0.25
BINS = 10
DECIMALS = 6
SEEDS_AT_ONCE = 20  # held in memory together; affects nothing else
_INITIAL_RATES, _TIES = 21, 22  # first words of the seed sequences of the prompts drawn and of ties between them

READINGS = {
    "hardest_final": "p at most the quantile (the paper's words)",
    "hardest_final_below": "p strictly below the quantile",
    "hardest_final_quarter": "exactly a quarter of the prompts by rank, ties at random",
}

RUN_METRICS = (
    *READINGS,
    *("hardest_rate", "hardest_share", "final_mean_p", "silent_r2", "samples_ratio", "identity_error"),
    *("outer_mass", "outer_mass_expected", "outer_mass_error"),
    *("steps_to_target", "samples_to_target", "mean_p_at_steps", "mean_p_at_samples"),
)
GROUP_SIZE_METRICS = (
    *("fidelity", "fidelity_expected", "fidelity_error", "steps_to_target", "samples_to_target"),
    *("mean_p_at_samples", "hardest_final", "identity_error"),
)


def controlled_run(settings: ControlledRunSettings, seeds: range, context: JobContext) -> list[Row]:
    """One method and setting of the controlled run, all seeds.

    Settings: `method`, `group_size`, `clip` (p to [clip, 1 - clip]; 0 leaves it), `rates` (see
    `shared.planning.solve_rates.load_solve_rates`), `prompts`, `steps`, `lr`, `max_redraws` (of DAPO), `target_p`,
    `equal_steps` and `equal_samples` (completions per prompt), at which speeds are compared; `curve_every` (steps
    between the points of the mean curves).

    Rows per seed, p meaning solve rates: see `seed_rows`. Rows of no seed: see `summary_rows` and `curve_rows`.
    Cost: 50 to 120 ms a seed at the paper's settings.
    """
    rates, method = _inner_rates(settings.rates), _method(settings)
    initial, parts, rows = _all_seeds(settings, method, rates, seeds, context, RUN_METRICS)
    final, first_mass = (np.concatenate(arrays) for arrays in zip(*((r.final_p, r.gradient_mass[0]) for r in parts)))
    path = mean_field(_clipped(rates.rates, settings), method, **_dynamics(settings))
    rows += summary_rows(settings, rates, path, initial, final, rows)
    return rows + bin_rows(settings, method, rates, first_mass) + curve_rows(settings, rates, path, parts)


def controlled_group_size(settings: ControlledSettings, seeds: range, context: JobContext) -> list[Row]:
    """The same run for one method and group size, all seeds; only what speaks about the group size is reported.

    Settings as for `controlled_run`, without `curve_every`. Rows per seed: GROUP_SIZE_METRICS, see `seed_rows`.
    """
    rates, method = _inner_rates(settings.rates), _method(settings)
    return _all_seeds(settings, method, rates, seeds, context, GROUP_SIZE_METRICS)[2]


def draw_initial_rates(rates: SolveRates, prompts: int, seed: int) -> np.ndarray:
    """Solve rates of one seed's prompts before clipping, drawn with replacement: (prompts,)."""
    generator = np.random.default_rng(np.random.SeedSequence([_INITIAL_RATES, seed]))
    return generator.choice(rates.rates, size=prompts, p=rates.counts / rates.counts.sum())


def hardest_sets(rates: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """The hardest quartile under each reading of READINGS: rates (M,) -> bool (M,) by reading."""
    threshold = np.quantile(rates, QUARTILE)
    ties = np.random.default_rng(np.random.SeedSequence([_TIES, seed])).random(len(rates))
    quarter = np.zeros(len(rates), dtype=bool)
    quarter[np.lexsort((ties, rates))[: round(QUARTILE * len(rates))]] = True
    sets = {
        "hardest_final": rates <= threshold,
        "hardest_final_below": rates < threshold,
        "hardest_final_quarter": quarter,
    }
    return {name: chosen for name, chosen in sets.items() if chosen.any()}


def seed_rows(
    settings: ControlledSettings, method: Method, initial: np.ndarray, result: Trajectories, s: int, seed: int
) -> list[Row]:
    """What is measured in one seed, number s of the result.

    hardest_final and its variants: mean p of the hardest prompts after the last step (READINGS).
    hardest_rate, hardest_share: the largest initial rate among them, and their share of all prompts.
    silent_r2: R^2 of the silent fraction of each step against the mean of p^G + (1-p)^G.
    outer_mass, outer_mass_expected, outer_mass_error: share of |g| in the first and last of ten bins of initial p at
    the first step; the closed form for this seed's rates; the distance of the two.
    samples_ratio: completions drawn over G per prompt-step.
    steps_to_target, samples_to_target: until the mean p reaches the target; left out where it does not.
    mean_p_at_steps, mean_p_at_samples: mean p there.
    fidelity, fidelity_expected, fidelity_error: mean g of the first step over its closed form for infinite G,
    sqrt(p (1-p)) or p (1-p); the same from the closed form at this G; the distance of the two.
    identity_error: largest |g - gain (s+ - s-)| of all prompts and steps.
    """
    sets = hardest_sets(initial, seed)
    silent, predicted = result.silent[:, s], result.predicted_silent[:, s]
    mass, expected = result.gradient_mass[0, s], _bin_mass(settings, method, initial, np.ones(len(initial)))
    mean_p = result.mean_p[:, s]
    spent = np.concatenate([[0.0], np.cumsum(result.samples[:, s])])
    outer, outer_expected = _outer_share(mass), _outer_share(expected)
    limit = _limit(method, _clipped(initial, settings)).sum()
    measured = {
        **{name: result.final_p[s][chosen].mean() for name, chosen in sets.items()},
        "hardest_rate": initial[sets["hardest_final"]].max(),
        "hardest_share": sets["hardest_final"].mean(),
        "final_mean_p": mean_p[-1],
        "silent_r2": r_squared(silent, predicted),
        "outer_mass": outer,
        "outer_mass_expected": outer_expected,
        "outer_mass_error": abs(outer - outer_expected),
        "samples_ratio": spent[-1] / (settings.steps * settings.group_size),
        "steps_to_target": first_reach(np.arange(len(mean_p)), mean_p, settings.target_p),
        "samples_to_target": first_reach(spent, mean_p, settings.target_p),
        "mean_p_at_steps": _at(settings.equal_steps, np.arange(len(mean_p)), mean_p),
        "mean_p_at_samples": _at(settings.equal_samples, spent, mean_p),
        "fidelity": mass.sum() / limit,
        "fidelity_expected": expected.sum() / limit,
        "fidelity_error": abs(mass.sum() - expected.sum()) / limit,
        "identity_error": result.identity_error[:, s].max(),
    }
    return [
        {"metric": name, "seed": seed, "value": float(value if name == "identity_error" else round(value, DECIMALS))}
        for name, value in measured.items()
        if not math.isnan(value)
    ]


def summary_rows(
    settings: ControlledSettings,
    rates: SolveRates,
    path: np.ndarray,
    initial: np.ndarray,
    final: np.ndarray,
    rows: Sequence[Row],
) -> list[Row]:
    """What sums up all seeds: initial rates and final p (S, M), and the mean-field path (T + 1, n) of all n rates.

    final_p_from_K: mean final p of the prompts that started at K/64 of the Big-Math rates, for the hardest eight;
    mean_field_final_p_from_K: the same without sampling noise. mean_field_hardest_final and
    mean_field_steps_to_target: the mean-field path of the whole distribution of rates, the hardest quartile taken from
    it. Where the paper has a number: within_paper_<reading>, the share of seeds that round to it,
    below_paper_<reading>, the share that round to less.
    """
    weights, hardest = _weights(rates)
    mean_path = path @ weights
    measured = {
        "mean_field_hardest_final": path[-1][hardest] @ weights[hardest] / weights[hardest].sum(),
        "mean_field_final_mean_p": mean_path[-1],
        "mean_field_steps_to_target": first_reach(np.arange(len(path)), mean_path, settings.target_p),
    }
    for rank in range(min(8, len(rates.rates))):
        started = initial == rates.rates[rank]
        if started.any():
            measured[f"final_p_from_{rank + 1}"] = final[started].mean()
        measured[f"mean_field_final_p_from_{rank + 1}"] = path[-1][rank]
    paper = PAPER_HARDEST.get(settings.method)
    if paper is not None and _size_of(settings) == PAPER_SETTINGS:
        for reading in READINGS:
            values = np.round([row["value"] for row in rows if row["metric"] == reading], 2)
            measured[f"within_paper_{reading}"] = np.mean(values == paper)
            measured[f"below_paper_{reading}"] = np.mean(values < paper)
    return [{"metric": name, "value": float(value)} for name, value in measured.items() if not math.isnan(value)]


def bin_rows(settings: ControlledSettings, method: Method, rates: SolveRates, mass: np.ndarray) -> list[Row]:
    """Share of |g| at the first step by bin of initial p (`step` is the bin): mass (S, BINS).

    mass_share, mass_share_low and mass_share_high: mean and central 95 % over seeds. mass_share_expected: closed form.
    """
    shares = mass / mass.sum(axis=1, keepdims=True)
    expected = _bin_mass(settings, method, rates.rates, rates.counts)
    columns = {
        "mass_share": shares.mean(axis=0),
        "mass_share_low": np.quantile(shares, 0.025, axis=0),
        "mass_share_high": np.quantile(shares, 0.975, axis=0),
        "mass_share_expected": expected / expected.sum(),
    }
    return [
        {"metric": name, "step": number, "value": float(value)}
        for name, values in columns.items()
        for number, value in enumerate(values)
    ]


def curve_rows(
    settings: ControlledRunSettings, rates: SolveRates, path: np.ndarray, parts: Sequence[Trajectories]
) -> list[Row]:
    """Curves over steps: means over seeds, the hardest quartile's central 95 %, and lines of the mean-field path.

    curve_mean_p, curve_hardest (with _low and _high), curve_silent, curve_predicted_silent, curve_samples;
    mean_field_mean_p, mean_field_hardest, mean_field_silent.
    """
    steps = np.arange(0, settings.steps + 1, settings.curve_every)
    path = path[steps]
    weights, hardest = _weights(rates)
    tracked = np.concatenate([part.tracked_p for part in parts], axis=1)[steps]
    mean_p = np.concatenate([part.mean_p for part in parts], axis=1)[steps]
    before_end = steps[steps < settings.steps]
    silent, predicted, samples = (
        np.concatenate([getattr(part, name) for part in parts], axis=1)[before_end].mean(axis=1)
        for name in ("silent", "predicted_silent", "samples")
    )
    curves = {
        "curve_mean_p": mean_p.mean(axis=1),
        "curve_hardest": tracked.mean(axis=1),
        "curve_hardest_low": np.quantile(tracked, 0.025, axis=1),
        "curve_hardest_high": np.quantile(tracked, 0.975, axis=1),
        "curve_silent": silent,
        "curve_predicted_silent": predicted,
        "curve_samples": samples,
        "mean_field_mean_p": path @ weights,
        "mean_field_hardest": path[:, hardest] @ weights[hardest] / weights[hardest].sum(),
        "mean_field_silent": np.asarray(silent_rate(path, settings.group_size)) @ weights,
    }
    return [
        {"metric": name, "step": int(step), "value": float(value)}
        for name, values in curves.items()
        for step, value in zip(steps, values)
    ]


def r_squared(values: np.ndarray, prediction: np.ndarray) -> float:
    """1 - sum (values - prediction)^2 / sum (values - mean)^2, no line fitted; nan where the values do not vary."""
    spread = ((values - values.mean()) ** 2).sum()
    return float(1.0 - ((values - prediction) ** 2).sum() / spread) if spread > 0 else math.nan


def first_reach(x: np.ndarray, y: np.ndarray, target: float) -> float:
    """x at which y first reaches the target, on the straight line between two points; nan where it never does."""
    reached = np.flatnonzero(y >= target)
    if not len(reached):
        return math.nan
    i = int(reached[0])
    return float(x[0] if i == 0 else np.interp(target, y[i - 1 : i + 1], x[i - 1 : i + 1]))


def _at(place: float, x: np.ndarray, y: np.ndarray) -> float:
    """y at a place, on straight lines between the points; nan beyond the last one."""
    return float(np.interp(place, x, y)) if place <= x[-1] else math.nan


def _all_seeds(
    settings: ControlledSettings,
    method: Method,
    rates: SolveRates,
    seeds: range,
    context: JobContext,
    metrics: Sequence[str],
) -> tuple[np.ndarray, list[Trajectories], list[Row]]:
    """Run all seeds, some at a time: initial rates (S, M), the runs one after the other, and rows of the metrics."""
    initial, parts, rows = [], [], []
    for first in range(seeds.start, seeds.stop, SEEDS_AT_ONCE):
        chunk = range(first, min(first + SEEDS_AT_ONCE, seeds.stop))
        drawn = np.stack([draw_initial_rates(rates, settings.prompts, seed) for seed in chunk])
        result = _run(settings, method, drawn, chunk)
        found = [row for s, seed in enumerate(chunk) for row in seed_rows(settings, method, drawn[s], result, s, seed)]
        rows += [row for row in found if row["metric"] in metrics]
        initial.append(drawn)
        parts.append(result)
        context.progress((chunk.stop - seeds.start) / len(seeds))
    return np.concatenate(initial), parts, rows


def _run(settings: ControlledSettings, method: Method, drawn: np.ndarray, seeds: range) -> Trajectories:
    tracked = np.stack([hardest_sets(rates, seed)["hardest_final"] for rates, seed in zip(drawn, seeds)])
    try:
        return simulate(
            _clipped(drawn, settings),
            {settings.method: method},
            seeds=seeds,
            bins=BINS,
            tracked=tracked,
            **_dynamics(settings),
        )[settings.method]
    except ValueError as error:
        raise ReplicationError(f"The controlled run: {error}. Correct it in profiles.toml.") from error


def _size_of(settings: ControlledSettings) -> dict[str, Any]:
    return {"prompts": settings.prompts, **_dynamics(settings)}


def _dynamics(settings: ControlledSettings) -> dict[str, Any]:
    return {"group_size": settings.group_size, "steps": settings.steps, "lr": settings.lr}


def _method(settings: ControlledSettings) -> Method:
    method = METHODS[settings.method]
    return with_redraws(method, settings.max_redraws) if settings.method == "dapo" else method


def _inner_rates(source: str) -> SolveRates:
    """Rates strictly between 0 and 1: the others never give a gradient."""
    rates = load_solve_rates(source).within()
    if not rates.problems:
        raise ReplicationError(f"No problem of {source} has a solve rate strictly between 0 and 1.")
    return rates


def _clipped(rates: np.ndarray, settings: ControlledSettings) -> np.ndarray:
    return np.clip(rates, settings.clip, 1.0 - settings.clip)


def _weights(rates: SolveRates) -> tuple[np.ndarray, np.ndarray]:
    """Share of each rate (n,), and which make the hardest quartile: up to the one that reaches the 25 % quantile."""
    weights = rates.counts / rates.counts.sum()
    return weights, np.cumsum(weights) - weights < QUARTILE


def _bin_mass(settings: ControlledSettings, method: Method, rates: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Expected |g| of the first step by bin of initial p: rates and counts (n,) -> (BINS,).

    No update of a Bernoulli-logit prompt is negative, so E|g| = E[g].
    """
    levels, place = np.unique(_clipped(rates, settings), return_inverse=True)
    redraws = method.max_redraws if method.closed_form == "dapo" else None
    update = np.asarray(expected_update(levels, settings.group_size, method.closed_form, redraws))
    bins = np.minimum((levels * BINS).astype(int), BINS - 1)
    return np.bincount(bins, weights=update * np.bincount(place, weights=counts), minlength=BINS)


def _limit(method: Method, p: np.ndarray) -> np.ndarray:
    """Expected update of infinitely large groups."""
    variance = p * (1.0 - p)
    return np.sqrt(variance) if method.closed_form in ("grpo", "dapo") else variance


def _outer_share(mass: np.ndarray) -> float:
    return float((mass[0] + mass[-1]) / mass.sum())
