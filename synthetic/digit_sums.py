"""Running sums modulo 10: a reasoning task of single digits whose solve rate is exact, for many transformers at once.

A problem is `terms + 1` digits; its answer is the running sum of all digits but the first, modulo 10 and started from
the first: x0 x1 x2 = 3 8 9 gives (3 + 8) mod 10 = 1, then (1 + 9) mod 10 = 0. Every token follows from the one before
it and one digit of the problem, so a wrong token early in an answer cannot be made good.

There is one right completion, so the probability of a right one is a product: no draw is needed to measure a policy.
Problems that only measure are told from those that train by a hash of their digits, whatever the seed.

Two rewards: 1 for the right answer and 0 for any other, or the trap of the synthetic tree, where a wrong answer that
begins like the right one earns less than a wrong answer that does not.

Shape legend: S models, B problems, G completions, P = terms + 2 tokens of a prompt, T = terms tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_replications.shared.models.many_transformers import MASKED, Architecture, ManyTransformers
from grpo_replications.synthetic.taught_starts import digest_of, kept_starts, lesson_of, taught

EQUALS = 10
"""Token that ends a problem; digits are tokens 0 to 9."""
VOCABULARY = 11
_HELD_OUT_SHARE = 16  # one problem in so many only measures
_HELD_OUT_STREAM, _PRETRAIN_STREAM, _PROBE_STREAM = 11, 12, 13
_PROBE = 128

START_KEYS = ("terms", "width", "layers", "heads", "inner", "start_rate", "pretrain_lr", "pretrain_batch",
              "pretrain_every", "pretrain_max_steps")  # fmt: skip
"""Settings of `starts`; the same ones, with the seed, always give the same model."""


def start_of(settings: Any) -> dict[str, float]:
    """What `starts` knows a start by, from settings of an experiment: those named in `START_KEYS`."""
    return {"terms": settings.terms, **lesson_of(settings)}


@dataclass(frozen=True)
class Reward:
    """1 for the right answer; `prefix` for a wrong one that shares its first `prefix_length` tokens; else `other`."""

    prefix_length: int = 1
    prefix: float = 0.0
    other: float = 0.0

    def __call__(self, completions: Tensor, answers: Tensor) -> Tensor:
        """Rewards (..., G), float64, of completions (..., G, T) for answers (..., T)."""
        same = completions == answers.unsqueeze(-2)
        begins = same[..., : self.prefix_length].all(dim=-1)
        rewards = torch.full(begins.shape, self.other, dtype=torch.float64)
        return rewards.masked_fill(begins, self.prefix).masked_fill(same.all(dim=-1), 1.0)


def problems(generators: Sequence[np.random.Generator], count: int, terms: int, held_out: bool) -> Tensor:
    """Prompts (S, count, P) from each generator, all of one kind: those that only measure, or those that train."""
    rows = np.stack([_digits(generator, count, terms, held_out) for generator in generators])
    return torch.from_numpy(np.concatenate([rows, np.full((*rows.shape[:2], 1), EQUALS)], axis=2))


def answers_of(prompts: Tensor) -> Tensor:
    """The right completions (..., T) of prompts (..., P)."""
    return prompts[..., :-1].cumsum(dim=-1)[..., 1:] % 10


def is_held_out(digits: np.ndarray) -> np.ndarray:
    """Whether problems of digits (..., terms + 1) only measure: a hash of their digits, one in sixteen."""
    powers = 10 ** np.arange(digits.shape[-1], dtype=np.uint64)
    mixed = (digits.astype(np.uint64) * powers).sum(axis=-1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(40)) % np.uint64(_HELD_OUT_SHARE) == 0


@torch.no_grad()
def solve_rates(models: ManyTransformers, prompts: Tensor) -> Tensor:
    """Exact mean probability of the right answer over problems (S, B, P), float64 (S,). One forward pass."""
    answers = answers_of(prompts)
    logps = models.completion_logits(prompts, answers.unsqueeze(2)).squeeze(2).double().log_softmax(dim=-1)
    return logps.gather(3, answers.unsqueeze(3)).squeeze(3).sum(dim=2).exp().mean(dim=1)


def measuring_problems(seeds: Sequence[int], count: int, terms: int) -> Tensor:
    """The held-out problems of each seed, (S, count, P)."""
    return problems([np.random.default_rng([_HELD_OUT_STREAM, seed]) for seed in seeds], count, terms, held_out=True)


def starts(settings: Mapping[str, Any], seeds: Sequence[int]) -> ManyTransformers:
    """One model per seed, taught on right answers until it gives them with probability `start_rate`.

    Adam on the answers' tokens, `pretrain_batch` new problems a step; every `pretrain_every` steps the exact solve rate
    on some problems is looked at, and a model that has reached `start_rate` stays as it is. A finished model is kept in
    the model cache. Raises ReplicationError if a model has not reached it within `pretrain_max_steps`.
    """
    return kept_starts(
        f"digit-sums/{digest_of(settings, START_KEYS)}",
        _new(settings, [0]),
        seeds,
        lambda missing: _taught(settings, missing),
    )


def _new(settings: Mapping[str, Any], seeds: Sequence[int]) -> ManyTransformers:
    sizes = {key: settings[key] for key in ("width", "layers", "heads", "inner")}
    bias = [0.0] * EQUALS + [MASKED]
    return ManyTransformers.initial(Architecture(VOCABULARY, **sizes), seeds, bias=bias)


def _taught(settings: Mapping[str, Any], seeds: Sequence[int]) -> ManyTransformers:
    terms = settings["terms"]
    streams = {seed: np.random.default_rng([_PRETRAIN_STREAM, seed]) for seed in seeds}
    probes = {
        seed: problems([np.random.default_rng([_PROBE_STREAM, seed])], _PROBE, terms, held_out=False) for seed in seeds
    }

    def losses(models: ManyTransformers, learning: Sequence[int]) -> Tensor:
        prompts = problems([streams[seed] for seed in learning], settings["pretrain_batch"], terms, held_out=False)
        answers = answers_of(prompts)
        logps = models.completion_logits(prompts, answers.unsqueeze(2)).squeeze(2).log_softmax(dim=-1)
        return -logps.gather(3, answers.unsqueeze(3)).mean(dim=(1, 2, 3))

    def rates(models: ManyTransformers, learning: Sequence[int]) -> Tensor:
        return solve_rates(models, torch.cat([probes[seed] for seed in learning]))

    return taught(_new(settings, seeds), seeds, settings, losses, rates)


def _digits(generator: np.random.Generator, count: int, terms: int, held_out: bool) -> np.ndarray:
    """Digits (count, terms + 1) of problems of one kind, drawn anew until all are of it."""
    digits = generator.integers(10, size=(count, terms + 1))
    while (wrong := is_held_out(digits) != held_out).any():
        digits[wrong] = generator.integers(10, size=(int(wrong.sum()), terms + 1))
    return digits
