"""Experiment `beyond-theorem`: where the identity stops on real gradients, by how much, and what replaces it.

The identity is about rewards of 0 and 1, one on-policy update, and no KL term. Each condition is bent by a strength:

- **Partial credit**, by levels of reward. The identity is applied to rewards cut at one half; the general form
  sum_i A_i s_i / G still holds.
- **A second update** on the same rollout (`num_iterations = 2`), by learning rate: each token's score is multiplied by
  its ratio of probabilities, or dropped where the ratio is clipped. With these scores the identity holds again.
- **KL**, by beta and step: the gradient of the KL estimate is added. It is exactly zero while the policy is the
  reference, so the identity survives the first step whatever beta, and not the second.

In each case the true update is sum_it c_it grad log pi(o_it), with weights c_it of tokens that rewards, ratios and KL
determine; the identity has other weights c'_it. The break is measured on the trainer's own update, predicted from these
two sums by autograd apart from the trainer, and estimated without any gradient: if the scores of tokens were orthogonal
and of equal length, it would be |c - c'| / |c'|. What remains after the corrected prediction is the residual.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo_replications.replications.sigma_identity.score_gradients import (
    Rollout,
    Vector,
    advantage_weights,
    agreement,
    identity_weights,
    is_clipped,
    kl_weights,
    load_policy,
    rollout_logps,
    score_normalizers,
    spread,
    weighted_score,
)
from grpo_replications.replications.sigma_identity.settings import BeyondTheoremSettings
from grpo_replications.replications.sigma_identity.trl_updates import run_trainer
from grpo_replications.shared.harness.jobs import JobContext, Row

_ROUNDING = 1e-9  # an estimate below it is a zero


def beyond_theorem(settings: BeyondTheoremSettings, seed: int, context: JobContext) -> list[Row]:
    """Size of the break by step; settings as in `trl_updates.run_trainer`, `levels` for the reward "levels".

    Metrics by step: `break` |measured - identity| / |identity|; `predicted_break` |corrected - identity| / |identity|;
    `estimated_break` from token weights alone, and `estimate_ratio` break / estimated (where the estimate is not 0);
    `residual` |measured - corrected| / |measured|; `cosine` of measured and identity; `clipped_share` and `ratio_rms`
    (root mean square of ratio - 1) over tokens with an advantage.
    A step whose identity is zero (nothing but groups that are silent once rewards are cut) has `residual` only.
    """
    run = run_trainer(settings, seed, context.directory, keep_weights=True)
    context.progress(0.4)
    policy, _ = load_policy(settings.model, settings.precision, run.device)
    rows: list[Row] = []
    reference: list[list[Tensor]] = [rollout_logps(policy, r) for r in run.rollouts] if settings.beta else []
    old: list[Tensor] | None = None
    for step, update in enumerate(run.updates):
        index, inner = divmod(step, settings.num_iterations)
        rollout = run.rollouts[index]
        _set_parameters(policy, update.before)
        logps = rollout_logps(policy, rollout)
        if inner == 0:
            old = logps
        ref = reference[index] if settings.beta else None
        values = measure(policy, rollout, update.change, settings, logps, old, ref)
        rows += [{"metric": name, "value": float(value), "step": step} for name, value in values.items()]
        context.progress(0.4 + 0.6 * (step + 1) / len(run.updates))
    return rows


def measure(
    policy: Any,
    rollout: Rollout,
    change: Vector,
    settings: BeyondTheoremSettings,
    logps: list[Tensor],
    old: list[Tensor],
    ref: list[Tensor] | None,
) -> dict[str, float]:
    """Break, predicted break and residual of one update; log-probabilities (T,) per completion: now, old, reference."""
    identity, corrected = token_weights(rollout, settings, logps, old, ref)
    by_correction = weighted_score(policy, rollout, corrected)
    values = {"residual": agreement(change, by_correction).error}
    flat, true = torch.cat(identity), torch.cat(corrected)
    if not flat.any():
        return values
    by_identity = weighted_score(policy, rollout, identity)
    norm = agreement(by_identity, by_identity).norm
    found, predicted = (agreement(vector, by_identity) for vector in (change, by_correction))
    values |= {
        "break": found.error * found.norm / norm,
        "predicted_break": predicted.error * predicted.norm / norm,
        "estimated_break": float((true - flat).norm() / flat.norm()),
        "cosine": found.cosine,
    }
    if values["estimated_break"] > _ROUNDING:
        values["estimate_ratio"] = values["break"] / values["estimated_break"]
    advantage = torch.cat(spread(advantage_weights(rollout.rewards, settings.scale_rewards), rollout))
    ratio = (torch.cat(logps) - torch.cat(old)).double().cpu().exp()[advantage != 0]
    values["ratio_rms"] = float((ratio - 1).square().mean().sqrt())
    values["clipped_share"] = float(is_clipped(ratio, advantage[advantage != 0]).double().mean())
    return values


def token_weights(
    rollout: Rollout,
    settings: BeyondTheoremSettings,
    logps: list[Tensor],
    old: list[Tensor],
    ref: list[Tensor] | None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Weights of tokens' scores, (T,) float64 per completion: the identity's, and the corrected ones.

    The identity knows rewards cut at one half and nothing of ratios, clipping and KL.
    """
    scale = settings.scale_rewards
    normalizers = score_normalizers(rollout.lengths, settings.loss_type, settings.max_new_tokens)
    cut = (rollout.rewards >= 0.5).double()
    identity = spread(identity_weights(cut, f"trl-{scale}") * normalizers, rollout)
    general = advantage_weights(rollout.rewards, scale) * normalizers
    corrected = []
    for i, weight in enumerate(general):
        now, then = logps[i].double().cpu(), old[i].double().cpu()
        ratio = (now - then).exp()
        weights = torch.where(is_clipped(ratio, weight), 0.0, weight * ratio)
        if ref is not None:
            share = float(normalizers[i]) / rollout.rewards.numel()
            weights = weights - settings.beta * share * kl_weights(now, ref[i].double().cpu())
        corrected.append(weights)
    return identity, corrected


def _set_parameters(policy: Any, values: Vector) -> None:
    with torch.no_grad():
        for parameter, value in zip(policy.parameters(), values, strict=True):
            parameter.copy_(value)
