"""Experiment `silent-forecast`: from the log of a run with G = 8, how many groups are silent at 4, 16, 32, and later?

The policies have solve rates that are known exactly at every step, so that a forecast is compared with the truth and
not with another sample:

- `digit-sums`: small transformers that learn running sums modulo 10 by GRPO (`shared.training.many_runs`); the truth is
  the mean over `measured` problems that never train;
- `bernoulli-logit`: prompts of one logit each with Big-Math's initial rates, all updated at every step; the truth is the
  mean over all of them, and `groups_logged` of their groups a step are the log.

Every group size has a run of its own with generators of its own: nothing of what one size draws is seen by another.
`completions_per_step` is the same for all sizes.

Two truths for another size G': under the policy that made the log (what groups of G' drawn from it now would do), and
in the run of size G' at the same step (`own_`), whose policy has learned otherwise. Besides, in every run, the silent
groups are compared with the sum of p^G + (1-p)^G at the exact rates of the prompts and steps that they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grpo_replications.replications.sigma_identity.forecasts import METHODS, Forecast, at_other_sizes, later
from grpo_replications.replications.sigma_identity.settings import SilentForecastSettings
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.models.many_transformers import ManyTransformers, SeedStreams
from grpo_replications.shared.planning.solve_rates import load_solve_rates
from grpo_replications.shared.theory.closed_forms import silent_rate
from grpo_replications.shared.training.many_runs import ManyRuns, Objective, Rollout
from grpo_replications.synthetic.bernoulli_logit import METHODS as UPDATES
from grpo_replications.synthetic.bernoulli_logit import gradient_from_counts, gradient_tables
from grpo_replications.synthetic.digit_sums import (
    Reward,
    answers_of,
    measuring_problems,
    problem_solve_rates,
    problems,
    starts,
)

AHEAD = ("persist", "trend")
_SAMPLING_STREAM, _PROMPT_STREAM, _LOGIT_STREAM, _BOOTSTRAP_STREAM = 41, 42, 43, 44


@dataclass(frozen=True)
class History:
    """One run at one size, of one seed. `counts` (steps, groups), `rates` of the same shape: right completions and exact
    p of each logged group; `population` (steps + 1, problems): exact p before each step and after the last, where
    looked at, and NaN elsewhere."""

    size: int
    counts: np.ndarray
    rates: np.ndarray
    population: np.ndarray

    def silent_share(self, size: int, step: int) -> float:
        """The truth: mean of p^size + (1-p)^size before `step`."""
        return float(np.mean(silent_rate(self.population[step], size)))

    def log(self, start: int, stop: int) -> np.ndarray:
        """Groups with k right, (G + 1,), of steps start <= step < stop."""
        return np.bincount(self.counts[start:stop].ravel(), minlength=self.size + 1)


def silent_forecast(settings: SilentForecastSettings, seeds: range, context: JobContext) -> list[Row]:
    """Rows per seed; see `forecast_rows` and `closed_form_rows`. `solve_rate/G` by step: mean exact p of the runs."""
    run = {"digit-sums": _digit_sums, "bernoulli-logit": _bernoulli_logit}[settings.engine]
    histories: dict[int, list[History]] = {}
    for i, size in enumerate(settings.group_sizes):
        histories[size] = run(settings, size, seeds, lambda done, i=i: context.progress(_share(i + done, settings)))
    rows: list[Row] = []
    for position, seed in enumerate(seeds):
        own = {size: found[position] for size, found in histories.items()}
        values = closed_form_rows(own) | forecast_rows(settings, own, seed)
        rows += [{"metric": metric, "value": float(v), "seed": seed} for metric, v in values.items() if np.isfinite(v)]
        for size, history in own.items():
            rows += [
                {"metric": f"{name}/{size}", "value": value, "seed": seed, "step": step}
                for step in _looks(settings)
                for name, value in (
                    ("solve_rate", float(history.population[step].mean())),
                    ("silent_share", history.silent_share(size, step)),
                )
            ]
    return rows


# --- what is measured -------------------------------------------------------------------------------------------------


def closed_form_rows(histories: dict[int, History]) -> dict[str, float]:
    """`silent_gap/G`: share of silent groups of a run minus the mean of p^G + (1-p)^G; `silent_z/G`: over its standard
    deviation given the rates; `control_gap/G`: the same gap at the mean rate of each step, which must not vanish."""
    values = {}
    for size, history in histories.items():
        silent = (history.counts == 0) | (history.counts == size)
        expected = np.asarray(silent_rate(history.rates, size))
        deviation = np.sqrt((expected * (1 - expected)).sum())
        values[f"silent_gap/{size}"] = float((silent - expected).mean())
        values[f"silent_z/{size}"] = float((silent - expected).sum() / deviation) if deviation > 0 else np.nan
        one_rate = np.asarray(silent_rate(history.rates.mean(axis=1), size))
        values[f"control_gap/{size}"] = float(silent.mean() - one_rate.mean())
    return values


def forecast_rows(settings: SilentForecastSettings, histories: dict[int, History], seed: int) -> dict[str, float]:
    """Over all looks of a seed: how often the interval holds the truth, and how far off the forecast is.

    `coverage/<method>/G'`, `error/..` (mean of forecast minus truth), `distance/..` (mean absolute error), `width/..`
    (mean length of the interval): the same policy at size G'. `own_coverage`, `own_error`, `own_distance`: the run of
    size G' at the same step. `ahead_coverage/<method>/h`, `ahead_error`, `ahead_distance`, `ahead_width`: the log's own
    size, h steps later.
    """
    logged, window = histories[settings.logged_size], settings.window
    others = [size for size in settings.group_sizes if size != settings.logged_size]
    generator = np.random.default_rng([_BOOTSTRAP_STREAM, seed])
    scores: dict[str, list[tuple[Forecast, float]]] = {}
    for look in _looks(settings)[1:]:
        by_k = logged.log(look - window, look)
        for method in METHODS:
            for size, made in at_other_sizes(method, by_k, others, settings.draws, generator).items():
                scores.setdefault(f"/{method}/{size}", []).append((made, logged.silent_share(size, look)))
                own = histories[size].silent_share(size, look)
                scores.setdefault(f"own_/{method}/{size}", []).append((made, own))
        for ahead in settings.ahead:
            if look < 2 * window or look + ahead > settings.steps:
                continue
            truth = logged.silent_share(settings.logged_size, look + ahead)
            for method in AHEAD:
                made = later(method, logged.log(look - 2 * window, look - window), by_k, window, ahead)
                scores.setdefault(f"ahead_/{method}/{ahead}", []).append((made, truth))
    return {key: value for name, pairs in scores.items() for key, value in _scored(name, pairs).items()}


def _scored(name: str, pairs: list[tuple[Forecast, float]]) -> dict[str, float]:
    prefix, _, rest = name.partition("/")
    off = np.array([made.value - truth for made, truth in pairs])
    values = {
        "coverage": np.mean([made.covers(truth) for made, truth in pairs]),
        "error": off.mean(),
        "distance": np.abs(off).mean(),
        "width": np.mean([made.high - made.low for made, _ in pairs]),
    }
    return {f"{prefix}{metric}/{rest}": float(value) for metric, value in values.items()}


def _looks(settings: SilentForecastSettings) -> list[int]:
    """Steps whose policy is looked at: the start, and the end of every window."""
    return list(range(0, settings.steps + 1, settings.window))


def _share(done: float, settings: SilentForecastSettings) -> float:
    return done / len(settings.group_sizes)


# --- the two kinds of policy ------------------------------------------------------------------------------------------

_SEEDS_PER_STACK = 32  # affects speed only, never a result


def _digit_sums(
    settings: SilentForecastSettings, size: int, seeds: range, progress: Callable[[float], None]
) -> list[History]:
    found: list[History] = []
    for start in range(0, len(seeds), _SEEDS_PER_STACK):
        block = list(seeds[start : start + _SEEDS_PER_STACK])
        recorded = list(_sums_steps(settings, size, block, progress))
        counts, rates, population = (np.stack(part) for part in zip(*recorded, strict=True))
        # The last record is of the policy after the last step, which samples nothing.
        found += [History(size, counts[:-1, i], rates[:-1, i], population[:, i]) for i in range(len(block))]
    return found


def _sums_steps(
    settings: SilentForecastSettings, size: int, seeds: list[int], progress: Callable[[float], None]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Counts and rates (S, groups) of each step's groups, population (S, measured); one more after the last step."""
    start = settings.start
    models = starts(start, seeds)
    runs = ManyRuns(models, Objective(optimizer="adam"), settings.lr)
    count, terms = settings.completions_per_step // size, start["terms"]
    streams = SeedStreams(seeds, _SAMPLING_STREAM * 1000 + size)
    of_prompts = [np.random.default_rng([_PROMPT_STREAM, size, seed]) for seed in seeds]
    measured = measuring_problems(seeds, settings.measured, terms)
    looks, reward = set(_looks(settings)), Reward()
    unknown = np.full((len(seeds), settings.measured), np.nan)
    for step in range(settings.steps + 1):
        population = problem_solve_rates(models, measured).numpy() if step in looks else unknown
        if step == settings.steps:
            yield np.zeros((len(seeds), count), dtype=int), np.zeros((len(seeds), count)), population
            return
        prompts = problems(of_prompts, count, terms, held_out=False)
        rates = problem_solve_rates(models, prompts).numpy()
        completions = models.sample(prompts, streams.uniforms(count, size, terms), runs.objective.temperature)
        rewards = reward(completions, answers_of(prompts))

        def logits(these: ManyTransformers, prompts: torch.Tensor = prompts, drawn: torch.Tensor = completions) -> Any:
            return these.completion_logits(prompts, drawn)

        runs.step(Rollout(completions, torch.ones_like(completions, dtype=torch.bool), rewards, logits))
        yield rewards.sum(dim=2).round().long().numpy(), rates, population
        progress((step + 1) / settings.steps)


def _bernoulli_logit(
    settings: SilentForecastSettings, size: int, seeds: range, progress: Callable[[float], None]
) -> list[History]:
    rates = load_solve_rates("big-math")
    inner = (rates.rates > 0) & (rates.rates < 1)
    weights = rates.counts[inner] / rates.counts[inner].sum()
    tables = gradient_tables(UPDATES["grpo"], size)
    groups = settings.completions_per_step // size
    found = []
    for done, seed in enumerate(seeds):
        generator = np.random.default_rng([_LOGIT_STREAM, size, seed])
        # The prompts are the same for every size; what is drawn from them is not.
        start = np.random.default_rng([_LOGIT_STREAM, seed]).choice(rates.rates[inner], settings.measured, p=weights)
        theta = np.log(start) - np.log1p(-start)
        counts, of_groups, population = [], [], []
        for _ in range(settings.steps):
            p = 1 / (1 + np.exp(-theta))
            k = generator.binomial(size, p)
            logged = generator.choice(settings.measured, groups, replace=False)
            counts.append(k[logged])
            of_groups.append(p[logged])
            population.append(p)
            theta = theta + settings.lr * gradient_from_counts(p, k, tables)
        population.append(1 / (1 + np.exp(-theta)))
        found.append(History(size, np.stack(counts), np.stack(of_groups), np.stack(population)))
        progress((done + 1) / len(seeds))
    return found
