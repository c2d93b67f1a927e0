"""The paper's objectives written out, token by token, as an independent reference for the trainer and the theorem.

Notation of arXiv:2509.21154: P_{i,t} the ratio of the policy to its own frozen copy, a_i the group-relative advantage,
A_{i,t} the advantage of the process step, D_{i,t} the KL term (k3 estimator, coefficient beta included), lambda(i,t)
the process set. All functions return what is *maximized*; a trainer minimizes its negative.

Shapes: one group of G completions, padded to T tokens; `mask` (G, T) marks real tokens.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor


def token_terms(
    logps: Tensor,
    old_logps: Tensor,
    ref_logps: Tensor | None,
    advantages: Tensor,
    beta: float = 0.0,
    clip: float | None = None,
) -> Tensor:
    """P_{i,t} A - D_{i,t} for every token, (G, T); with `clip`, the clipped surrogate min(P A, clip(P) A) - D.

    `logps` carry the gradient, `old_logps` are those of the policy that sampled; `advantages` is (G, 1) or (G, T).
    """
    ratio = torch.exp(logps - old_logps)
    policy = ratio * advantages
    if clip is not None:
        policy = torch.minimum(policy, ratio.clamp(1 - clip, 1 + clip) * advantages)
    if beta == 0.0 or ref_logps is None:
        return policy
    log_ratio = ref_logps - logps
    return policy - beta * (torch.exp(log_ratio) - log_ratio - 1)


def token_level(terms: Tensor, mask: Tensor) -> Tensor:
    """(1 / sum_i len) sum_i sum_t terms: the normalization of L_GRPO, L_PRM and L_lambda."""
    return (terms * mask).sum() / mask.sum()


def sequence_level(terms: Tensor, mask: Tensor) -> Tensor:
    """(1 / G) sum_i (1 / len_i) sum_t terms: the original GRPO's normalization, for which the theorem does not hold."""
    return ((terms * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()


def enumerate_process_sets(ids: Tensor, mask: Tensor) -> list[tuple[int, list[int]]]:
    """Every process set at every index, by comparing prefixes: list of (t, rows). O(G T^2); for checks only."""
    sets: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, (tokens, real) in enumerate(zip(ids, mask, strict=True)):
        kept = tuple(tokens[real.bool()].tolist())
        for t in range(len(kept)):
            sets[kept[: t + 1]].append(row)
    return [(len(prefix) - 1, rows) for prefix, rows in sets.items()]
