"""TRL's GRPOTrainer with token weights, exact silent groups, a log of every group and a stop on non-finite numbers.

Departures from `trl.GRPOTrainer`, all of them additions around it; its loss is neither copied nor changed:

1. **Token weights** scale a token's loss term, or a part of it (`token_weights`). They act on what TRL's loss is
   a function of, so they hold for every token-level loss type (`weighted_loss`), and are audited at every step.
2. **Silent groups** (all rewards equal) get advantages of exactly zero. TRL divides the rounding error of the mean by
   the rounding error of the standard deviation: eight rewards of 0.35 would move the weights.
3. **Every group is logged** (`group_log`), and each step reports silent groups and the shape of prefix trees.
4. A **non-finite** reward or gradient stops the run before the optimizer step; settings that would fail or silently
   train on nothing are refused before the first generation.
5. A rollout is sampled inside one automatic-mixed-precision context, so that the weights are cast once per rollout and
   not once per decoded token; on a CPU this nearly halves the time of sampling (`sampling_context`).
6. **Samples come from the policy**: generation settings that ship with a model (a nucleus, a repetition penalty,
   suppressed tokens) are left out of training's samples, and named once.
7. **Resuming** is exact or refused (`resume`).
8. **Dynamic sampling**, where asked for: silent groups are redrawn up to a bound (`shared.training.dynamic_sampling`).
9. **Samples end at their first box**, where asked for (`shared.training.box_stop`).
10. **Faster**, where asked for: rollouts drawn by the tree of prefixes (`tree_sampling`), every distinct prefix scored
   once (`shared_prefixes`), and with both what was multiplied in sampling is not multiplied again (`on_policy`).
   Neither is the default: without them weights are TRL's to the bit.

Weights and trees need whole groups: completions are gathered from all processes first and sliced back after.
"""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import get_config_model_id

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.grading.rewards import completion_text
from grpo_replications.shared.theory.process_sets import TreeStatistics, tree_statistics
from grpo_replications.shared.training.box_stop import StopAtBox
from grpo_replications.shared.training.config import described, options, sources
from grpo_replications.shared.training.dynamic_sampling import (
    DynamicSampling,
    check_redraws,
    silent_groups,
    silent_when_normalized,
    summed_rewards,
)
from grpo_replications.shared.training.group_log import GroupLog
from grpo_replications.shared.training.on_policy import OnPolicy
from grpo_replications.shared.training.raw_logits import let_compiled_models_see_hooks
from grpo_replications.shared.training.resume import ExactResume
from grpo_replications.shared.training.sampling_context import OneContextGRPOTrainer, PolicySamples
from grpo_replications.shared.training.shared_prefixes import SharedPrefixes
from grpo_replications.shared.training.token_weights import (
    RolloutBatch,
    TokenWeight,
    Weighting,
    as_weighting,
    rollout_weights,
)
from grpo_replications.shared.training.trainer_checks import (
    TOKEN_LEVEL_LOSSES,
    check_settings,
    finite,
    warn_of_repeated_prompts,
)
from grpo_replications.shared.training.tree_sampling import TreeSampling
from grpo_replications.shared.training.weighted_loss import WeightedLoss, configured

__all__ = ["TOKEN_LEVEL_LOSSES", "OneContextGRPOTrainer", "TokenWeightedGRPOTrainer", "check_settings"]


DEFAULTS = {
    "token_weight": None,
    "group_log": None,
    "success_reward": 1.0,
    "log_token_ids": True,
    "max_redraws": 0,
    "redraw": "prompts",
    "tree_sampling": False,
    "share_prefixes": False,
}
"""Options of the trainer that are given neither to it nor in its config."""


@dataclass
class _Rollout:
    """One generation batch as the reward functions saw it: local completions, rewards of all processes."""

    prompts: list[Any]
    completions: list[Any]
    completion_ids: list[list[int]]
    per_function: Tensor  # (B, F) over all processes; NaN where a reward function gave no number
    rewards: Tensor  # (B,) their weighted sum; NaN where none gave a number


class TokenWeightedGRPOTrainer(
    ExactResume,
    DynamicSampling,
    StopAtBox,
    TreeSampling,
    SharedPrefixes,
    OnPolicy,
    PolicySamples,
    OneContextGRPOTrainer,
):
    """`trl.GRPOTrainer` plus token weights, redraws of silent groups and a group log; other arguments are TRL's.

    `token_weight`: a method's name ("sharpness", "lopti", "lambda-grpo*sharpness", ...), what `token_weighting` makes
    of a name and options, a function that maps a rollout to weights (B, T), or None for plain GRPO. Lopti makes two
    optimizer steps on every batch (`num_iterations = 2`). `group_log`: file for the log of groups.
    `success_reward`: a silent group at or above this reward counts as all right, below it as all wrong.
    `log_token_ids`: whether the group log holds token ids. `max_redraws`: how often a silent group is redrawn at most
    (0: never); `redraw`: "prompts" goes on to another prompt, as DAPO does; "samples" stays with the prompt.
    `tree_sampling`: draw rollouts by the tree of their prefixes; `share_prefixes`: score every distinct prefix once.
    All of them can stand in the config instead (`TokenWeightedGRPOConfig`); where given nowhere, DEFAULTS hold.
    `stop_at_box`, an argument alone: whether a completion ends where its first `\\boxed{}` closes.
    Raises ReplicationError for settings that cannot work (see `check_settings` and `check_redraws`).
    """

    def __init__(
        self,
        *args: Any,
        token_weight: str | TokenWeight | Weighting | None = None,
        group_log: str | Path | None = None,
        success_reward: float | None = None,
        log_token_ids: bool | None = None,
        max_redraws: int | None = None,
        redraw: str | None = None,
        tree_sampling: bool | None = None,
        share_prefixes: bool | None = None,
        stop_at_box: bool = False,
        **kwargs: Any,
    ) -> None:
        call = inspect.signature(GRPOTrainer.__init__).bind(self, *args, **kwargs)
        given = call.arguments
        if given.get("args") is None:
            given["args"] = _default_config(given["model"])
        own = {
            "token_weight": token_weight,
            "group_log": group_log,
            "success_reward": success_reward,
            "log_token_ids": log_token_ids,
            "max_redraws": max_redraws,
            "redraw": redraw,
            "tree_sampling": tree_sampling,
            "share_prefixes": share_prefixes,
        }
        token_weight, group_log, success_reward, log_token_ids, max_redraws, redraw, *faster = options(
            given["args"], own, DEFAULTS
        )
        weighting = as_weighting(token_weight)
        check_settings(given["args"], given.get("train_dataset"), weighting, not given.get("environment_factory"))
        log = GroupLog(group_log, log_token_ids) if group_log is not None else None
        if log is not None and given["args"].process_index == 0:
            log.check()
        if weighting is not None:
            given["args"] = configured(given["args"], weighting)
        unsupported = [name for name in ("tools", "environment_factory", "rollout_func") if given.get(name)]
        check_redraws(given["args"], given.get("train_dataset"), max_redraws, redraw, unsupported)
        super().__init__(*call.args[1:], **call.kwargs)
        self.token_weight, self.weighting = token_weight, weighting
        self._weighted_loss = WeightedLoss(weighting, self.accelerator, self._record, self._set_count)
        self.success_reward = success_reward
        self.max_redraws, self.redraw = max_redraws, redraw
        self.stop_at_box = stop_at_box
        self.tree_sampling, self.share_prefixes = faster
        self._check_tree_sampling(given)
        self._check_shared_prefixes()
        self.group_log = log
        self.reward_funcs = [finite(function) for function in self.reward_funcs]
        self._rollout: _Rollout | None = None
        self._loss_inputs: dict[str, Any] | None = None
        self._open_groups: list[dict[str, Any]] = []
        self._row_entropy: Tensor | None = None
        self._row_seen: Tensor | None = None
        self._warn_of_generation_settings()
        self._name_sources()
        if given["args"].torch_compile and weighting is not None and weighting.needs_raw_logits:
            let_compiled_models_see_hooks()

    def _name_sources(self) -> None:
        """What the model card says: the method's name, its paper and tags."""
        found = sources(self.weighting, self.max_redraws)
        if found:
            self._name = " + ".join(source.name for source in found)
            self._tag_names = [*type(self)._tag_names, *(source.tag for source in found)]
            self._paper = {"title": found[0].title, "id": found[0].arxiv}
        elif self.weighting is not None:
            self._name = "GRPO with token weights of its own"

    def _settings(self) -> dict[str, Any]:
        own = {"token_weight": described(self.weighting), "max_redraws": self.max_redraws, "redraw": self.redraw}
        faster = {"tree_sampling": self.tree_sampling, "share_prefixes": self.share_prefixes}
        return {**super()._settings(), **own, "stop_at_box": self.stop_at_box, **faster}

    # --- sampling -----------------------------------------------------------------------------------------------------

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: list[list[int]]
    ) -> Tensor:
        per_function = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        models = [isinstance(function, torch.nn.Module) for function in self.reward_funcs]  # `finite` leaves them alone
        if per_function.isinf().any() or not per_function[:, models].isfinite().all():
            raise ReplicationError(
                "A reward is infinite or NaN in float32. Return a finite number, or None where there is no score."
            )
        total = summed_rewards(per_function, self.reward_weights)
        self._rollout = _Rollout(prompts, completions, completion_ids_list, per_function, total)
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
        if self.weighting is not None and self.weighting.rollout_weight is not None:
            batch = RolloutBatch(ids, mask, tree.sizes, self._rollout.rewards, self.num_generations)
            weights = rollout_weights(self.weighting.rollout_weight, batch)
            output["token_weights"] = weights[local, : output["completion_ids"].size(1)]
        self._record("time/token_weights", time.perf_counter() - started)

        self._record_groups(silent, tree)
        if self.group_log is not None:
            self._open_log_entries(output["advantages"], ids, mask, weights, tree, silent)
        output["row"] = torch.arange(rows, device=ids.device)
        self._weighted_loss.start_rollout(output["row"], self._samples_spent)
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
        """Set the advantages of silent groups to exactly zero; return which groups are silent, (groups,) bool.

        Where each function's rewards are normalized before they are summed, the mean over the batch, which TRL
        subtracts after, is 0 as well, so that whatever differs from 0 in a silent group is rounding.
        """
        if self.multi_objective_aggregation == "normalize_then_sum":
            silent = silent_when_normalized(self._rollout.per_function, self.reward_weights, self.num_generations)
        else:
            silent = silent_groups(self._rollout.rewards, self.num_generations)
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
        self._loss_inputs = dict(inputs)  # a copy: the weights of this update must not leak into the next update
        try:
            return super()._compute_loss(model, self._loss_inputs)
        finally:
            self._loss_inputs = None

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = self._loss_inputs
        if inputs is None or "row" not in inputs:  # reference or old log-probabilities, or an evaluation
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        with self._weighted_loss.watching(model, inputs) as raw_logits:
            logps, entropies, aux_loss = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        logps, entropies = self._weighted_loss.apply(inputs, logps, entropies, raw_logits, self.state.global_step)
        if entropies is not None:
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
        self._kept = None  # of a run that broke off
        try:
            result = super().train(*args, **kwargs)
        finally:
            self._write_open_groups()
        if self.state.global_step == 0:
            raise ReplicationError(
                "Training ended without a single step: the data set has fewer prompts than one generation batch "
                f"({self.args.generation_batch_size // self.num_generations}). Give more prompts or a smaller batch."
            )
        self._weighted_loss.close_run()
        return result

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        loader = super().get_eval_dataloader(eval_dataset)
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        data = self.eval_dataset[data] if isinstance(data, str) else data
        if hasattr(data, "__len__") and not isinstance(data, dict):
            batch, processes = self.args.per_device_eval_batch_size, self.accelerator.num_processes
            warn_of_repeated_prompts(len(data), self.num_generations_eval, batch, processes)
        return loader

    def _budget(self) -> dict[str, int]:
        return {"rollouts": self._weighted_loss.rollouts, "completions": self._weighted_loss.completions}

    def _restore_budget(self, budget: Mapping[str, int]) -> None:
        self._weighted_loss.rollouts, self._weighted_loss.completions = budget["rollouts"], budget["completions"]

    # --- what is measured ---------------------------------------------------------------------------------------------

    def _record(self, name: str, value: float) -> None:
        self._metrics["train"][name].append(float(value))

    def _set_count(self, name: str, value: float) -> None:
        """A metric that counts up, whose last value is logged and not its mean since the last log."""
        self._metrics["train"][name] = [float(value)]

    def _record_groups(self, silent: Tensor, tree: TreeStatistics) -> None:
        right = silent & self._all_right()
        self._record("groups/redrawn", (self._draws > 1).float().mean())
        self._record("groups/exhausted", self._exhausted(silent).float().mean())
        self._record("groups/samples_spent", self._samples_spent)
        self._record("groups/silent", silent.float().mean())
        self._record("groups/all_right", right.float().mean())
        self._record("groups/all_wrong", (silent & ~right).float().mean())
        self._record("tree/path_depth", tree.path_depth.float().mean())
        self._record("tree/intermediate_proportion", tree.intermediate_proportion.float().mean())
        self._record("tree/flat", tree.flat.float().mean())

    def _exhausted(self, silent: Tensor) -> Tensor:
        """Groups still silent after the last redraw that the bound allows; none where nothing is redrawn."""
        return silent & (self._draws > self.max_redraws) if self.max_redraws else torch.zeros_like(silent)

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
        exhausted = self._exhausted(silent)
        given = self.args.reward_weights or []
        weights_of = [*given, *[1.0] * (len(self.reward_func_names) - len(given))]  # an environment's own weighs 1
        functions = list(zip(self.reward_func_names, weights_of, self._rollout.per_function.T, strict=True))
        for g in range(len(silent)):
            rows = range(g * size, (g + 1) * size)
            entry = {
                "step": self.state.global_step + 1,
                "prompt": prompts[g * size],
                "completions": [completion_text(completions[i]) for i in rows],
                "rewards": [finite_or_none(self._rollout.rewards[i]) for i in rows],
                "reward_functions": [
                    {
                        "name": name,
                        "weight": weight,
                        "rewards": [finite_or_none(value) for value in values[rows.start : rows.stop]],
                    }
                    for name, weight, values in functions
                ],
                "advantages": [finite_or_none(advantages[i]) for i in rows],
                "lengths": [int(lengths[i]) for i in rows],
                "entropy": [None] * size,
                "path_depth": [int(tree.path_depth[i]) for i in rows],
                "intermediate_proportion": [finite_or_none(tree.intermediate_proportion[i]) for i in rows],
                "flat": bool(tree.flat[g]),
                "silent": ("all right" if right[g] else "all wrong") if silent[g] else None,
                "draws": int(self._draws[g]),
                "redraws_exhausted": bool(exhausted[g]),
            }
            if self.group_log.token_ids:
                entry["completion_ids"] = [ids[i][mask[i]].tolist() for i in rows]
            if weights is not None:
                used = [weights[i][mask[i]] for i in rows]
                entry["weights"] = {
                    name: [finite_or_none(getattr(torch, name)(w)) if w.numel() else None for w in used]
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
            weights = self._weighted_loss.row_weights
            gathered = None if weights is None else self.accelerator.gather(weights)
            self._enter_figures(self.accelerator.gather(self._row_entropy), gathered)
            self._write_open_groups()

    def _enter_figures(self, entropies: Tensor, weights: Tensor | None) -> None:
        """Put the entropies (B,) and the weights (B, 3) of all processes into the open groups."""
        size = self.num_generations
        for g, entry in enumerate(self._open_groups):
            rows = slice(g * size, (g + 1) * size)
            entry["entropy"] = [finite_or_none(value) for value in entropies[rows]]
            if weights is not None:
                columns = zip(("mean", "min", "max"), weights[rows].T, strict=True)
                entry["weights"] = {name: [finite_or_none(value) for value in column] for name, column in columns}
        self._row_entropy = None

    def _write_open_groups(self) -> None:
        if self.group_log is None or not self._open_groups:
            return
        if self._row_entropy is not None and self.accelerator.num_processes == 1:
            # Training ended inside a rollout: what is known of it.
            self._enter_figures(self._row_entropy, self._weighted_loss.row_weights)
        if self._resumed:
            self.group_log.keep_before(self._open_groups[0]["step"])
            self._resumed = False
        self.group_log.append(self._open_groups)
        self._open_groups = []


def _with_arguments_of_trl(function: Any) -> inspect.Signature:
    """The trainer's signature with TRL's arguments in the place of *args and **kwargs, for help and editors."""
    own = inspect.signature(function)
    added = [one for one in own.parameters.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]
    return own.replace(parameters=[*inspect.signature(GRPOTrainer.__init__).parameters.values(), *added])


TokenWeightedGRPOTrainer.__init__.__signature__ = _with_arguments_of_trl(TokenWeightedGRPOTrainer.__init__)


def _default_config(model: Any) -> GRPOConfig:
    """The configuration that TRL takes where none is given."""
    name = model if isinstance(model, str) else get_config_model_id(model.config)
    try:
        return GRPOConfig(f"{name.split('/')[-1]}-GRPO")
    except ValueError as error:
        raise ReplicationError(
            f"No settings were given, and TRL's defaults do not work on this machine: {error} Give the trainer "
            "args=GRPOConfig(...); on a CPU with use_cpu=True and bf16=False."
        ) from error


def finite_or_none(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
