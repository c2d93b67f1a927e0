"""Many small transformers trained by GRPO on running sums modulo 10 (`synthetic.digit_sums`), one seed a model.

Every run of a seed starts from the same taught model, meets the same training problems in the same order and is
measured on the same held-out problems; what differs between configurations is what they do with a rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grpo_replications.shared.models.many_transformers import ManyTransformers, SeedStreams
from grpo_replications.shared.training.many_runs import ManyRuns, Objective, Rollout
from grpo_replications.synthetic.digit_sums import Reward, answers_of, measuring_problems, problems, solve_rates, starts

_SAMPLING_STREAM, _PROMPT_STREAM = 1, 14
_SEEDS_PER_STACK = 32  # affects speed only, never a result


@dataclass(frozen=True)
class SumsResult:
    """Trajectories: `solve_rate` (looks, S), exact and on held-out problems, before the steps `looked_at` (looks,).

    `reward`, `silent` (steps, S): mean reward and share of silent groups of each rollout.
    """

    seeds: np.ndarray
    looked_at: np.ndarray
    solve_rate: np.ndarray
    reward: np.ndarray
    silent: np.ndarray

    def steps_to(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Steps until a look first finds `level`, and whether none does, (S,) each; then the number of all steps."""
        reached = self.solve_rate >= level
        censored = ~reached.any(axis=0)
        return np.where(censored, self.looked_at[-1], self.looked_at[reached.argmax(axis=0)]), censored


def run_sums(
    start_settings: Mapping[str, Any],
    reward: Reward,
    objective: Objective,
    lr: float,
    *,
    seeds: Sequence[int],
    prompts_per_step: int,
    group_size: int,
    steps: int,
    look_every: int,
    held_out: int = 512,
    progress: Callable[[float], None] | None = None,
) -> SumsResult:
    """Train one transformer per seed, from `starts(start_settings, seeds)`, and look at it every `look_every` steps.

    `steps` counts rollouts of `prompts_per_step` groups of `group_size`; the last look is after the last of them.
    A seed's run depends on the seed alone. Cost with 8 groups of 16, 6 digits and the default sizes: about 25 ms per
    step and seed on one core, and 40 ms per look at 512 problems.
    """
    blocks = [seeds[i : i + _SEEDS_PER_STACK] for i in range(0, len(seeds), _SEEDS_PER_STACK)]
    results = []
    for number, block in enumerate(blocks):
        runs = ManyRuns(starts(start_settings, block), objective, lr)
        results.append(
            _run_stack(
                runs,
                block,
                reward,
                measuring_problems(block, held_out, start_settings["terms"]),
                (prompts_per_step, group_size, start_settings["terms"]),
                steps,
                look_every,
                lambda done, number=number: progress and progress((number + done) / len(blocks)),
            )
        )
    looked_at = np.append(np.arange(0, steps, look_every), steps)
    columns = [np.concatenate(parts, axis=1) for parts in zip(*results, strict=True)]
    return SumsResult(np.array(list(seeds)), looked_at, *columns)


def _run_stack(
    runs: ManyRuns,
    seeds: Sequence[int],
    reward: Reward,
    measured: torch.Tensor,
    shape: tuple[int, int, int],
    steps: int,
    look_every: int,
    progress: Callable[[float], object],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Solve rates (looks, S), mean rewards and silent shares (steps, S) of one stack."""
    models, (count, group_size, terms) = runs.models, shape
    streams = SeedStreams(seeds, _SAMPLING_STREAM)
    of_prompts = [np.random.default_rng([_PROMPT_STREAM, seed]) for seed in seeds]
    looks, made = [], []
    for step in range(steps):
        if step % look_every == 0:
            looks.append(solve_rates(models, measured).numpy())
        prompts = problems(of_prompts, count, terms, held_out=False)
        completions = models.sample(prompts, streams.uniforms(count, group_size, terms), runs.objective.temperature)
        rewards = reward(completions, answers_of(prompts))

        def logits(these: ManyTransformers, prompts: torch.Tensor = prompts, drawn: torch.Tensor = completions) -> Any:
            return these.completion_logits(prompts, drawn)

        updates = runs.step(Rollout(completions, torch.ones_like(completions, dtype=torch.bool), rewards, logits))
        made.append((updates[0].reward.numpy(), updates[0].silent.numpy()))
        progress((step + 1) / steps)
    looks.append(solve_rates(models, measured).numpy())
    return np.stack(looks), *(np.stack(column) for column in zip(*made, strict=True))
