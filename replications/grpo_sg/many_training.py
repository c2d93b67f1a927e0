"""Training many small transformers at once: generalization from few prompts, and every method at its best rate.

A small transformer of each seed is taught running sums modulo 10 up to a given solve rate, then trained by
reinforcement learning, all seeds of a cell at once (`synthetic.digit_runs`); solve rates are exact. The methods of a
seed share start, problems and the numbers that samples are drawn by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grpo_replications.replications.grpo_sg.many_weights import fitted_taus, weighting
from grpo_replications.replications.grpo_sg.settings import ManyTrainingSettings
from grpo_replications.replications.grpo_sg.training_metrics import roughness
from grpo_replications.shared.harness.jobs import JobContext, Row, seed_row
from grpo_replications.shared.models.many_transformers import ManyTransformers
from grpo_replications.shared.training.many_runs import Objective
from grpo_replications.synthetic.digit_runs import SumsResult, run_sums
from grpo_replications.synthetic.digit_sums import Reward, start_of


def many_training(settings: ManyTrainingSettings, seeds: range, context: JobContext) -> list[Row]:
    """A method and a learning rate: every seed's transformer at once.

    Returns per seed `start_solve_rate`, `final_solve_rate` (held-out problems), `reward_mean`, `reward_roughness`,
    `grad_norm_median`, `grad_norm_tail` (99th percentile over median, all updates) and `silent_share`. With a fixed set
    of training problems also `final_train_rate`, `final_gap` (train minus held-out) and `matched_solve_rate`, the
    held-out rate when the rate on the training problems first reaches `train_level` (interpolated between looks; no row
    where it is not reached). With `curves` `solve_rate` and `train_rate` by step.
    """

    def objective(models: ManyTransformers, these: Sequence[int]) -> Objective:
        taus = fitted_taus(models, these, settings.terms)
        method = weighting(settings.method, taus, settings.contrast)
        return Objective(method=method, num_iterations=1 if settings.method == "lopti" else settings.updates)

    result = run_sums(
        start_of(settings),
        Reward(),
        objective,
        settings.lr,
        seeds=seeds,
        prompts_per_step=settings.prompts_per_step,
        group_size=settings.group_size,
        steps=settings.rollouts,
        look_every=settings.look_every,
        held_out=settings.held_out,
        train_problems=settings.train_problems,
        progress=context.progress,
    )
    rows = [
        seed_row(name, value, seed)
        for name, values in _summary(result, settings).items()
        for seed, value in zip(seeds, values, strict=True)
        if math.isfinite(value)
    ]
    for name in ("solve_rate", "train_rate") if settings.curves else ():
        for step, values in zip(result.looked_at, getattr(result, name), strict=True):
            rows += [
                seed_row(name, value, seed, int(step)) for seed, value in zip(seeds, values) if math.isfinite(value)
            ]
    return rows


def _summary(result: SumsResult, settings: ManyTrainingSettings) -> dict[str, np.ndarray]:
    """One number of each seed by metric, (S,); nan where there is none."""
    medians = np.median(result.grad_norm, axis=0)
    medians[medians == 0] = np.nan  # a policy that never gets a reward has no gradient
    return {
        "start_solve_rate": result.solve_rate[0],
        "final_solve_rate": result.solve_rate[-1],
        "final_train_rate": result.train_rate[-1],
        "final_gap": result.train_rate[-1] - result.solve_rate[-1],
        "matched_solve_rate": at_level(result.solve_rate, result.train_rate, settings.train_level),
        "reward_mean": result.reward.mean(axis=0),
        "reward_roughness": np.array([roughness(rewards) for rewards in result.reward.T]),
        "grad_norm_median": medians,
        "grad_norm_tail": np.quantile(result.grad_norm, 0.99, axis=0) / medians,
        "silent_share": result.silent.mean(axis=0),
    }


def at_level(values: np.ndarray, guide: np.ndarray, level: float) -> np.ndarray:
    """`values` (looks, S) where `guide`, of the same shape, first reaches `level`, interpolated; nan where never."""
    found = np.full(values.shape[1], np.nan)
    for s in range(values.shape[1]):
        above = np.flatnonzero(guide[:, s] >= level)
        if len(above):
            i = int(above[0])
            if i == 0:
                found[s] = values[0, s]
                continue
            part = (level - guide[i - 1, s]) / (guide[i, s] - guide[i - 1, s])
            found[s] = values[i - 1, s] + part * (values[i, s] - values[i - 1, s])
    return found
