"""Experiment `real-gradients`: the identity against the update that TRL's trainer makes on a real language model.

One optimizer step of TRL (plain SGD, on-policy, no KL, no clipping of the gradient) moves the parameters by
learning rate x update. The scores of the very same completions are computed by autograd apart from the trainer, and the
identity says what the update must be: the mean over groups of gain (mean right score - mean wrong score), with the gain
of the paper where TRL only centers rewards, and with a gain by the same algebra where TRL divides by the sample
standard deviation plus 1e-4 (`score_gradients.identity_gain`).

What could make it fail: another gain, another normalization by length, completions of one group in another's sum, a
wrong mask, a silent group that moves something. Four predictions that are wrong on purpose measure how far such a
mistake would show.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from grpo_replications.replications.sigma_identity.score_gradients import (
    Rollout,
    Vector,
    agreement,
    identity_weights,
    load_policy,
    score_normalizers,
    spread,
    visit_scores,
)
from grpo_replications.replications.sigma_identity.settings import RealGradientsSettings
from grpo_replications.replications.sigma_identity.trl_updates import run_trainer
from grpo_replications.shared.harness.jobs import JobContext, Row

_SAMPLED = 250_000  # coordinates on which the wrong predictions are compared; their errors need no more
_OTHER_LOSS = {"grpo": "dapo", "dapo": "grpo", "dr_grpo": "grpo"}


def real_gradients(settings: RealGradientsSettings, seed: int, context: JobContext) -> list[Row]:
    """Predicted against measured update of one step; settings as in `trl_updates.run_trainer`.

    Metrics: `error`, `cosine`, `norm_ratio` of the measured update against the exact prediction, over all parameters;
    `paper_factor`: the multiple of the paper's own formula (sigma, or sigma^2 for `scale_rewards = "none"`) that comes
    closest to the measured update, and `paper_factor_deviation` from sqrt((G-1)/G), or from 1; `error_paper`,
    `error_misprint`, `error_other_loss`, `error_no_epsilon`: relative errors of predictions that are wrong for this
    trainer; `step_rounding`: parameter change against gradient; counts of groups and tokens. With `reward = "constant"`
    every group is silent, and `update_norm` is all there is.
    """
    run = run_trainer(settings, seed, context.directory)
    (update,), (rollout,) = run.updates, run.rollouts
    context.progress(0.5)
    rewards = rollout.rewards
    right = rewards.sum(dim=1)
    mixed = (rewards.amax(dim=1) > rewards.amin(dim=1)).sum()
    values = {
        "groups": len(rewards),
        "mixed_groups": mixed,
        "right_share": right.sum() / rewards.numel(),
        "mean_tokens": rollout.lengths.mean(),
        "shortest_tokens": rollout.lengths.min(),
        "step_rounding": update.rounding,
        "update_norm": agreement(update.change, update.change).norm,
    }
    if settings.reward != "constant":
        policy, _ = load_policy(settings.model, settings.precision, run.device)
        values |= compare(policy, rollout, update.change, settings, context)
    return [{"metric": name, "value": float(value)} for name, value in values.items()]


def predictions(rollout: Rollout, settings: RealGradientsSettings) -> dict[str, Tensor]:
    """Weight of every completion's score, (B,), in the exact prediction (`"exact"`), the paper's, and wrong ones."""
    scale, loss_type = settings.scale_rewards, settings.loss_type

    def weights(form: str, loss: str = loss_type) -> Tensor:
        normalizers = score_normalizers(rollout.lengths, loss, settings.max_new_tokens)
        return identity_weights(rollout.rewards, form) * normalizers

    found = {
        "exact": weights(f"trl-{scale}"),
        "paper": weights("grpo" if scale == "group" else "dr-grpo"),
        "misprint": weights("misprint" if scale == "group" else "misprint-none"),
        "other_loss": weights(f"trl-{scale}", _OTHER_LOSS[loss_type]),
    }
    if scale == "group":
        found["no_epsilon"] = weights("no-epsilon")
    return found


def compare(
    policy: Any, rollout: Rollout, change: Vector, settings: RealGradientsSettings, context: JobContext | None = None
) -> dict[str, float]:
    """Metrics of one update `change` against the predictions from the scores of `rollout` under `policy`.

    The exact prediction is compared on every parameter. The others differ from it by much more than a rounding error
    and are compared on evenly spaced coordinates of every parameter (all of a small model, at most half a million).
    """
    weights = predictions(rollout, settings)
    parameters = list(policy.parameters())
    stride = max(1, sum(p.numel() for p in parameters) // _SAMPLED)
    sampled = [torch.zeros(len(rollout.completions), -(-p.numel() // stride), dtype=torch.float64) for p in parameters]
    predicted = [torch.zeros_like(p, requires_grad=False) for p in parameters]
    exact = weights["exact"].tolist()

    def visit(i: int, j: int, score: Tensor) -> None:
        predicted[j].add_(score, alpha=exact[i])
        sampled[j][i] = score.flatten()[::stride].double().cpu()
        if j == 0 and context is not None:
            context.progress(0.5 + 0.5 * i / len(exact))

    nonzero = (weights["exact"] != 0).double()
    visit_scores(policy, rollout, spread(nonzero, rollout), visit)
    found = agreement(change, predicted)
    values = {"error": found.error}
    if not nonzero.any():  # nothing but silent groups: the update must be zero, and no direction is defined
        return values
    values |= {"cosine": found.cosine, "norm_ratio": found.norm_ratio}
    measured = torch.cat([c.flatten()[::stride].double().cpu() for c in change])
    scores = torch.cat(sampled, dim=1)
    for name, w in weights.items():
        if name != "exact":
            values[f"error_{name}"] = float((measured - w @ scores).norm() / measured.norm())
    paper = weights["paper"] @ scores
    values["paper_factor"] = float(measured @ paper / (paper @ paper))
    values["paper_factor_deviation"] = values["paper_factor"] - expected_factor(settings)
    return values


def expected_factor(settings: RealGradientsSettings) -> float:
    """What TRL's update is of the paper's: sqrt((G-1)/G) for `scale_rewards = "group"` (but for the 1e-4), else 1."""
    size = settings.group_size
    return math.sqrt((size - 1) / size) if settings.scale_rewards == "group" else 1.0
