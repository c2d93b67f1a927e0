"""Experiment `silent-forecast`: from the log of a run with G = 8, how many groups are silent at 4, 16, 32, and later?

The policies have solve rates that are known exactly at every step, so that a forecast is compared with the truth and
not with another sample:

- `tree`: small transformers that learn the 2^depth - 1 prompts of the binary tree (`synthetic.tree_task.accepts`) by
  GRPO (`shared.training.many_runs`), from solve rates of k / 2^depth on. Every step draws a group of each prompt, and
  the truth is the mean over all of them;
- `bernoulli-logit`: `prompts` of one logit each with Big-Math's initial rates, all updated at every step; the truth is
  the mean over all of them, and the log holds `groups_logged` groups a step.

Every group size has a run of its own with generators of its own: nothing of what one size draws is seen by another.
All sizes have equally many groups a step.

Two truths for another size G': under the policies that made the log (what groups of G' drawn in the same steps would
have done), and in the run of size G' in the same steps (`own_`), whose policy has learned otherwise. For a later step
the truth is that of the policy of that step. Besides, in every run, the silent
groups are compared with the sum of p^G + (1-p)^G at the exact rates of the prompts and steps that they belong to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from grpo_replications.replications.sigma_identity.forecasts import METHODS, Forecast, at_other_sizes, later
from grpo_replications.replications.sigma_identity.settings import SilentForecastSettings
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.models.many_transformers import ManyTransformers, SeedStreams, draw_index
from grpo_replications.shared.planning.solve_rates import load_solve_rates
from grpo_replications.shared.theory.closed_forms import silent_rate
from grpo_replications.shared.training.many_runs import ManyRuns, Objective, Rollout
from grpo_replications.synthetic.bernoulli_logit import METHODS as UPDATES
from grpo_replications.synthetic.bernoulli_logit import gradient_from_counts, gradient_tables
from grpo_replications.synthetic.tree_task import PATH, accepts, path_ids
from grpo_replications.synthetic.tree_transformers import tree_models

AHEAD = ("persist", "trend")
_SAMPLING_STREAM, _LOGIT_STREAM, _BOOTSTRAP_STREAM = 41, 43, 44


@dataclass(frozen=True)
class History:
    """One run at one size, of one seed. `counts` (steps, groups), `rates` of the same shape: right completions and
    exact p of each logged group; `population` (steps + 1, prompts): exact p before each step and after the last."""

    size: int
    counts: np.ndarray
    rates: np.ndarray
    population: np.ndarray

    def silent_share(self, size: int, start: int, stop: int) -> float:
        """The truth: mean of p^size + (1-p)^size over the prompts and the steps start <= step < stop."""
        return float(np.mean(silent_rate(self.population[start:stop], size)))

    def log(self, start: int, stop: int) -> np.ndarray:
        """Groups with k right, (G + 1,), of steps start <= step < stop."""
        return np.bincount(self.counts[start:stop].ravel(), minlength=self.size + 1)


def silent_forecast(settings: SilentForecastSettings, seeds: range, context: JobContext) -> list[Row]:
    """Rows per seed; see `forecast_rows` and `closed_form_rows`. `solve_rate/G` by step: mean exact p of the runs."""
    run = {"tree": _tree, "bernoulli-logit": _bernoulli_logit}[settings.engine]
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
                    ("silent_share", history.silent_share(size, step, step + 1)),
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
    (mean length of the interval): the policies that made the log, at size G'. `own_coverage`, `own_error`,
    `own_distance`: the run of size G' in the same steps. `ahead_coverage/<method>/h`, `ahead_error`, `ahead_distance`,
    `ahead_width`: the log's own size, h steps later.
    """
    logged, window = histories[settings.logged_size], settings.window
    others = [size for size in settings.group_sizes if size != settings.logged_size]
    generator = np.random.default_rng([_BOOTSTRAP_STREAM, seed])
    scores: dict[str, list[tuple[Forecast, float]]] = {}
    for look in _looks(settings)[1:]:
        by_k = logged.log(look - window, look)
        for method in METHODS:
            for size, made in at_other_sizes(method, by_k, others, settings.draws, generator).items():
                scores.setdefault(f"/{method}/{size}", []).append(
                    (made, logged.silent_share(size, look - window, look))
                )
                own = histories[size].silent_share(size, look - window, look)
                scores.setdefault(f"own_/{method}/{size}", []).append((made, own))
        for ahead in settings.ahead:
            if look < 2 * window or look + ahead > settings.steps:
                continue
            truth = logged.silent_share(settings.logged_size, look + ahead, look + ahead + 1)
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


def _tree(
    settings: SilentForecastSettings, size: int, seeds: range, progress: Callable[[float], None]
) -> list[History]:
    depth = settings.depth
    leaves, numbers = range(2**depth), range(1, 2**depth)
    prompts = torch.tensor([[PATH, *path_ids(k, depth)] for k in numbers]).expand(len(seeds), -1, -1)
    paths = torch.tensor([path_ids(leaf, depth) for leaf in leaves]).expand(len(seeds), len(numbers), -1, -1)
    paid = torch.tensor([[accepts(k, leaf, depth) for leaf in leaves] for k in numbers])
    models = tree_models(list(seeds), width=settings.width, layers=2, heads=2, inner=2 * settings.width)
    runs = ManyRuns(models, Objective(optimizer="adam"), settings.lr)
    streams = SeedStreams(list(seeds), _SAMPLING_STREAM * 1000 + size)
    counts, population = [], []
    for step in range(settings.steps + 1):
        with torch.no_grad():
            logps = models.completion_logits(prompts, paths).double().log_softmax(dim=-1)
            chances = logps.gather(4, paths.unsqueeze(4)).squeeze(4).sum(dim=3).exp()  # (S, B, leaves)
        population.append((chances * paid).sum(dim=2).clamp(max=1.0).numpy())
        if step == settings.steps:
            break
        leaf = draw_index(chances.unsqueeze(2), streams.uniforms(len(numbers), size))
        completions = paths.gather(2, leaf.unsqueeze(3).expand(-1, -1, -1, depth))
        rewards = paid.expand(len(seeds), -1, -1).gather(2, leaf).double()

        def logits(these: ManyTransformers, drawn: torch.Tensor = completions) -> torch.Tensor:
            return these.completion_logits(prompts, drawn)

        runs.step(Rollout(completions, torch.ones_like(completions, dtype=torch.bool), rewards, logits))
        counts.append(rewards.sum(dim=2).long().numpy())
        progress((step + 1) / settings.steps)
    rates = np.stack(population)
    return [History(size, np.stack(counts)[:, i], rates[:-1, i], rates[:, i]) for i in range(len(seeds))]


def _bernoulli_logit(
    settings: SilentForecastSettings, size: int, seeds: range, progress: Callable[[float], None]
) -> list[History]:
    rates = load_solve_rates("big-math")
    inner = (rates.rates > 0) & (rates.rates < 1)
    weights = rates.counts[inner] / rates.counts[inner].sum()
    tables = gradient_tables(UPDATES["grpo"], size)
    groups = settings.groups_logged
    found = []
    for done, seed in enumerate(seeds):
        generator = np.random.default_rng([_LOGIT_STREAM, size, seed])
        # The prompts are the same for every size; what is drawn from them is not.
        start = np.random.default_rng([_LOGIT_STREAM, seed]).choice(rates.rates[inner], settings.prompts, p=weights)
        theta = np.log(start) - np.log1p(-start)
        counts, of_groups, population = [], [], []
        for _ in range(settings.steps):
            p = 1 / (1 + np.exp(-theta))
            k = generator.binomial(size, p)
            logged = generator.choice(settings.prompts, groups, replace=False)
            counts.append(k[logged])
            of_groups.append(p[logged])
            population.append(p)
            theta = theta + settings.lr * gradient_from_counts(p, k, tables)
        population.append(1 / (1 + np.exp(-theta)))
        found.append(History(size, np.stack(counts), np.stack(of_groups), np.stack(population)))
        progress((done + 1) / len(seeds))
    return found
