"""Scores of completions by plain autograd, and the update that the identity predicts from them.

Nothing here knows how the trainer computes its loss. A completion's score is the gradient of its log-probability,
s_i = grad log pi(o_i | prompt); the loss type decides by which constant it is divided, and the identity says with which
weight it enters the update, from the number of right completions alone. Every completion is scored by itself, without
padding.

Legend of shapes: N groups of one batch, G completions of a group, B = N G completions, T tokens of one completion. A
*vector* over the parameters is a list with one tensor per parameter, in the order of `model.parameters()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.precision import in_float64, with_exact_rotary
from grpo_replications.shared.theory.closed_forms import sigma
from grpo_replications.shared.theory.groups import dr_grpo_advantages, grpo_advantages

TRL_EPSILON = 1e-4
"""What TRL adds to the standard deviation that it divides by."""

CLIP = 0.2
"""TRL's default bound on the ratio of probabilities: a ratio outside 1 - CLIP, 1 + CLIP may be clipped."""

Vector = list[Tensor]

_CHUNK = 2**20


@dataclass(frozen=True)
class Rollout:
    """What one rollout of the trainer held: token ids of B prompts and completions (groups adjacent), rewards (N, G).

    Rewards are float64 and hold the numbers that the trainer used.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    rewards: Tensor

    @property
    def lengths(self) -> Tensor:
        """Tokens of each completion, (B,) float64."""
        return torch.tensor([len(ids) for ids in self.completions], dtype=torch.float64)


def load_policy(name: str, precision: str, device: str = "cpu") -> tuple[Any, Any]:
    """The model `name` and its tokenizer, in "float32" or "float64"; the latter in every layer, not in weights only."""
    model, tokenizer = catalog.load(name, dtype=precision)
    if precision == "float64":
        model = with_exact_rotary(in_float64(model))
    return model.to(device), tokenizer


# --- what the identity predicts ---------------------------------------------------------------------------------------


def identity_gain(k: Tensor, size: int, form: str) -> Tensor:
    """The factor before (mean right score - mean wrong score) of a group, for k right completions of `size`.

    sigma = sqrt(k (G - k)) / G is the population standard deviation. Forms (Bay & Yearick, Theorem 1, and what follows
    from the same algebra for a trainer that divides by the sample deviation plus 1e-4):
    `"grpo"` sigma; `"dr-grpo"` sigma^2; `"trl-group"` sigma^2 / (sigma sqrt(G / (G - 1)) + 1e-4); `"trl-none"` sigma^2.
    Wrong on purpose: `"no-epsilon"` leaves out the 1e-4; `"misprint"` and `"misprint-none"` use sqrt(k (G - k) / G).
    """
    s = torch.as_tensor(sigma(k.numpy(), size), dtype=torch.float64)
    sample = s * math.sqrt(size / (size - 1))
    misprinted = (k * (size - k) / size).sqrt()
    forms = {
        "grpo": s,
        "dr-grpo": s**2,
        "trl-group": s**2 / (sample + TRL_EPSILON),
        "trl-none": s**2,
        "no-epsilon": torch.where(s > 0, s**2 / sample.clamp(min=1e-300), 0.0),
        "misprint": misprinted,
        "misprint-none": misprinted**2,
    }
    return forms[form]


def identity_weights(rewards: Tensor, form: str) -> Tensor:
    """Weight of each score in the predicted update, (N, G) rewards of 0 and 1 to (B,).

    The update of a batch is the mean over its groups of gain (mean right score - mean wrong score); a silent group has
    no such difference and adds nothing. Raises ValueError for rewards other than 0 and 1.
    """
    if not ((rewards == 0) | (rewards == 1)).all():
        raise ValueError("the identity is about rewards of 0 and 1")
    groups, size = rewards.shape
    k = rewards.sum(dim=1)
    gain = identity_gain(k, size, form).unsqueeze(1)
    right, wrong = k.clamp(min=1).unsqueeze(1), (size - k).clamp(min=1).unsqueeze(1)
    weights = torch.where(rewards == 1, gain / right, -gain / wrong)
    return torch.where(((k > 0) & (k < size)).unsqueeze(1), weights, 0.0).flatten() / groups


def advantage_weights(rewards: Tensor, scale_rewards: str) -> Tensor:
    """Weight A_i / (N G) of each score for any rewards, (N, G) to (B,): the general form, which needs no identity."""
    advantages = {"group": grpo_advantages, "none": dr_grpo_advantages}[scale_rewards](rewards)
    return advantages.flatten() / rewards.numel()


def score_normalizers(lengths: Tensor, loss_type: str, max_new_tokens: int) -> Tensor:
    """What a loss type multiplies each score by, (B,): the score that the identity then speaks of.

    "grpo" divides by the completion's own length, "dapo" by the mean length of the batch (so that the batch as a whole
    is divided by its number of tokens), "dr_grpo" by the largest length allowed.
    """
    divisors = {
        "grpo": lengths,
        "dapo": torch.full_like(lengths, float(lengths.mean())),
        "dr_grpo": torch.full_like(lengths, float(max_new_tokens)),
    }
    return 1.0 / divisors[loss_type]


def is_clipped(ratio: Tensor, advantage: Tensor) -> Tensor:
    """Whether PPO's minimum drops a token's term; shapes broadcast, the result is bool.

    It does for a ratio above 1 + CLIP where the advantage is positive, and below 1 - CLIP where it is negative.
    """
    return torch.where(advantage > 0, ratio > 1 + CLIP, ratio < 1 - CLIP)


def kl_weights(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """Weight of each token's score in the gradient of the k3 estimate of the KL to the reference, (T,).

    k3 = exp(ref - logp) - (ref - logp) - 1, whose derivative is 1 - exp(ref - logp): 0 where the policies agree.
    """
    return 1.0 - (ref_logps - logps).exp()


# --- scores -----------------------------------------------------------------------------------------------------------


def completion_logps(model: Any, prompt: list[int], completion: list[int]) -> Tensor:
    """Log-probability of each token of one completion, (T,), in the model's own precision; no padding."""
    device = next(model.parameters()).device
    ids = torch.tensor([prompt + completion], device=device)
    logits = model(input_ids=ids, logits_to_keep=len(completion) + 1, use_cache=False).logits[0, :-1]
    return logits.log_softmax(dim=-1).gather(1, ids[0, len(prompt) :].unsqueeze(1)).squeeze(1)


def rollout_logps(model: Any, rollout: Rollout) -> list[Tensor]:
    """Log-probabilities of every completion, one (T,) each, without gradient."""
    with torch.no_grad():
        return [completion_logps(model, *pair) for pair in zip(rollout.prompts, rollout.completions, strict=True)]


def visit_scores(
    model: Any, rollout: Rollout, token_weights: list[Tensor], visit: Callable[[int, int, Tensor], None]
) -> None:
    """Call `visit(i, j, s_ij)` with the gradient s_ij, by parameter j, of sum_t token_weights[i][t] log pi(o_it | .).

    With weights of 1 this is the score of completion i. One parameter's gradient exists at a time, so a large model
    needs no memory for whole scores. A completion whose weights are all 0 is passed over. Cost: one forward and one
    backward pass per completion.
    """
    parameters = list(model.parameters())
    row = -1

    def hand_over(j: int) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            visit(row, j, parameter.grad)
            parameter.grad = None

        return hook

    handles = [p.register_post_accumulate_grad_hook(hand_over(j)) for j, p in enumerate(parameters)]
    try:
        for row, weights in enumerate(token_weights):
            if bool((weights != 0).any()):
                logps = completion_logps(model, rollout.prompts[row], rollout.completions[row])
                (logps * weights.to(logps)).sum().backward()
    finally:
        for handle in handles:
            handle.remove()


def weighted_score(model: Any, rollout: Rollout, token_weights: list[Tensor]) -> Vector:
    """sum_it token_weights[i][t] grad log pi(o_it | .), a vector: an update, given every token's weight in it."""
    total = [torch.zeros_like(p, requires_grad=False) for p in model.parameters()]
    visit_scores(model, rollout, token_weights, lambda _, j, gradient: total[j].add_(gradient))
    return total


def spread(weights: Tensor, rollout: Rollout) -> list[Tensor]:
    """Weights of completions (B,) as weights of their tokens, one (T,) each."""
    return [w.expand(len(ids)) for w, ids in zip(weights, rollout.completions, strict=True)]


# --- vectors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """How a measured vector compares with a predicted one.

    `error` |measured - predicted| / |measured|; `cosine` of their angle; `norm_ratio` |measured| / |predicted|;
    `norm` |measured|. Where both vanish the error is 0 and the other two are NaN.
    """

    error: float
    cosine: float
    norm_ratio: float
    norm: float


def agreement(measured: Vector, predicted: Vector) -> Agreement:
    """Compare two vectors; sums run in float64 whatever their type, in pieces that need little memory."""
    sums = torch.zeros(4, dtype=torch.float64)
    for x, y in zip(measured, predicted, strict=True):
        for a, b in zip(x.flatten().split(_CHUNK), y.flatten().split(_CHUNK), strict=True):
            a, b = a.double(), b.double()
            sums += torch.stack([a @ a, b @ b, a @ b, (a - b) @ (a - b)]).cpu()
    xx, yy, xy, difference = sums.tolist()
    if xx == yy == 0.0:
        return Agreement(0.0, math.nan, math.nan, 0.0)
    error = math.sqrt(difference / xx) if xx > 0 else math.inf
    cosine = xy / math.sqrt(xx * yy) if xx > 0 and yy > 0 else math.nan
    return Agreement(error, cosine, math.sqrt(xx / yy) if yy > 0 else math.inf, math.sqrt(xx))
