"""Many small transformers trained by GRPO on running sums modulo 10 (`synthetic.digit_sums`), one seed a model.

Every run of a seed starts from the same taught model, meets the same training problems in the same order and is
measured on the same held-out problems; what differs between configurations is what they do with a rollout. Training
problems are new at every step, or come from a small fixed set, whose own solve rate is then measured as well.
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

_SAMPLING_STREAM, _PROMPT_STREAM, _FIXED_STREAM = 1, 14, 15
_SEEDS_PER_STACK = 32  # affects speed only, never a result


@dataclass(frozen=True)
class SumsResult:
    """Trajectories: `solve_rate` (looks, S), exact and on held-out problems, before the steps `looked_at` (looks,).

    `train_rate` (looks, S): the same of the fixed training problems, nan where they are new at every step. `reward`,
    `silent` (steps, S): mean reward and share of silent groups of each rollout. `grad_norm` (updates, S): before
    clipping.
    """

    seeds: np.ndarray
    looked_at: np.ndarray
    solve_rate: np.ndarray
    train_rate: np.ndarray
    reward: np.ndarray
    silent: np.ndarray
    grad_norm: np.ndarray

    def steps_to(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Steps until a look first finds `level`, and whether none does, (S,) each; then the number of all steps."""
        reached = self.solve_rate >= level
        censored = ~reached.any(axis=0)
        return np.where(censored, self.looked_at[-1], self.looked_at[reached.argmax(axis=0)]), censored


class PromptSupply:
    """Training prompts of each seed, the same for every configuration: new ones, or draws from `fixed` (S, N, P)."""

    def __init__(self, seeds: Sequence[int], terms: int, fixed_count: int = 0) -> None:
        self.terms = terms
        self.generators = [np.random.default_rng([_PROMPT_STREAM, seed]) for seed in seeds]
        self.fixed = None
        if fixed_count:
            makers = [np.random.default_rng([_FIXED_STREAM, seed]) for seed in seeds]
            self.fixed = problems(makers, fixed_count, terms, held_out=False)

    def next(self, count: int) -> torch.Tensor:
        """The prompts of the next rollout, (S, count, P); of a fixed set, without repetition within the rollout."""
        if self.fixed is None:
            return problems(self.generators, count, self.terms, held_out=False)
        drawn = [generator.permutation(self.fixed.size(1))[:count] for generator in self.generators]
        rows = torch.from_numpy(np.stack(drawn)).unsqueeze(2)
        return self.fixed.gather(1, rows.expand(-1, -1, self.fixed.size(2)))


def rollout_of(
    models: ManyTransformers, prompts: torch.Tensor, uniforms: torch.Tensor, reward: Reward, temperature: float = 1.0
) -> Rollout:
    """What the models answer to `prompts` (S, B, P) by `uniforms` (S, B, G, T), rewarded."""
    completions = models.sample(prompts, uniforms, temperature)
    mask = torch.ones_like(completions, dtype=torch.bool)
    rewards = reward(completions, answers_of(prompts))
    return Rollout(completions, mask, rewards, lambda these: these.completion_logits(prompts, completions))


def run_sums(
    start_settings: Mapping[str, Any],
    reward: Reward,
    objective: Objective | Callable[[ManyTransformers, Sequence[int]], Objective],
    lr: float,
    *,
    seeds: Sequence[int],
    prompts_per_step: int,
    group_size: int,
    steps: int,
    look_every: int,
    held_out: int = 512,
    train_problems: int = 0,
    progress: Callable[[float], None] | None = None,
) -> SumsResult:
    """Train one transformer per seed, from `starts(start_settings, seeds)`, and look at it every `look_every` steps.

    `steps` counts rollouts of `prompts_per_step` groups of `group_size`; the last look is after the last of them.
    `objective` may be a function of starts and their seeds, for a method with constants of each start's own.
    `train_problems`: size of a fixed set to train on; 0 for new problems at every step.
    A seed's run depends on the seed alone. Cost with 8 groups of 16, 6 digits and the default sizes: about 25 ms per
    step and seed on one core, and 40 ms per look at 512 problems.
    """
    blocks = [seeds[i : i + _SEEDS_PER_STACK] for i in range(0, len(seeds), _SEEDS_PER_STACK)]
    terms, results = start_settings["terms"], []
    for number, block in enumerate(blocks):
        models = starts(start_settings, block)
        results.append(
            _run_stack(
                ManyRuns(models, objective if isinstance(objective, Objective) else objective(models, block), lr),
                SeedStreams(block, _SAMPLING_STREAM),
                PromptSupply(block, terms, train_problems),
                reward,
                measuring_problems(block, held_out, terms),
                (prompts_per_step, group_size, terms),
                steps,
                look_every,
                lambda done, number=number: progress and progress((number + done) / len(blocks)),
            )
        )
    looked_at = np.append(np.arange(0, steps, look_every), steps)
    columns = {name: np.concatenate([one[name] for one in results], axis=1) for name in results[0]}
    return SumsResult(np.array(list(seeds)), looked_at, **columns)


def _run_stack(
    runs: ManyRuns,
    streams: SeedStreams,
    supply: PromptSupply,
    reward: Reward,
    measured: torch.Tensor,
    shape: tuple[int, int, int],
    steps: int,
    look_every: int,
    progress: Callable[[float], object],
) -> dict[str, np.ndarray]:
    """The trajectories of one stack, by the names of `SumsResult`."""
    models, (count, _, _) = runs.models, shape
    trajectories = ("solve_rate", "train_rate", "reward", "silent", "grad_norm")
    made: dict[str, list[torch.Tensor]] = {name: [] for name in trajectories}

    def look() -> None:
        made["solve_rate"].append(solve_rates(models, measured))
        unknown = torch.full((len(models),), torch.nan)
        made["train_rate"].append(unknown if supply.fixed is None else solve_rates(models, supply.fixed))

    for step in range(steps):
        if step % look_every == 0:
            look()
        prompts, uniforms = supply.next(count), streams.uniforms(*shape)
        updates = runs.step(rollout_of(models, prompts, uniforms, reward, runs.objective.temperature))
        made["reward"].append(updates[0].reward)
        made["silent"].append(updates[0].silent)
        made["grad_norm"] += [update.grad_norm for update in updates]
        progress((step + 1) / steps)
    look()
    return {name: torch.stack(values).numpy() for name, values in made.items()}
