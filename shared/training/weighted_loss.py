"""Applies a weighting inside TRL's loss: what the trainer hands over, and what TRL's own loss then computes.

TRL's loss is neither copied nor changed; it is given other inputs:

- a weight on the whole term is a gate on the gradient of the log-probabilities, which keeps every value;
- a weight on the policy term alone goes into the advantages, one per token, which TRL's loss accepts;
- a weight inside the clip is added to the log-probabilities as log w, so that the ratio is w r; where the KL term
  must not see it, it is added to the reference's log-probabilities too;
- the tokens that an update of Lopti leaves out pass no gradient, from log-probabilities nor from the entropy bonus.

Lopti's two updates per batch are TRL's `num_iterations = 2`. Which of the two is under way is known for every
completion from how often the loss has gone through it, not from a count of steps, so that it holds with any gradient
accumulation; the log-probabilities under the sampling policy are TRL's, computed once per rollout.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from trl import GRPOConfig

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.theory.weighting import RolloutWeight, TokenBatch, Weighting
from grpo_replications.shared.training.raw_logits import watching_selected_logits
from grpo_replications.shared.training.token_weights import gate_gradient
from grpo_replications.shared.training.weight_audit import WeightAudit


class WeightedLoss:
    """One trainer's weighting at work: knows the update that is under way and audits the weights of each step.

    `accelerator`: the trainer's. `record(name, value)` takes a metric of the current step, those of the audit, to be
    averaged over the steps between two logs; `set_count` one of which the last value counts: the budget so far,
    `budget/rollouts` and `budget/completions` (sampled over all processes, redraws included), with
    `budget/pass`, which pass over its rollout the step is (1, or 2 for the second update of Lopti). `row_weights`:
    (n, 3) mean, least and largest weight of each of this process's completions in the first update on a rollout, NaN
    where the loss has seen none of its tokens yet; None for weights that are known from the rollout alone.
    """

    def __init__(
        self,
        weighting: Weighting | None,
        accelerator: Any,
        record: Callable[[str, float], None],
        set_count: Callable[[str, float], None] | None = None,
    ) -> None:
        self.weighting = weighting
        self.accelerator = accelerator
        self.record, self.set_count = record, set_count or record
        self.audit = WeightAudit(weighting) if weighting is not None and weighting.token_level else None
        self.row_weights: Tensor | None = None
        self._visits: Tensor | None = None
        self.rollouts = self.completions = 0

    def start_rollout(self, rows: Tensor, completions: int) -> None:
        """A rollout is about to go through the loss: `rows` (n,) number this process's completions from 0.

        `completions`: how many all processes sampled for it.
        """
        self._visits = torch.zeros_like(rows)
        if self.weighting is not None and any(not isinstance(f, RolloutWeight) for f in self.weighting.factors):
            self.row_weights = torch.full((len(rows), 3), torch.nan, device=rows.device)
        self.rollouts += 1
        self.completions += completions

    def watching(self, model: Any, inputs: dict[str, Any]) -> AbstractContextManager[list[Tensor]]:
        """A context for the forward pass of the policy; gives the list that raw logits will be found in."""
        if self.weighting is None or not self.weighting.needs_raw_logits:
            return nullcontext([])
        return watching_selected_logits(self.accelerator.unwrap_model(model), inputs["completion_ids"])

    def apply(
        self, inputs: dict[str, Any], logps: Tensor, entropies: Tensor | None, raw_logits: list[Tensor], step: int
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and entropies for TRL's loss, (B, T) each; changes `inputs`, which must be a copy."""
        rows, mask = inputs["row"], inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        visits = self._visits[rows]
        self._visits[rows] += 1
        if self.accelerator.sync_gradients:
            self.set_count("budget/pass", int(visits.max()) + 1)
            self.set_count("budget/rollouts", self.rollouts)
            self.set_count("budget/completions", self.completions)
        if self.audit is None:
            return logps, entropies
        old = inputs.get("old_per_token_logps")
        current = logps.detach()
        batch = TokenBatch(
            logps=current,
            old_logps=current if old is None else old,
            raw_logits=torch.cat(raw_logits) if raw_logits else None,
            rollout_weights=inputs.get("token_weights"),
            mask=mask.bool(),
            visits=visits,
        )
        with torch.no_grad():
            placed = self.weighting.place(batch, self._mean)
            self.audit.add(placed, current, batch.mask)
            if self.row_weights is not None:
                figures = _by_row(placed.product, batch.mask).to(self.row_weights.dtype)
                self.row_weights[rows] = torch.where(visits.unsqueeze(1) == 0, figures, self.row_weights[rows])
            if self.accelerator.sync_gradients:
                main = self.accelerator.is_main_process
                for name, value in self.audit.close_step(self.accelerator.gather, step, warn=main).items():
                    self.record(name, value)

        if placed.gate is not None:
            logps = gate_gradient(logps, placed.gate)
        if placed.isolated is not None:
            # Chosen and not multiplied by 0: what is left out may have an infinite gradient.
            logps = torch.where(placed.isolated, logps, logps.detach())
            if entropies is not None and entropies.requires_grad:
                entropies = torch.where(placed.isolated, entropies, entropies.detach())
        if placed.advantage is not None:
            advantages = inputs["advantages"]
            advantages = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
            inputs["advantages"] = advantages * placed.advantage.to(advantages.dtype)
        if placed.ratio is not None:
            inputs["old_per_token_logps"] = batch.old_logps
            logps = logps + placed.ratio.to(logps.dtype)
            if placed.reference is not None and "ref_per_token_logps" in inputs:
                reference = inputs["ref_per_token_logps"]
                inputs["ref_per_token_logps"] = reference + placed.reference.to(reference.dtype)
        return logps, entropies

    def close_run(self) -> None:
        """Training is over: say what is only known at the end."""
        if self.audit is not None and self.accelerator.is_main_process:
            self.audit.close_run()

    def _mean(self, values: Tensor, mask: Tensor) -> Tensor:
        """Mean over the tokens of this micro-batch in all processes."""
        sums = torch.stack([torch.where(mask, values, 0.0).sum(), mask.sum().to(values.dtype)])
        total, count = self.accelerator.reduce(sums, reduction="sum")
        return torch.where(count > 0, total / count.clamp(min=1), 1.0)


def _by_row(weights: Tensor, mask: Tensor) -> Tensor:
    """Mean, least and largest weight of each completion, (B, T) to (B, 3); NaN where `mask` holds no token."""
    mean = torch.where(mask, weights, 0.0).sum(dim=1) / mask.sum(dim=1)
    extremes = [torch.where(mask, weights, bound * torch.inf) for bound in (1, -1)]
    figures = torch.stack([mean, extremes[0].amin(dim=1), extremes[1].amax(dim=1)], dim=1)
    return figures.masked_fill(~mask.any(dim=1, keepdim=True), torch.nan)


def configured(config: GRPOConfig | None, weighting: Weighting) -> GRPOConfig | None:
    """TRL's configuration as the weighting needs it: two passes over a batch for Lopti, the entropy quantile of 80/20.

    A copy, so that the caller's own stays as it is. Raises ReplicationError where there is none to change.
    """
    changes: dict[str, Any] = {}
    if weighting.isolation is not None:
        changes["num_iterations"] = 2
    if weighting.top_entropy_quantile is not None:
        changes["top_entropy_quantile"] = weighting.top_entropy_quantile
    if not changes:
        return config
    if config is None:
        raise ReplicationError("This method changes TRL's configuration; give the trainer one, args=GRPOConfig(...).")
    config = copy.copy(config)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def check_weighting(config: GRPOConfig, weighting: Weighting) -> None:
    """Refuse combinations of TRL's settings and a weighting that have no meaning, or another one than they seem to.

    Raises ReplicationError for: a sequence-level loss; a weight inside the ratio where that ratio also stands in
    another place (`vespo`, the bias-corrected KL, off-policy masking); Lopti with a number of updates per batch other
    than two, or with optimizer steps that mix the two; 80/20 with another quantile.
    """
    sequence_level = config.loss_type == "luspo" or config.importance_sampling_level == "sequence"
    if weighting.token_level and sequence_level:
        raise ReplicationError(
            f"Token weights need a loss with one term per token; loss_type={config.loss_type!r} with "
            f"importance_sampling_level={config.importance_sampling_level!r} has sequence-level ratios. "
            "Use importance_sampling_level='token' and a token-level loss_type such as 'dapo'."
        )
    if any(factor.placement == "inside" for factor in weighting.factors):
        for wrong, what, instead in (
            (
                config.loss_type == "vespo",
                "loss_type='vespo', whose ratio is one of whole completions",
                "another loss_type",
            ),
            (
                config.beta != 0 and config.use_bias_correction_kl,
                "use_bias_correction_kl=True, TRL's default where beta is above 0,",
                "use_bias_correction_kl=False in GRPOConfig",
            ),
            (config.off_policy_mask_threshold is not None, "off_policy_mask_threshold", "it to None"),
        ):
            if wrong:
                raise ReplicationError(
                    f"A weight inside the clip changes the ratio, which {what} uses as well. Set {instead}, or "
                    "placement='outside'."
                )
    if weighting.isolation is not None:
        if config.num_iterations not in (1, 2):
            raise ReplicationError(
                f"Lopti makes two updates per batch, but num_iterations is {config.num_iterations}. Leave it at 1; "
                "the second update is added."
            )
        if config.steps_per_generation % config.gradient_accumulation_steps:
            raise ReplicationError(
                f"With steps_per_generation={config.steps_per_generation} and "
                f"gradient_accumulation_steps={config.gradient_accumulation_steps}, an optimizer step would mix the "
                "two updates of Lopti. Make the former a multiple of the latter."
            )
    if weighting.top_entropy_quantile is not None and config.top_entropy_quantile not in (
        1.0,
        weighting.top_entropy_quantile,
    ):
        raise ReplicationError(
            f"This method keeps the most entropic {weighting.top_entropy_quantile:g} of the tokens, but "
            f"top_entropy_quantile is {config.top_entropy_quantile:g}. Set one of the two."
        )
