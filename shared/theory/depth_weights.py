"""Token weights that depend on depth alone: controls for weights that depend on the prefix tree.

A weight of lambda-GRPO is small near the root, where many completions are together, and 1 where each is alone. These
weights have that course too, but treat all completions of a group alike at a depth. What lambda-GRPO gains over them is
due to the tree; what it gains with them is due to depth.

Functions on rollouts (`shared.theory.weighting`); depth is the rank of a token among those of its completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_replications.shared.theory.weighting import RolloutBatch


@dataclass(frozen=True)
class FixedDepthWeights:
    """The weight of a token is `by_depth[t]` at depth t, and the last of them beyond. Raises ValueError for weights
    that are not finite and positive, or for none."""

    by_depth: tuple[float, ...]

    def __init__(self, by_depth: Sequence[float]) -> None:
        object.__setattr__(self, "by_depth", tuple(float(weight) for weight in by_depth))
        if not self.by_depth or not all(0 < weight < float("inf") for weight in self.by_depth):
            raise ValueError(f"depth weights must be one or more positive numbers, got {self.by_depth}")

    def __call__(self, batch: RolloutBatch) -> Tensor:
        """Weights of a rollout, float32 (B, T)."""
        depth = (batch.completion_mask != 0).long().cumsum(dim=1).sub(1).clamp(0, len(self.by_depth) - 1)
        return torch.tensor(self.by_depth, device=depth.device)[depth]


def halving_weights(depth: int) -> FixedDepthWeights:
    """Weights ..., 1/4, 1/2, 1 over `depth` tokens: 1 / |lambda| to scale, where every node of a tree splits in two."""
    return FixedDepthWeights([2.0 ** (t + 1 - depth) for t in range(depth)])


def depth_mean_weights(batch: RolloutBatch) -> Tensor:
    """At each depth of each group, the mean of 1 / |lambda| over the group's tokens there: float32 (B, T).

    That is the number of different prefixes at that depth over the number of completions that reach it. The same course
    over depth as lambda-GRPO on the same rollout, without its differences between completions. O(B T).
    """
    real = batch.completion_mask != 0
    depth = real.long().cumsum(dim=1).sub(1).clamp(min=0)
    groups = torch.arange(len(depth), device=depth.device).div(batch.group_size, rounding_mode="floor").unsqueeze(1)
    place = (groups * depth.size(1) + depth)[real]
    inverse = 1.0 / batch.set_sizes[real].double()
    totals = torch.zeros(2, depth.numel() // batch.group_size, dtype=torch.float64, device=depth.device)
    totals[0].index_add_(0, place, inverse)
    totals[1].index_add_(0, place, torch.ones_like(inverse))
    weights = torch.zeros(depth.shape, device=depth.device)
    weights[real] = (totals[0] / totals[1].clamp(min=1))[place].float()
    return weights
