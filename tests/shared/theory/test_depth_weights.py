"""Weights by depth: the same for every completion of a group, and with the course of lambda-GRPO's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_replications.shared.theory.depth_weights import FixedDepthWeights, depth_mean_weights, halving_weights
from grpo_replications.shared.theory.process_sets import process_set_sizes
from grpo_replications.shared.theory.weighting import RolloutBatch


def rollout(completions: list[list[int]], group_size: int, columns: int = 5) -> RolloutBatch:
    ids = torch.tensor([row + [0] * (columns - len(row)) for row in completions])
    mask = torch.tensor([[1] * len(row) + [0] * (columns - len(row)) for row in completions])
    return RolloutBatch(ids, mask, process_set_sizes(ids, mask, group_size), torch.zeros(len(ids)), group_size)


@given(st.lists(st.lists(st.integers(0, 1), max_size=5), min_size=8, max_size=8))
def test_the_depth_mean_counts_different_prefixes(completions: list[list[int]]) -> None:
    weights = depth_mean_weights(rollout(completions, 4))
    for row, own in enumerate(completions):
        group = completions[row // 4 * 4 : row // 4 * 4 + 4]
        for t in range(5):
            reaching = [other[: t + 1] for other in group if len(other) > t]
            expected = len(set(map(tuple, reaching))) / len(reaching) if t < len(own) else 0.0
            assert float(weights[row, t]) == pytest.approx(expected)


def test_fixed_weights_follow_depth_alone() -> None:
    batch = rollout([[1, 1, 1, 1, 1], [1, 0], [], [0, 1, 0]], 4)
    weights = halving_weights(3)(batch)
    assert weights.shape == (4, 5)
    for row, length in enumerate([5, 2, 0, 3]):
        assert weights[row, :length].tolist() == [0.25, 0.5, 1.0, 1.0, 1.0][:length]
    assert FixedDepthWeights([0.3])(batch)[0].tolist() == pytest.approx([0.3] * 5)
    # In a full binary tree visited evenly, each is lambda-GRPO's weight.
    even = rollout([[a, b] for a in (0, 1) for b in (0, 1)], 4, columns=2)
    assert torch.equal(halving_weights(2)(even), 1.0 / even.set_sizes)


@pytest.mark.parametrize("wrong", [[], [0.0], [-1.0], [float("nan")], [float("inf")]])
def test_weights_that_are_none_are_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        FixedDepthWeights(wrong)
