"""Weights on each token's loss term.

A token weight multiplies the whole term of a token in the GRPO objective, policy part and KL part alike:

    L = (1 / normalizer) sum_i sum_t w_{i,t} (P_{i,t} a_i - D_{i,t})

Weights are constants of the gradient. They are computed once per rollout, from whole groups, before a batch is
shuffled, split into micro-batches or divided among processes.

Legend of shapes: B completions of whole groups (group rows contiguous), T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RolloutBatch:
    """What a token weight may look at: every completion of every group of one rollout, gathered from all processes.

    `completion_ids`, `completion_mask`, `set_sizes`: (B, T); `rewards`: (B,); group g holds rows g*G to (g+1)*G - 1.
    """

    completion_ids: Tensor
    completion_mask: Tensor
    set_sizes: Tensor
    rewards: Tensor
    group_size: int


TokenWeight = Callable[[RolloutBatch], Tensor]
"""Maps a rollout to weights of shape (B, T), float, finite and not negative; values on padding do not matter."""


def lambda_weights(set_sizes: Tensor) -> Tensor:
    """Weights 1 / |lambda(i,t)| of lambda-GRPO (Sullivan & Koller, arXiv:2509.21154, definition of L_lambda).

    `set_sizes`: (B, T) integer process-set sizes, 0 on padding. Returns float32 (B, T), 0 on padding.
    Each process set then contributes (P A - D) once, whatever the number of completions that share it.
    """
    return torch.where(set_sizes > 0, 1.0 / set_sizes.clamp(min=1), 0.0).float()


def process_set_weight(batch: RolloutBatch) -> Tensor:
    """The token weight of lambda-GRPO, from a rollout."""
    return lambda_weights(batch.set_sizes)


TOKEN_WEIGHTS: dict[str, TokenWeight | None] = {"grpo": None, "lambda-grpo": process_set_weight}
"""Methods by name; `None` is plain GRPO."""


def gate_gradient(logps: Tensor, weights: Tensor) -> Tensor:
    """Return `logps` unchanged in value, with the gradient of each entry multiplied by its weight.

    `logps`, `weights`: (B, T). A loss that is a sum of terms, each a function of one token's log-probability, gets each
    term's gradient scaled by that token's weight: policy ratio, clipping and KL estimator keep their values, so which
    tokens are clipped does not depend on the weights. Cost: O(B T), no (B, T, V) tensor.
    """
    return _Gate.apply(logps, weights.to(logps.dtype))


class _Gate(torch.autograd.Function):
    """The identity forwards, a product with the weights backwards."""

    @staticmethod
    def forward(ctx: Any, logps: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return logps.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return gradient * weights, None
