"""Dynamic sampling: a group whose rewards are all equal teaches nothing, so it is drawn again, up to a bound.

DAPO (Yu et al., arXiv:2503.14476, section 3.2) keeps sampling until no group of a batch is silent. Here a silent group
is redrawn at most `max_redraws` times, either with a new prompt from the training set (`redraw="prompts"`, the default)
or with new completions of the same prompt (`redraw="samples"`). One that is still silent then is kept, with zero
advantage, and counted as exhausted. DAPO itself discards silent groups and draws on without bound, from new prompts.
The two are different objectives: "prompts" leaves GRPO's proportions between prompts that are drawn as they are,
"samples" multiplies a prompt's expected update by (1 - P^(r+1)) / (1 - P), which is largest for extreme prompts.

How it sits in TRL: the redraws happen inside `_generate`, before anything of a rollout is padded, scored for the loss
or logged, and TRL is then handed the groups kept as if it had sampled them at once. All that follows (old and reference
log-probabilities, advantages, accumulation, several updates per rollout, TRL's logs and metrics) sees kept groups only.
Exceptions, which count every sample drawn: `num_tokens` and the trainer state's `num_input_tokens_seen`, the step time,
and what reward functions report through `log_metric`. Reward functions are called once for every sample drawn.

Processes: which groups are silent is decided from gathered rewards, so all processes agree. The rows of the groups to
redraw are dealt out in equal shares, whole groups one after another, whichever process they belong to; each process
calls generation and rewards equally often with equally many rows, as collective operations (ZeRO, FSDP, vLLM) require.
Where the rows do not divide evenly, groups are repeated to fill up and the surplus is thrown away (and counted).

Cost: a redraw generates only the silent groups. In a rollout with redraws, TRL tokenizes and decodes what was kept once
more. Between processes, the redrawn completions are gathered as Python objects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from grpo_replications.shared.errors import ReplicationError

REDRAWS = ("samples", "prompts")
"""What a redraw draws anew: the completions of the prompt, or the prompt too."""


def summed_rewards(per_function: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum over reward functions, (B, F) and (F,) to (B,); NaN where no function scored the completion."""
    total = (per_function * weights.to(per_function.device)).nansum(dim=1)
    return total.masked_fill(per_function.isnan().all(dim=1), torch.nan)


def silent_groups(rewards: Tensor, group_size: int) -> Tensor:
    """Which groups are silent, max == min exactly: rewards (groups * G,), adjacent rows a group, to bool (groups,).

    Completions that nothing scored (NaN) are left out of the comparison; a group without any score is not silent.
    """
    groups = rewards.view(-1, group_size)
    return groups.nan_to_num(nan=-math.inf).amax(dim=1) == groups.nan_to_num(nan=math.inf).amin(dim=1)


def silent_when_normalized(per_function: Tensor, weights: Tensor, group_size: int) -> Tensor:
    """Which groups are silent where each function's rewards are normalized within a group before they are summed.

    `per_function` (groups * G, F), NaN where a function gave no score; `weights` (F,). Returns bool (groups,). A group
    is silent if the normalized sum is the same for all its completions, hence 0: each function pays all alike, or what
    one pays the others take. Computed in float64 up to the rounding of float32 rewards. A group without any score is
    not silent.
    """
    groups = per_function.double().view(-1, group_size, per_function.size(1))
    centered = groups - groups.nanmean(dim=1, keepdim=True)
    scored = (~groups.isnan()).sum(dim=1, keepdim=True)
    deviation = (centered.square().nansum(dim=1, keepdim=True) / (scored - 1).clamp(min=1)).sqrt()
    weights = weights.to(groups)
    total = (centered / (deviation + 1e-4) * weights).nansum(dim=2)
    rounding = 1e-6 * max(1.0, float(weights.abs().sum()))
    return (total.abs().amax(dim=1) <= rounding) & ~groups.isnan().flatten(1).all(dim=1)


def check_redraws(
    config: Any, train_dataset: Any, max_redraws: int, redraw: str, unsupported: Sequence[str] = ()
) -> None:
    """Refuse, before anything is generated, redraws that cannot be done.

    `unsupported`: names of trainer arguments in use whose rollouts cannot be put together from several draws.
    Raises ReplicationError for: a bound that is no whole number of at least 0, an unknown kind of redraw, and, where
    there are redraws at all, unsupported arguments, images, rewards normalized before they are summed, and new prompts
    from a data set that cannot be indexed.
    """
    if not isinstance(max_redraws, int) or isinstance(max_redraws, bool) or max_redraws < 0:
        raise ReplicationError(f"max_redraws is {max_redraws!r}; give a whole number, 0 for no redraws.")
    if redraw not in REDRAWS:
        raise ReplicationError(f"redraw is {redraw!r}; use one of {', '.join(REDRAWS)}.")
    if max_redraws == 0:
        return
    columns = getattr(train_dataset, "column_names", None) or ()
    refused = [*unsupported, *(f"column '{name}'" for name in ("image", "images") if name in columns)]
    if refused:
        raise ReplicationError(f"Silent groups cannot be redrawn together with {refused[0]}: set max_redraws to 0.")
    if getattr(config, "multi_objective_aggregation", "sum_then_normalize") != "sum_then_normalize":
        raise ReplicationError(
            "Silent groups are redrawn by their summed reward, which says nothing of rewards normalized one by one. "
            "Set multi_objective_aggregation='sum_then_normalize' or max_redraws to 0."
        )
    indexable = hasattr(train_dataset, "__len__") and hasattr(train_dataset, "__getitem__")
    if redraw == "prompts" and not indexable:
        raise ReplicationError(
            "redraw='prompts' draws from the whole training set, so it needs one with a length and an index, not a "
            "stream. Use redraw='samples', or load the data set without streaming."
        )


@dataclass
class _Kept:
    """What this process keeps of a rollout, one entry per row (B local rows)."""

    completion_ids: list[list[int]]
    logprobs: list[list[float]] | None
    extras: list[dict[str, Any]]  # columns that reward functions add to TRL's completions log


class DynamicSampling:
    """Mixin before a class derived from `trl.GRPOTrainer`: redraws silent groups of training rollouts.

    `max_redraws`: how often a silent group is redrawn at most; 0 leaves TRL's sampling untouched. `redraw`: one of
    REDRAWS. After a training rollout `_draws` (groups,) holds how often each group was drawn, over all processes, and
    `_samples_spent` the completions generated, thrown-away ones included.

    New prompts are drawn without replacement within one round of redraws, uniformly from the whole training set (the
    same prompt may come again), by a generator seeded from the run's seed, the step and the round. A resumed run draws
    the same ones, and torch's global generator is touched by sampling only.
    """

    max_redraws = 0
    redraw = "prompts"
    _draws: Tensor
    _samples_spent = 0
    _inputs: list[dict[str, Any]] | None = None  # the rollout's rows of this process while it is being drawn
    _kept_rewards: Tensor | None = None  # (B, F) of all processes, for the one call that TRL makes itself
    _replayed: tuple[Any, Any] | None = None  # what sampling "returns" while TRL is handed the kept completions
    _place = (-1, 0)  # optimizer step, and number of rollouts before this one within it

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        self._draws = torch.ones(
            len(inputs) * self.accelerator.num_processes // self.num_generations,
            dtype=torch.long,
            device=self.accelerator.device,
        )
        self._samples_spent = len(inputs) * self.accelerator.num_processes
        if not self.max_redraws:
            return super()._generate_and_score_completions(inputs)
        step, before = self._place
        self._place = (self.state.global_step, before + 1 if step == self.state.global_step else 0)
        self._inputs = list(inputs)  # rows of it are replaced when prompts are redrawn; the caller's list is not
        try:
            return super()._generate_and_score_completions(self._inputs)
        finally:
            self._inputs = self._kept_rewards = None

    def _generate(self, prompts: list[Any]) -> Any:
        if self._inputs is None:
            return super()._generate(prompts)
        logged = {name: len(values) for name, values in self._metrics["train"].items()}
        first = super()._generate(prompts)
        rewards, extras = self._score(self._inputs, first)
        kept = _Kept(list(first[1]), None if first[4] is None else list(first[4]), extras)
        for attempt in range(1, self.max_redraws + 1):
            silent = silent_groups(summed_rewards(rewards, self.reward_weights), self.num_generations)
            groups = torch.nonzero(silent).flatten().tolist()
            if not groups:
                break
            self._draws[silent] += 1
            rows = silent.repeat_interleave(self.num_generations)
            rewards[rows] = self._draw_again(groups, attempt, kept)
        self._kept_rewards = rewards
        for name in {name: None for row in kept.extras for name in row}:
            self._pending_extra_logs[name] = [row.get(name) for row in kept.extras]
        if self._draws.max() == 1:
            return first
        prompts[:] = [row["prompt"] for row in self._inputs]
        for name, values in self._metrics["train"].items():
            del values[logged.get(name, 0) :]
        return self._replay(prompts, kept)

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        return super()._generate_single_turn(*args, **kwargs) if self._replayed is None else self._replayed

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        kept, self._kept_rewards = self._kept_rewards, None
        return super()._calculate_rewards(*args, **kwargs) if kept is None else kept

    def _score(self, inputs: list[dict[str, Any]], generated: Any) -> tuple[Tensor, list[dict[str, Any]]]:
        """Rewards (B, F) of all processes, and the columns logged by reward functions for each local row."""
        prompts = [row["prompt"] for row in inputs]
        rewards = self._calculate_rewards(inputs, prompts, generated[3], generated[1])
        extras: list[dict[str, Any]] = [{} for _ in inputs]
        for name, values in self._pending_extra_logs.items():
            if len(values) != len(inputs):
                raise ReplicationError(
                    f"A reward function logged {len(values)} values in column {name!r} for {len(inputs)} completions. "
                    "Call log_extra once per column, with one value per completion."
                )
            for row, value in zip(extras, values, strict=True):
                row[name] = value
        self._pending_extra_logs.clear()
        return rewards, extras

    def _draw_again(self, groups: list[int], attempt: int, kept: _Kept) -> Tensor:
        """Redraw `groups` (their numbers over all processes) into `kept`; return their rewards (groups * G, F)."""
        size, processes = self.num_generations, self.accelerator.num_processes
        examples = self._new_prompts(groups, attempt) if self.redraw == "prompts" else self._same_prompts(groups)
        surplus = -len(groups) % (processes // math.gcd(processes, size))
        rows = [dict(example) for example in [*examples, *examples[-1:] * surplus] for _ in range(size)]
        share = len(rows) // processes
        own = rows[self.accelerator.process_index * share :][:share]
        generated = super()._generate([row["prompt"] for row in own])
        rewards, extras = self._score(own, generated)
        self._samples_spent += len(rows)
        logprobs = generated[4] if generated[4] is not None else [None] * share
        drawn = gather_object(list(zip(generated[1], logprobs, extras, strict=True)))
        offset = self.accelerator.process_index * len(self._inputs)
        for position, group in enumerate(groups):
            for i in range(size):
                row = group * size + i - offset
                if 0 <= row < len(self._inputs):
                    ids, logprob, extra = drawn[position * size + i]
                    kept.completion_ids[row], kept.extras[row] = ids, extra
                    if kept.logprobs is not None:
                        kept.logprobs[row] = logprob
                    if self.redraw == "prompts":
                        self._inputs[row] = dict(examples[position])
        return rewards[: len(groups) * size]

    def _same_prompts(self, groups: list[int]) -> list[dict[str, Any]]:
        """The data-set row of each group, fetched from the process that holds the group's first completion."""
        offset = self.accelerator.process_index * len(self._inputs)
        firsts = [group * self.num_generations - offset for group in groups]
        return gather_object([self._inputs[row] for row in firsts if 0 <= row < len(self._inputs)])

    def _new_prompts(self, groups: list[int], attempt: int) -> list[dict[str, Any]]:
        """A data-set row for each group, the same on every process; with the columns that a training row has here."""
        available = len(self.train_dataset)
        generator = np.random.default_rng([self.args.seed, *self._place, attempt])
        chosen = generator.choice(available, size=len(groups), replace=available < len(groups))
        columns = list(self._inputs[0])
        examples = (self.train_dataset[int(index)] for index in chosen)
        return [{name: example[name] for name in columns} for example in examples]

    def _replay(self, prompts: list[Any], kept: _Kept) -> Any:
        """What TRL's `_generate` returns and records had it sampled the kept completions at once."""
        seen = self.state.num_input_tokens_seen
        self._replayed = (kept.completion_ids, kept.logprobs)
        try:
            generated = super()._generate(prompts)
        finally:
            self._replayed = None
        self.state.num_input_tokens_seen = seen  # every sample drawn was counted when it was drawn
        self._metrics["train"]["num_tokens"] = [seen]
        return generated
