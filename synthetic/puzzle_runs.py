"""Many small transformers trained by GRPO on Knights & Knaves (`synthetic.puzzle_traces`), one seed a model.

Every run of a seed starts from the same model, taught on traces up to a given solve rate, meets the same training
puzzles in the same order and draws by the same numbers. All seeds are measured on the same held-out puzzles, whose
canonical forms no training puzzle has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_replications.shared.models.many_transformers import Architecture, ManyTransformers, SeedStreams
from grpo_replications.shared.training.many_runs import ManyRuns, Objective, Rollout
from grpo_replications.synthetic.puzzle_traces import Puzzles, Vocabulary, draw_puzzles, mask_of, strict_rewards
from grpo_replications.synthetic.taught_starts import digest_of, kept_starts, lesson_of, taught

START_KEYS = ("people", "max_tokens", "train_puzzles", "width", "layers", "heads", "inner", "initial_scale",
              "start_rate", "pretrain_lr", "pretrain_batch", "pretrain_every", "pretrain_max_steps")  # fmt: skip
"""Settings of `starts`; the same ones, with the seed, always give the same model."""

_PRETRAIN_STREAM, _PROBE_STREAM, _PROMPT_STREAM, _SAMPLING_STREAM, _MEASURING_STREAM = 31, 32, 33, 34, 35
_PROBE = 256  # puzzles of the training side on which the start is looked at
_GREEDY = 1e-4  # temperature at which the most likely token is drawn


def start_of(settings: Any) -> dict[str, float]:
    """What `starts` knows a start by, from settings of an experiment: those named in `START_KEYS`."""
    return {
        "people": settings.people,
        "max_tokens": settings.max_tokens,
        "train_puzzles": settings.train_puzzles,
        "initial_scale": settings.initial_scale,
        **lesson_of(settings),
    }


@dataclass(frozen=True)
class PuzzleResult:
    """Of each seed, (S,): solve rates of held-out puzzles, as shares of sampled answers that are right.

    `start_rate`: before training, one sample a puzzle; `solve_rate`: at the end; `greedy_rate`: of greedy answers, at
    the end. `reward`, `silent`, `length` (rollouts, S): mean reward, share of silent groups, mean tokens of each
    rollout. `grad_norm`, `clipped` (updates, S): norm before clipping, share of clipped tokens.
    """

    start_rate: np.ndarray
    solve_rate: np.ndarray
    greedy_rate: np.ndarray
    reward: np.ndarray
    silent: np.ndarray
    length: np.ndarray
    grad_norm: np.ndarray
    clipped: np.ndarray


@lru_cache(maxsize=8)
def puzzles_of(side: str, count: int, people: int) -> Puzzles:
    """The puzzles of a side, the same for all seeds: "train", "probe" (of the training side) or "held-out"."""
    return draw_puzzles(f"puzzles/{side}/{people}", count, people, side == "held-out")


def shared_puzzles(settings: Mapping[str, Any], held_out: int) -> int:
    """Held-out puzzles whose canonical form is among those that anything is trained or chosen on."""
    people = settings["people"]
    trained = puzzles_of("train", settings["train_puzzles"], people).forms
    trained = trained | puzzles_of("probe", _PROBE, people).forms
    return len(trained & puzzles_of("held-out", held_out, people).forms)


def starts(settings: Mapping[str, Any], seeds: Sequence[int]) -> ManyTransformers:
    """One model per seed, taught on traces of training puzzles until it solves `start_rate` of others by sampling.

    Adam on all tokens of the traces, `pretrain_batch` puzzles a step, each with a trace of at most `max_tokens` that
    begins anywhere. A finished model is kept in the model cache. Raises ReplicationError if a model has not reached
    `start_rate` within `pretrain_max_steps`.
    """
    return kept_starts(
        f"puzzle-traces/{digest_of(settings, START_KEYS)}",
        _new(settings, [0]),
        seeds,
        lambda missing: _taught(settings, missing),
    )


def _new(settings: Mapping[str, Any], seeds: Sequence[int]) -> ManyTransformers:
    sizes = {key: settings[key] for key in ("width", "layers", "heads", "inner")}
    models = ManyTransformers.initial(Architecture(len(Vocabulary(settings["people"])), **sizes), seeds)
    for name, value in models.parameters.items():
        if not name.endswith("norm"):
            value.mul_(settings["initial_scale"])
    return models


def _taught(settings: Mapping[str, Any], seeds: Sequence[int]) -> ManyTransformers:
    people, longest = settings["people"], settings["max_tokens"]
    puzzles = puzzles_of("train", settings["train_puzzles"], people)
    probe = puzzles_of("probe", _PROBE, people)
    streams = {seed: np.random.default_rng([_PRETRAIN_STREAM, seed]) for seed in seeds}

    def losses(models: ManyTransformers, learning: Sequence[int]) -> Tensor:
        drawn = [_batch(puzzles, streams[seed], settings["pretrain_batch"], longest) for seed in learning]
        prompts, traces = (torch.stack(parts) for parts in zip(*drawn, strict=True))
        mask = mask_of(traces)
        logps = models.completion_logits(prompts, traces.unsqueeze(2)).squeeze(2).log_softmax(dim=-1)
        losses = -logps.gather(3, traces.unsqueeze(3)).squeeze(3)
        return (losses * mask).sum(dim=(1, 2)) / mask.sum(dim=(1, 2))

    def rates(models: ManyTransformers, learning: Sequence[int]) -> Tensor:
        uniforms = SeedStreams(learning, _PROBE_STREAM).uniforms(_PROBE, 1, longest)
        return solved(models, probe, uniforms)

    return taught(_new(settings, seeds), seeds, settings, losses, rates)


def _batch(puzzles: Puzzles, stream: np.random.Generator, count: int, longest: int) -> tuple[Tensor, Tensor]:
    """Prompts (count, P) and traces (count, longest), each trace drawn from those of its puzzle that fit."""
    rows = torch.from_numpy(stream.integers(len(puzzles), size=count))
    fitting = (puzzles.lengths[rows] <= longest).long()
    place = (torch.from_numpy(stream.random(count)) * fitting.sum(dim=1)).long()
    begun = (fitting.cumsum(dim=1) == place.unsqueeze(1) + 1).long().argmax(dim=1)
    return puzzles.prompts[rows], puzzles.traces[rows, begun, :longest]


def sampled(models: ManyTransformers, prompts: Tensor, uniforms: Tensor, temperature: float = 1.0) -> Tensor:
    """Completions (S, B, G, T) of prompts (S, B, P) by `uniforms` of their shape, every completion a text of its own.

    With prompts this short that costs less than computing a group as one text.
    """
    apart = prompts.repeat_interleave(uniforms.size(2), dim=1)
    return models.sample(apart, uniforms.flatten(1, 2).unsqueeze(2), temperature).view(uniforms.shape)


def logits_of(models: ManyTransformers, prompts: Tensor, completions: Tensor) -> Tensor:
    """Logits (S, B, G, T, V) of the tokens of completions (S, B, G, T), computed apart as in `sampled`."""
    apart = prompts.repeat_interleave(completions.size(2), dim=1)
    return models.completion_logits(apart, completions.flatten(1, 2).unsqueeze(2)).view(*completions.shape, -1)


@torch.no_grad()
def solved(models: ManyTransformers, puzzles: Puzzles, uniforms: Tensor, temperature: float = 1.0) -> Tensor:
    """Share of right answers over all puzzles, (S,), by `uniforms` (S, N, G, T)."""
    prompts = puzzles.prompts.expand(len(models), -1, -1)
    completions = sampled(models, prompts, uniforms, temperature)
    return strict_rewards(completions, puzzles.solutions.expand(len(models), -1)).mean(dim=(1, 2))


def rollout_of(models: ManyTransformers, prompts: Tensor, solutions: Tensor, uniforms: Tensor) -> Rollout:
    """What the models answer to prompts (S, B, P) by `uniforms` (S, B, G, T), rewarded; cut where all have ended."""
    completions = sampled(models, prompts, uniforms)
    rewards = strict_rewards(completions, solutions)
    mask = mask_of(completions)
    longest = int(mask.sum(dim=-1).max())
    completions, mask = completions[..., :longest].contiguous(), mask[..., :longest].contiguous()
    return Rollout(completions, mask, rewards, lambda these: logits_of(these, prompts, completions))


class PuzzleSupply:
    """Training puzzles of each seed, the same for every configuration."""

    def __init__(self, settings: Mapping[str, Any], seeds: Sequence[int]) -> None:
        self.puzzles = puzzles_of("train", settings["train_puzzles"], settings["people"])
        self.streams = SeedStreams(seeds, _PROMPT_STREAM)

    def next(self, count: int) -> tuple[Tensor, Tensor]:
        """Prompts (S, count, P) and solutions (S, count) of the next rollout."""
        rows = self.streams.integers(len(self.puzzles), count)
        return self.puzzles.prompts[rows], self.puzzles.solutions[rows]


def run_puzzles(
    settings: Mapping[str, Any],
    objective: Callable[[ManyTransformers], Objective],
    lr: float,
    *,
    seeds: Sequence[int],
    prompts_per_step: int,
    group_size: int,
    rollouts: int,
    held_out: int,
    samples: int,
    progress: Callable[[float], object] = lambda done: None,
) -> PuzzleResult:
    """Train one transformer per seed from `starts(settings, seeds)`; `objective`: of these starts.

    At the end `samples` answers to each of `held_out` puzzles are drawn, by the same numbers whatever the objective. A
    seed's run depends on the seed alone, up to rounding: how far rollouts are cut depends on the others of its stack.
    """
    models = starts(settings, seeds)
    runs = ManyRuns(models, objective(models), lr)
    supply, streams = PuzzleSupply(settings, seeds), SeedStreams(seeds, _SAMPLING_STREAM)
    measured = puzzles_of("held-out", held_out, settings["people"])
    names = ("reward", "silent", "length", "grad_norm", "clipped")
    made: dict[str, list[Tensor]] = {name: [] for name in names}
    tokens = settings["max_tokens"]
    uniforms = SeedStreams(seeds, _MEASURING_STREAM).uniforms(held_out, samples, tokens)
    rates = {"start_rate": solved(models, measured, uniforms[:, :, :1])}
    for step in range(rollouts):
        prompts, solutions = supply.next(prompts_per_step)
        rollout = rollout_of(models, prompts, solutions, streams.uniforms(prompts_per_step, group_size, tokens))
        updates = runs.step(rollout)
        made["reward"].append(updates[0].reward)
        made["silent"].append(updates[0].silent)
        made["length"].append(rollout.mask.sum(dim=3).double().mean(dim=(1, 2)))
        made["grad_norm"] += [update.grad_norm for update in updates]
        made["clipped"] += [update.clipped for update in updates]
        progress((step + 1) / rollouts)
    rates["solve_rate"] = solved(models, measured, uniforms)
    rates["greedy_rate"] = solved(models, measured, uniforms[:, :, :1], _GREEDY)
    trajectories = {name: torch.stack(values).numpy() for name, values in made.items()}
    return PuzzleResult(**{name: rate.numpy() for name, rate in rates.items()}, **trajectories)
