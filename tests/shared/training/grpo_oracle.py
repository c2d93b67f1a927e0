"""Independent float64 implementation of the weighted GRPO losses, written from the formulas, as the trainer's oracle.

It shares no code with the trainer: prefix counts are counted, log-probabilities come from the model's plain logits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from grpo_replications.shared.models.precision import in_float64


def double_precision(model: nn.Module) -> nn.Module:
    """The model, computing in float64 throughout."""
    return in_float64(model.double()).eval()


def completion_logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Logits of the model at every completion token's position, (B, T, V), before any temperature."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    length = batch["completion_ids"].size(1)
    return model(input_ids=ids, attention_mask=mask).logits[:, -length - 1 : -1]


def completion_logps(model: nn.Module, batch: dict[str, Tensor], temperature: float = 1.0) -> Tensor:
    """Log-probability of every completion token, (B, T); zero on padding."""
    logps = (completion_logits(model, batch) / temperature).log_softmax(dim=-1)
    return logps.gather(2, batch["completion_ids"].unsqueeze(2)).squeeze(2) * batch["completion_mask"]


def raw_logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Logit of every completion token itself, (B, T), detached."""
    logits = completion_logits(model, batch).detach()
    return logits.gather(2, batch["completion_ids"].unsqueeze(2)).squeeze(2)


def prefix_counts(completions: list[list[int]], group_size: int) -> list[list[int]]:
    """|lambda(i,t)| by comparing every prefix with every completion of the group."""
    counts = []
    for i, own in enumerate(completions):
        first = i // group_size * group_size
        group = completions[first : first + group_size]
        counts.append([sum(other[: t + 1] == own[: t + 1] for other in group) for t in range(len(own))])
    return counts


def advantages(rewards: list[float], group_size: int) -> list[float]:
    """(r - mean) / (sample standard deviation + 1e-4), exactly 0 where all rewards of a group are equal."""
    result = []
    for first in range(0, len(rewards), group_size):
        group = rewards[first : first + group_size]
        mean = sum(group) / group_size
        deviation = math.sqrt(sum((r - mean) ** 2 for r in group) / (group_size - 1))
        silent = max(group) == min(group)
        result += [0.0 if silent else (r - mean) / (deviation + 1e-4) for r in group]
    return result


def loss(
    kind: str,
    logps: Tensor,
    old: Tensor,
    ref: Tensor | None,
    a: Tensor,
    weights: Tensor,
    mask: Tensor,
    *,
    beta: float,
    normalizer: float,
    epsilon: float = 0.2,
) -> Tensor:
    """The loss of one micro-batch with every token's term, policy and KL, multiplied by its weight.

    `normalizer`: what the sum of terms is divided by, for loss types with one divisor; "grpo" and "sapo" average each
    completion over its tokens first and divide by the number of completions.
    """
    a = a.unsqueeze(1)
    ratio = torch.exp(logps - old)
    if kind in ("grpo", "bnpo", "dr_grpo", "dapo"):
        gain = torch.minimum(ratio * a, ratio.clamp(1 - epsilon, 1 + epsilon) * a)
    elif kind == "cispo":
        gain = ratio.clamp(max=epsilon).detach() * a * logps
    elif kind == "sapo":
        temperature = torch.where(a > 0, 1.0, 1.05)
        gain = torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * a
    elif kind == "vespo":
        k = torch.where(a >= 0, 2.0, 3.0)
        lam = torch.where(a >= 0, 3.0, 2.0)
        log_w = ((logps - old) * mask).sum(dim=1, keepdim=True).detach()
        gain = torch.exp(lam + k * log_w - lam * log_w.exp()) * a * logps
    else:
        raise ValueError(kind)
    if ref is not None:
        log_ratio = ref - logps
        gain = gain - beta * (torch.exp(log_ratio) - log_ratio - 1)
    terms = -(weights * gain * mask)
    if kind in ("grpo", "sapo"):
        return (terms.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).sum() / normalizer
    return terms.sum() / normalizer


def sharpness(h: Tensor, alpha: float, tau: float, mu: float, lower: float, upper: float) -> Tensor:
    """Weights of the sharpness-guided method, as equation 20 is written."""
    raised = alpha * (1 / (1 + torch.exp(-h.detach() / tau)) - mu)
    return torch.minimum(torch.maximum(raised, torch.tensor(lower)), torch.tensor(upper))


def placed_loss(
    kind: str,
    logps: Tensor,
    old: Tensor,
    ref: Tensor | None,
    a: Tensor,
    mask: Tensor,
    *,
    weights: Tensor,
    placement: str,
    weight_kl: bool,
    isolated: Tensor | None = None,
    beta: float,
    normalizer: float,
    epsilon: float = 0.2,
) -> Tensor:
    """The loss of one micro-batch with the weight in one of its places; `isolated`: tokens with a term at all.

    Outside: w min(r A, clip(r) A) - beta KL, KL weighted too if `weight_kl`. Inside: min(w r A, clip(w r) A) - beta KL,
    where KL compares w pi with pi_ref if `weight_kl`, else pi with pi_ref.
    """
    inside = placement == "inside"
    a, ratio = a.unsqueeze(1), torch.exp(logps - old)
    if inside:
        ratio = weights * ratio
    if kind in ("grpo", "bnpo", "dr_grpo", "dapo"):
        policy = torch.minimum(ratio * a, ratio.clamp(1 - epsilon, 1 + epsilon) * a)
    elif kind == "cispo":
        policy = ratio.clamp(max=epsilon).detach() * a * logps
    elif kind == "sapo":
        temperature = torch.where(a > 0, 1.0, 1.05)
        policy = torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * a
    else:
        raise ValueError(kind)
    terms = policy if inside else weights * policy
    if ref is not None:
        q = weights * logps.exp() if inside and weight_kl else logps.exp()
        r = ref.exp() / q
        kl = r - r.log() - 1
        terms = terms - beta * (weights * kl if weight_kl and not inside else kl)
    terms = -torch.where(mask.bool(), terms, 0.0)
    if isolated is not None:
        terms = terms * isolated
    if kind in ("grpo", "sapo"):
        return (terms.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).sum() / normalizer
    return terms.sum() / normalizer


def flat_gradient(value: Tensor, model: nn.Module) -> Tensor:
    """Gradient of `value` over all trainable parameters as one vector."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)])


def regroup(micro_batches: list[dict[str, Any]]) -> list[list[int]]:
    """Completions of one rollout in the order in which they were sampled, from shuffled micro-batches."""
    rows: dict[int, list[int]] = {}
    for batch in micro_batches:
        for row, ids, mask in zip(batch["row"], batch["completion_ids"], batch["completion_mask"], strict=True):
            rows[int(row)] = ids[mask.bool()].tolist()
    return [rows[row] for row in sorted(rows)]
