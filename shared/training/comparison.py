"""One training run of a comparison: a method from a given start, looked at on the way; every method goes through it.

Methods of a comparison start from the same model, see the same prompts in the same order and have the same sampling
seed. Time is counted in rollouts: a method that makes two optimizer steps on every rollout (Lopti) is compared at equal
samples, and its curves have the same abscissa as the others'.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_replications.shared.grading.rewards import RewardFunction
from grpo_replications.shared.models.evaluation import greedy_accuracy
from grpo_replications.shared.training.run import passes, run_training
from grpo_replications.shared.training.settings import MethodSettings, TrainingSettings

Look = Callable[[Any], Mapping[str, float]]
"""Measures a policy: metrics by name. It must draw nothing from torch's global generator."""


@dataclass(frozen=True)
class MethodRun:
    """What a method's run left.

    `curves`: each metric of the look by name, [(rollout, value)] from the start (unless looked at only at the end) to
    the end. `history`: one dictionary per optimizer step, TRL's names. `group_log`: the file of all groups.
    """

    curves: dict[str, list[tuple[int, float]]]
    history: list[dict[str, Any]]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    group_log: Path

    def values(self, name: str) -> list[float]:
        """A curve without its abscissa."""
        return [value for _, value in self.curves[name]]

    def final(self, name: str) -> float:
        """The last value of a curve."""
        return self.curves[name][-1][1]

    def mean(self, name: str) -> float:
        """The mean over all looks: the area under the curve."""
        return statistics.fmean(self.values(name))

    def peak(self, name: str) -> tuple[int, float]:
        """The highest value of a curve and the first rollout that reaches it."""
        best = max(self.values(name))
        return next(place for place in self.curves[name] if place[1] == best)


def run_method(
    settings: MethodSettings,
    seed: int,
    start: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    train: Dataset,
    rewards: Sequence[RewardFunction],
    look: Look | None = None,
    *,
    rollouts: int,
    eval_every: int = 0,
    directory: str | Path,
    progress: Callable[[float], None] | None = None,
) -> MethodRun:
    """Train the model of `start` by the settings' method on `rollouts` rollouts, looking every `eval_every` of them.

    `look(policy)` is called before the first step, every
    `eval_every` rollouts and at the end; with `eval_every = 0` at the end only. Two looks at the same step are one.
    `directory` gets the group log. Raises as `run_training` does. Changes the model of `start`.
    """
    model, tokenizer = start
    repeats = passes(settings)
    run = run_training(
        TrainingSettings.of(settings, steps=rollouts * repeats),
        seed,
        train,
        rewards,
        directory=directory,
        model=model,
        tokenizer=tokenizer,
        observe=None if look is None else lambda policy, _: dict(look(policy)),
        observe_every=eval_every * repeats,
        progress=progress,
    )
    looks = {step // repeats: seen for step, seen in run.observations}
    if look is not None and not looks:
        looks = {rollouts: dict(look(run.model))}
    names = next(iter(looks.values()), {})
    curves = {name: [(place, float(seen[name])) for place, seen in looks.items()] for name in names}
    return MethodRun(curves, run.history, run.model, run.tokenizer, run.group_log)


def accuracies(
    tokenizer: PreTrainedTokenizerBase,
    sets: Mapping[str, Dataset],
    rewards: Sequence[RewardFunction],
    *,
    max_new_tokens: int,
    batch_size: int,
    precision: str,
) -> Look:
    """A look that decodes every set greedily: `<set>_accuracy`, the share of problems that the first reward pays."""

    def look(policy: Any) -> dict[str, float]:
        return {
            f"{name}_accuracy": greedy_accuracy(
                policy,
                tokenizer,
                problems,
                rewards,
                max_new_tokens=max_new_tokens,
                batch_size=batch_size,
                precision=precision,
            ).estimate.value
            for name, problems in sets.items()
        }

    return look
