"""The updates that TRL's trainer really makes: single optimizer steps with plain SGD, recorded as they happen.

SGD without momentum, weight decay or gradient clipping moves the parameters by learning rate times gradient, so that
(after - before) / learning rate is the update direction whose formula the identity gives. The loss, the advantages and
the accumulation over micro-batches are TRL's.

In float64 two things of TRL are kept from rounding to float32 on the way, neither of them its formulas: numbers that
it makes without stating a type (rewards, the factor G / (G - 1) of the sample variance) are float64, and
log-probabilities come from the logits in place of its fused head, which sums in float32 whatever the model's type.
"""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from grpo_replications.replications.sigma_identity.score_gradients import Rollout, Vector, agreement, load_policy
from grpo_replications.replications.sigma_identity.settings import UpdateSettings
from grpo_replications.shared.grading.rewards import completion_text
from grpo_replications.shared.models.precision import in_float64, with_exact_rotary
from grpo_replications.shared.models.sampling import prompt_ids
from grpo_replications.shared.tasks.addition import addition_problems, addition_reward, last_number
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.run import grpo_config
from grpo_replications.shared.training.settings import TrainingSettings
from grpo_replications.shared.training.trainer import TokenWeightedGRPOTrainer


@dataclass(frozen=True)
class Update:
    """One optimizer step: `change`, the direction it moved in, and `before`, the parameters it started from, or None.

    The change is (after - before) / learning rate; in a run that keeps its weights it is the gradient that the
    optimizer was given, negated, because a difference of float32 parameters loses digits at the learning rates of real
    training. `rounding`: how far these two are from each other, relative to the first.
    """

    change: Vector
    before: Vector | None
    rounding: float


@dataclass(frozen=True)
class TrainerRun:
    """All steps of a run, its rollouts in order (one per `num_iterations` steps), and where it ran."""

    updates: list[Update]
    rollouts: list[Rollout]
    device: str


def run_trainer(settings: UpdateSettings, seed: int, directory: Path, keep_weights: bool = False) -> TrainerRun:
    """Run TRL's trainer for `steps` optimizer steps and return what each of them did.

    Memory: three vectors of the model's size (weights, gradient, change), and two more per step with `keep_weights`.
    """
    exact = settings.precision == "float64"
    steps = settings.steps
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load_policy(settings.model, settings.precision, device)
    completions = settings.prompts * settings.group_size
    log = directory / "groups.jsonl"
    with tempfile.TemporaryDirectory(prefix="trl-") as scratch:
        config = grpo_config(
            TrainingSettings(
                steps=steps,
                prompts_per_step=settings.prompts,
                group_size=settings.group_size,
                gradient_accumulation_steps=completions // min(settings.micro_batch, completions),
                lr=settings.lr,
                optimizer="sgd",
                max_grad_norm=0.0,  # TRL's way to say: do not clip
                max_new_tokens=settings.max_new_tokens,
                loss_type=settings.loss_type,
                scale_rewards=settings.scale_rewards,
                beta=settings.beta,
                num_iterations=settings.num_iterations,
                precision="float32",  # no autocast: the model's own type is used
            ),
            seed,
            scratch,
        )
        recorder = _Recorder(keep_weights)
        trainer = (_Float64Trainer if exact else TokenWeightedGRPOTrainer)(
            model=model,
            reward_funcs=reward_function(settings),
            args=config,
            train_dataset=_dataset(settings, steps, seed),
            processing_class=tokenizer,
            callbacks=[recorder],
            group_log=log,
        )
        trainer.remove_callback(PrinterCallback)
        if exact and trainer.ref_model is not None:
            with_exact_rotary(in_float64(trainer.ref_model.double()))
        with _default_dtype(torch.float64 if exact else torch.float32):
            trainer.train()
    del trainer, model
    gc.collect()  # trainer and callbacks refer to each other, and hold a model and its gradient
    return TrainerRun(recorder.updates, _rollouts(log, tokenizer), device)


class _Recorder(TrainerCallback):
    """Takes the parameters right before and right after each optimizer step."""

    def __init__(self, keep_weights: bool) -> None:
        self.keep_weights = keep_weights
        self.updates: list[Update] = []
        self._before: Vector = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._before = [p.detach().clone() for p in model.parameters()]

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        before, self._before = self._before, []
        parameters = list(model.parameters())
        kept = [p.clone() for p in before] if self.keep_weights else None
        for tensor, after in zip(before, parameters, strict=True):
            tensor.sub_(after.detach()).div_(args.learning_rate)  # before - after: the gradient of the loss
        rounding = agreement(before, [p.grad for p in parameters]).error
        change = [p.grad.clone() for p in parameters] if self.keep_weights else before
        for tensor in change:
            tensor.neg_()
        self.updates.append(Update(change, kept, rounding))


class _LogitsGRPOTrainer(GRPOTrainer):
    """TRL's trainer with log-probabilities from plain logits, in the model's own precision."""

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor, None]:
        parts = []
        size = batch_size or len(input_ids)
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            logits = model(
                input_ids=ids, attention_mask=mask, logits_to_keep=logits_to_keep + 1, use_cache=False
            ).logits
            logps = (logits[:, :-1] / self.temperature).log_softmax(dim=-1)
            chosen = logps.gather(2, ids[:, -logits_to_keep:].unsqueeze(2)).squeeze(2)
            parts.append((chosen, -(logps.detach().exp() * logps.detach()).sum(dim=-1)))
        logps, entropies = (torch.cat(part) for part in zip(*parts, strict=True))
        return logps, entropies, None


class _Float64Trainer(TokenWeightedGRPOTrainer, _LogitsGRPOTrainer):
    """The project's trainer with those log-probabilities."""


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make `dtype` the type of new tensors that state none."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _rollouts(log: Path, tokenizer: Any) -> list[Rollout]:
    """The rollouts of a run from its group log; prompts are put into tokens here once more."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for group in read_group_log(log):
        by_step.setdefault(group["step"], []).append(group)
    rollouts = []
    for groups in by_step.values():
        prompts, completions = [], []
        for group in groups:
            prompts += [list(prompt_ids(tokenizer, group["prompt"]))] * len(group["completion_ids"])
            completions += group["completion_ids"]
        rewards = torch.tensor([group["rewards"] for group in groups], dtype=torch.float64)
        rollouts.append(Rollout(prompts, completions, rewards))
    return rollouts


def _dataset(settings: UpdateSettings, steps: int, seed: int) -> Dataset:
    problems = addition_problems(
        settings.prompts * steps,
        seed=seed,
        low=settings.low,
        high=settings.high,
        system_message=settings.system_message,
    )
    return Dataset.from_list(problems)


# --- rewards ----------------------------------------------------------------------------------------------------------


def reward_function(settings: UpdateSettings) -> Callable[..., list[float]]:
    """The reward that the settings name.

    For a model that can add: "addition" (1 if right), "digits" (share of right digits). For one that cannot: "parity"
    (1 if the token ids have an odd sum), "levels" (`levels` values from 0 to 1, by the sum of token ids).
    "constant": 0.35 for every completion, so that every group is silent.
    """
    name = settings.reward
    if name == "levels":
        return level_reward(settings.levels)
    return {
        "addition": addition_reward,
        "digits": digit_credit,
        "parity": level_reward(2),
        "constant": constant_reward,
    }[name]


def level_reward(levels: int) -> Callable[..., list[float]]:
    """A made-up reward with values 0, 1/(levels-1), ..., 1 that any policy, however random, receives all of."""

    def by_token_ids(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [sum(ids) % levels / (levels - 1) for ids in completion_ids]

    return by_token_ids


def digit_credit(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Share of the answer's digits that the completion's last number has right, counted from the right.

    Missing and surplus digits count as wrong, so that only the answer itself earns 1.
    """
    rewards = []
    for completion, gold in zip(completions, answer, strict=True):
        found, gold = last_number(completion_text(completion)) or "", str(gold)
        equal = sum(a == b for a, b in zip(reversed(found), reversed(gold), strict=False))
        rewards.append(equal / max(len(found), len(gold)))
    return rewards


def constant_reward(completions: list[Any], **_: Any) -> list[float]:
    """0.35 for every completion: a number whose float32 mean over a group is not the number itself."""
    return [0.35] * len(completions)
