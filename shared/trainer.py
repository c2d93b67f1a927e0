"""TRL's GRPOTrainer with token weights, exact silent groups, a log of every group and a stop on non-finite numbers.

Departures from `trl.GRPOTrainer`, all of them additions around it; its loss is neither copied nor changed:

1. **Token weights** scale a token's whole loss term, policy and KL (`shared.token_weights`). The gradient gate sits on
   the log-probabilities that TRL's loss is a function of, so it holds for every token-level loss type.
2. **Silent groups** (all rewards equal) get advantages of exactly zero. TRL divides the rounding error of the mean by
   the rounding error of the standard deviation: eight rewards of 0.35 would move the weights.
3. **Every group is logged** (`shared.group_log`), and each step reports silent groups and the shape of prefix trees.
4. A **non-finite** reward or gradient stops the run before the optimizer step; settings that would fail or silently
   train on nothing are refused before the first generation.
5. A rollout is sampled inside one automatic-mixed-precision context, so that the weights are cast once per rollout and
   not once per decoded token (on a CPU this nearly halves the time of sampling; the numbers sampled from are the same).

Weights and trees need whole groups: completions are gathered from all processes first and sliced back after.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import is_async_callable

from shared.errors import ReplicationError
from shared.group_log import GroupLog
from shared.process_sets import TreeStatistics, tree_statistics
from shared.token_weights import RolloutBatch, TokenWeight, gate_gradient

TOKEN_LEVEL_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")
"""TRL loss types whose loss is a sum of one term per token, so that a token weight has a meaning.

Left out: `luspo` and any loss with sequence-level importance ratios, where a token has no term of its own.
"""


@dataclass
class _Rollout:
    """One generation batch as the reward functions saw it: local completions, rewards of all processes."""

    prompts: list[Any]
    completions: list[Any]
    completion_ids: list[list[int]]
    rewards: Tensor  # (B,) over all processes; NaN where no reward function gave a number


class OneContextGRPOTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` that samples a rollout inside one mixed-precision context (departure 5), and nothing else."""

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        with self.accelerator.autocast():
            return super()._generate_single_turn(*args, **kwargs)


class TokenWeightedGRPOTrainer(OneContextGRPOTrainer):
    """`trl.GRPOTrainer` plus a token weight and a group log; every other argument is TRL's.

    `token_weight`: maps a rollout to weights (B, T), or None for plain GRPO. `group_log`: file for the log of groups.
    `success_reward`: a silent group at or above this reward counts as all right, below it as all wrong.
    `log_token_ids`: whether the group log holds token ids.
    Raises ReplicationError for settings that cannot work (see `check_settings`).
    """

    def __init__(
        self,
        *args: Any,
        token_weight: TokenWeight | None = None,
        group_log: str | Path | None = None,
        success_reward: float = 1.0,
        log_token_ids: bool = True,
        **kwargs: Any,
    ) -> None:
        given = inspect.signature(GRPOTrainer.__init__).bind_partial(self, *args, **kwargs).arguments
        if given.get("args") is not None:
            check_settings(given["args"], given.get("train_dataset"), token_weight)
        super().__init__(*args, **kwargs)
        self.token_weight = token_weight
        self.success_reward = success_reward
        self.group_log = GroupLog(group_log, log_token_ids) if group_log is not None else None
        self.reward_funcs = [_finite(function) for function in self.reward_funcs]
        self._rollout: _Rollout | None = None
        self._loss_inputs: dict[str, Any] | None = None
        self._open_groups: list[dict[str, Any]] = []
        self._row_entropy: Tensor | None = None
        self._row_seen: Tensor | None = None
        self._resumed = False

    # --- sampling -----------------------------------------------------------------------------------------------------

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: list[list[int]]
    ) -> Tensor:
        per_function = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if per_function.isinf().any():  # of asynchronous functions and reward models, which `_finite` leaves alone
            raise ReplicationError("A reward is infinite. Return a finite number, or None where there is no score.")
        total = (per_function * self.reward_weights.to(per_function.device)).nansum(dim=1)
        total[per_function.isnan().all(dim=1)] = torch.nan
        self._rollout = _Rollout(prompts, completions, completion_ids_list, total)
        return per_function

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        self._write_open_groups()  # of the previous rollout, should its last micro-batch never have come
        ids, mask = self._whole_groups(output["completion_ids"])
        rows = output["completion_ids"].size(0)
        first = self.accelerator.process_index * rows
        local = slice(first, first + rows)

        silent = self._silence(output, local)
        started = time.perf_counter()
        tree = tree_statistics(ids, mask, self.num_generations)
        weights = None
        if self.token_weight is not None:
            batch = RolloutBatch(ids, mask, tree.sizes, self._rollout.rewards, self.num_generations)
            weights = self.token_weight(batch)
            output["token_weights"] = weights[local, : output["completion_ids"].size(1)]
        self._record("time/token_weights", time.perf_counter() - started)

        self._record_groups(silent, tree, weights)
        if self.group_log is not None:
            self._open_log_entries(output["advantages"], ids, mask, weights, tree, silent)
        output["row"] = torch.arange(rows, device=ids.device)
        self._row_entropy = torch.full((rows,), torch.nan, device=ids.device)
        self._row_seen = torch.zeros(rows, dtype=torch.bool, device=ids.device)
        return output

    def _whole_groups(self, local_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Completions of all processes and their true mask, (B, T) each.

        The mask comes from lengths: a pad token may be the end of sequence, and completions that TRL masks out of the
        loss for being cut off still belong to their process sets.
        """
        lengths = torch.tensor([len(ids) for ids in self._rollout.completion_ids], device=local_ids.device)
        mask = torch.arange(local_ids.size(1), device=local_ids.device) < lengths.unsqueeze(1)
        gather, pad = self.accelerator.gather, self.accelerator.pad_across_processes
        return gather(pad(local_ids, dim=1)), gather(pad(mask.long(), dim=1)).bool()

    def _silence(self, output: dict[str, Any], local: slice) -> Tensor:
        """Set the advantages of silent groups to exactly zero; return which groups are silent, (groups,) bool."""
        groups = self._rollout.rewards.view(-1, self.num_generations)
        # A completion that no reward function scored does not make its group heard: compare the scored ones.
        silent = groups.nan_to_num(nan=-math.inf).amax(dim=1) == groups.nan_to_num(nan=math.inf).amin(dim=1)
        if self.multi_objective_aggregation == "sum_then_normalize":
            rows = silent.repeat_interleave(self.num_generations)
            output["advantages"] = output["advantages"].masked_fill(rows[local], 0.0)
            # The same in TRL's own completions log.
            logged = self._logs["advantages"]
            for i in torch.nonzero(rows).flatten().tolist():
                position = len(logged) - len(rows) + i
                if position >= 0:
                    logged[position] = 0.0
        return silent

    # --- loss ---------------------------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._loss_inputs = inputs
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._loss_inputs = None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        logps, entropies, aux_loss = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        inputs = self._loss_inputs  # None while reference or old log-probabilities are computed
        if inputs is not None:
            if "token_weights" in inputs:
                logps = gate_gradient(logps, inputs["token_weights"])
            if entropies is not None and "row" in inputs:
                self._note_entropy(inputs, entropies.detach())
        return logps, entropies, aux_loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        grad_norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        # In float16 an overflow is an everyday event that the loss scaler answers by itself.
        if grad_norm is not None and not self.args.fp16 and not math.isfinite(float(grad_norm)):
            raise ReplicationError(
                f"The gradient norm is {float(grad_norm)} at step {self.state.global_step}; the weights were left as "
                "they were before this step. Lower the learning rate, or look at the rewards and at the group log."
            )
        return grad_norm

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as TRL does; raises ReplicationError when no step was made, and closes the group log in any case."""
        resume = kwargs.get("resume_from_checkpoint") or (args[0] if args else None)
        if resume:
            self._check_resume()
            self._resumed = True
        try:
            result = super().train(*args, **kwargs)
        finally:
            self._write_open_groups()
        if self.state.global_step == 0:
            raise ReplicationError(
                "Training ended without a single step: the data set has fewer prompts than one generation batch "
                f"({self.args.generation_batch_size // self.num_generations}). Give more prompts or a smaller batch."
            )
        return result

    def _check_resume(self) -> None:
        """Resuming repeats a run exactly only from the end of a generation window, with the optimizer's state."""
        window = self.args.steps_per_generation * self.num_iterations
        if window > self.args.gradient_accumulation_steps or self.args.save_only_model:
            raise ReplicationError(
                "A run cannot be resumed exactly with these settings: a checkpoint would fall inside a generation "
                "window (steps_per_generation * num_iterations > gradient_accumulation_steps) or lacks the optimizer "
                "(save_only_model). Start again, or set steps_per_generation = gradient_accumulation_steps, "
                "num_iterations = 1 and save_only_model = False."
            )

    # --- what is measured ---------------------------------------------------------------------------------------------

    def _record(self, name: str, value: float) -> None:
        self._metrics["train"][name].append(float(value))

    def _record_groups(self, silent: Tensor, tree: TreeStatistics, weights: Tensor | None) -> None:
        right = silent & self._all_right()
        self._record("groups/silent", silent.float().mean())
        self._record("groups/all_right", right.float().mean())
        self._record("groups/all_wrong", (silent & ~right).float().mean())
        self._record("tree/path_depth", tree.path_depth.float().mean())
        self._record("tree/intermediate_proportion", tree.intermediate_proportion.float().mean())
        self._record("tree/flat", tree.flat.float().mean())
        if weights is not None:
            real = weights[tree.sizes > 0]
            self._record("token_weights/mean", real.mean() if real.numel() else math.nan)
            self._record("token_weights/min", real.min() if real.numel() else math.nan)

    def _all_right(self) -> Tensor:
        best = self._rollout.rewards.view(-1, self.num_generations).nan_to_num(nan=-math.inf).amax(dim=1)
        return best >= self.success_reward

    def _open_log_entries(
        self,
        advantages: Tensor,
        ids: Tensor,
        mask: Tensor,
        weights: Tensor | None,
        tree: TreeStatistics,
        silent: Tensor,
    ) -> None:
        """Prepare one entry per group; entropies follow when the loss has seen every completion once."""
        prompts = gather_object(self._rollout.prompts)
        completions = gather_object(self._rollout.completions)
        advantages = self.accelerator.gather(advantages)
        if not self.accelerator.is_main_process:
            return
        size = self.num_generations
        lengths = mask.sum(dim=1)
        right = self._all_right()
        for g in range(len(silent)):
            rows = range(g * size, (g + 1) * size)
            entry = {
                "step": self.state.global_step,
                "prompt": prompts[g * size],
                "completions": [_text(completions[i]) for i in rows],
                "rewards": [_number(self._rollout.rewards[i]) for i in rows],
                "advantages": [_number(advantages[i]) for i in rows],
                "lengths": [int(lengths[i]) for i in rows],
                "entropy": [None] * size,
                "path_depth": [int(tree.path_depth[i]) for i in rows],
                "intermediate_proportion": [_number(tree.intermediate_proportion[i]) for i in rows],
                "flat": bool(tree.flat[g]),
                "silent": ("all right" if right[g] else "all wrong") if silent[g] else None,
            }
            if self.group_log.token_ids:
                entry["completion_ids"] = [ids[i][mask[i]].tolist() for i in rows]
            if weights is not None:
                used = [weights[i][mask[i]] for i in rows]
                entry["weights"] = {
                    name: [_number(getattr(torch, name)(w)) if w.numel() else None for w in used]
                    for name in ("mean", "min", "max")
                }
            self._open_groups.append(entry)

    def _note_entropy(self, inputs: dict[str, Any], entropies: Tensor) -> None:
        """Keep each completion's mean token entropy from its first pass through the loss, and write groups."""
        if self.group_log is None or self._row_entropy is None:
            return
        mask, rows = inputs["completion_mask"], inputs["row"]
        mean = (entropies * mask).sum(dim=1) / mask.sum(dim=1)  # NaN where the loss sees no token of a completion
        self._row_entropy[rows] = torch.where(self._row_seen[rows], self._row_entropy[rows], mean.float())
        self._row_seen[rows] = True
        if self._row_seen.all():
            self._enter_entropies(self.accelerator.gather(self._row_entropy))
            self._write_open_groups()

    def _enter_entropies(self, entropies: Tensor) -> None:
        """Put the entropies (B,) of all processes into the open groups."""
        values = [_number(value) for value in entropies]
        for g, entry in enumerate(self._open_groups):
            entry["entropy"] = values[g * self.num_generations : (g + 1) * self.num_generations]
        self._row_entropy = None

    def _write_open_groups(self) -> None:
        if self.group_log is None or not self._open_groups:
            return
        if self._row_entropy is not None and self.accelerator.num_processes == 1:
            self._enter_entropies(self._row_entropy)  # training ended inside a rollout: what is known of it
        if self._resumed:
            self.group_log.keep_before(self._open_groups[0]["step"])
            self._resumed = False
        self.group_log.append(self._open_groups)
        self._open_groups = []


def check_settings(config: GRPOConfig, train_dataset: Any, token_weight: TokenWeight | None = None) -> None:
    """Refuse, before anything is generated, settings that fail late or train on nothing.

    Raises ReplicationError for: a group of fewer than two, an unknown loss type, a token weight with a sequence-level
    loss, a missing `prompt` column, a column that TRL would drop or overwrite, and fewer prompts than one batch.
    """
    if config.num_generations < 2:
        raise ReplicationError(f"num_generations is {config.num_generations}; a group needs at least 2 completions.")
    if config.loss_type not in (*TOKEN_LEVEL_LOSSES, "luspo"):
        raise ReplicationError(
            f"loss_type {config.loss_type!r} is unknown; use one of {', '.join(TOKEN_LEVEL_LOSSES)}."
        )
    sequence_level = config.loss_type == "luspo" or config.importance_sampling_level == "sequence"
    if token_weight is not None and sequence_level:
        raise ReplicationError(
            f"Token weights need a loss with one term per token; loss_type={config.loss_type!r} with "
            f"importance_sampling_level={config.importance_sampling_level!r} has sequence-level ratios. "
            f"Use importance_sampling_level='token' and one of {', '.join(TOKEN_LEVEL_LOSSES)}."
        )
    columns = getattr(train_dataset, "column_names", None)
    if columns is None:
        return
    if "prompt" not in columns:
        raise ReplicationError(f"The training set has no column 'prompt' (it has: {', '.join(columns)}).")
    taken = sorted({"completion", "completions", "completion_ids", "prompts"} & set(columns))
    if taken:
        raise ReplicationError(
            f"The training set's column {taken[0]!r} would be lost inside TRL: give it another name."
        )
    prompts = config.generation_batch_size // config.num_generations
    if hasattr(train_dataset, "__len__") and len(train_dataset) < prompts:
        raise ReplicationError(
            f"The training set has {len(train_dataset)} prompts, fewer than the {prompts} of one generation batch, so "
            "not one step would be made. Give more prompts or a smaller batch."
        )


def _finite(reward_function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function so that NaN and infinite rewards stop the run; None ("not scored") passes."""
    if isinstance(reward_function, torch.nn.Module) or is_async_callable(reward_function):
        return reward_function

    @functools.wraps(reward_function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        rewards = reward_function(*args, **kwargs)
        for reward in rewards:
            if reward is not None and not math.isfinite(reward):
                name = getattr(reward_function, "__name__", type(reward_function).__name__)
                raise ReplicationError(
                    f"The reward function {name} returned {reward}. Return a finite number, or None for a completion "
                    "that cannot be scored."
                )
        return rewards

    return checked


def _text(completion: Any) -> str:
    """A completion as text: of a conversation, everything that its messages say."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
