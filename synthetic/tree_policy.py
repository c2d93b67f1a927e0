"""A tabular softmax policy on a full binary tree, and its policy gradient from leaf counts: pure functions.

Shape legend: S seeds, N = 2**depth - 1 inner nodes, L = 2**depth leaves, G completions in a group. Inner nodes are in
heap order: the root is 0, the L child of node v is 2v + 1, the R child 2v + 2; leaves follow as nodes N ... N + L - 1.

The policy has one logit per inner node, p(L) = sigmoid(logit). That stands for a softmax over two logits x_L and x_R
with x_L - x_R the logit here. A gradient step moves x_L by +lr * g and x_R by -lr * g, hence their difference by
2 * lr * g, where one logit moves by lr * g: lr on one logit acts as lr / 2 does on two, under SGD as under Adam.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def left_probabilities(logits: np.ndarray) -> np.ndarray:
    """Probability of token L at each node, sigmoid(logit); any shape."""
    with np.errstate(over="ignore"):  # exp(-logit) = inf gives probability 0, which is right
        return 1.0 / (1.0 + np.exp(-logits))


def leaf_probabilities(left_NS: np.ndarray) -> np.ndarray:
    """Probability of each leaf, the product of the node probabilities on its path: (N, S) -> (L, S)."""
    reach = np.ones((1, left_NS.shape[1]))
    while len(reach) <= len(left_NS):
        first = len(reach) - 1  # heap index of the first node of this level
        to_left = reach * left_NS[first : first + len(reach)]
        children = np.empty((2 * len(reach), left_NS.shape[1]))
        children[0::2] = to_left
        children[1::2] = reach - to_left
        reach = children
    return reach


def draw_leaf_counts(probabilities_LS: np.ndarray, uniforms_GS: np.ndarray) -> np.ndarray:
    """Leaf counts of a group of G completions, multinomial(G, probabilities): float64, (L, S).

    Each uniform in [0, 1) picks the leaf whose stretch of the cumulative probabilities it falls in; only how many fall
    below each threshold is counted. Binomial draws down the tree have the same distribution; at depth 4 and G = 16 this
    takes an eighth of their time, and it lets every seed keep a stream of its own. Cost: O(G * L * S) comparisons.
    """
    thresholds = probabilities_LS.cumsum(axis=0)
    thresholds[-1] = np.inf  # rounding must not lose a completion behind the last leaf
    counts_dtype = np.min_scalar_type(len(uniforms_GS))
    below = uniforms_GS[:, None, :] < thresholds
    cumulative = below.view(np.uint8).sum(axis=0, dtype=counts_dtype)
    counts = cumulative.astype(np.float64)
    counts[1:] -= counts[:-1].copy()
    return counts


def group_advantages(
    leaf_counts: np.ndarray, leaf_rewards: np.ndarray, ddof: int = 1, eps: float = 1e-4
) -> tuple[np.ndarray, np.ndarray]:
    """Advantage (r - mean) / (std + eps) of a completion in each leaf: (L, S), and which groups are silent: bool (S,).

    A group whose completions all earn the same has advantages of exactly 0, whatever rounding does to its std.

    Args:
        leaf_counts: completions per leaf, (L, S).
        leaf_rewards: reward of each leaf, (L, S).
        ddof: 1 divides the variance by G - 1, 0 by G.
        eps: added to the standard deviation.
    """
    present = leaf_counts > 0
    highest = np.where(present, leaf_rewards, -np.inf).max(axis=0)
    lowest = np.where(present, leaf_rewards, np.inf).min(axis=0)
    silent = highest == lowest
    size = sum_rows(leaf_counts)
    centered = leaf_rewards - sum_rows(leaf_counts * leaf_rewards) / size
    std = np.sqrt(sum_rows(leaf_counts * centered * centered) / (size - ddof))
    return centered * np.where(silent, 0.0, 1.0 / (std + np.where(silent, 1.0, eps))), silent


def policy_gradient(
    left: np.ndarray,
    leaf_counts: np.ndarray,
    advantages: np.ndarray,
    weighting: str = "grpo",
    beta: float = 0.0,
    reference_left: np.ndarray | None = None,
) -> np.ndarray:
    """Gradient of the token-level objective with respect to the logits, from leaf counts alone: (N, S).

    L = 1 / (G * depth) * sum_i sum_t w(i,t) * (P(i,t) * a_i - beta * D(i,t)), with P = 1 in value (one update a batch),
    D the k3 estimator, and w the weight of `weighting`, policy and KL term alike, the normalizer unchanged: 1 for
    "grpo", 1 / |lambda(i,t)| for "lambda-grpo", and two controls that go by depth alone (see `DIVISORS`). All tokens
    that lead to one node share their value of |lambda|, the node's count, so summing a node's advantages gives GRPO's
    push on it and averaging them gives lambda-GRPO's.

    Args:
        left: probability of L at each inner node, (N, S).
        leaf_counts: completions per leaf, (L, S).
        advantages: advantage of a completion in each leaf, (L, S).
        weighting: a key of `DIVISORS`.
        beta: KL coefficient.
        reference_left: the reference policy's probabilities, (N, S) or (N, 1); needed when beta is not 0.
    """
    right = 1.0 - left
    counts = _heap_sums(leaf_counts)
    push = _heap_sums(leaf_counts * advantages)
    if beta:
        if reference_left is None:
            raise ValueError("beta > 0 needs reference_left, the reference policy's probabilities")
        tiny = np.finfo(np.float64).tiny  # a token of probability 0 is never drawn: its count, so its term, is 0
        push[1::2] -= beta * counts[1::2] * (1.0 - reference_left / np.maximum(left, tiny))
        push[2::2] -= beta * counts[2::2] * (1.0 - (1.0 - reference_left) / np.maximum(right, tiny))
    divisors = DIVISORS[weighting]
    if divisors is not None:
        push /= divisors(counts)
    depth = len(leaf_counts).bit_length() - 1
    # d log pi(L) / d logit = 1 - p(L) and d log pi(R) / d logit = -p(L)
    return (push[1::2] * right - push[2::2] * left) / (counts[0] * depth)


def process_set_divisors(counts_NLS: np.ndarray) -> np.ndarray:
    """Number of completions that pass each node, 1 where none does: what lambda-GRPO divides by."""
    return np.maximum(counts_NLS, 1.0)


def halving_divisors(counts_NLS: np.ndarray) -> np.ndarray:
    """..., 4, 2, 1 by the depth of the token that leads to a node, whatever the group: (N + L, 1)."""
    return np.concatenate([np.full((2**level, 1), 2.0 ** (top - level)) for level, top in _levels(counts_NLS)])


def mean_depth_divisors(counts_NLS: np.ndarray) -> np.ndarray:
    """G over the number of nodes of a depth that some completion passes: lambda-GRPO's mean weight there, inverted."""
    parts = []
    for level, _ in _levels(counts_NLS):
        nodes = counts_NLS[2**level - 1 : 2 ** (level + 1) - 1]
        parts.append(np.repeat((counts_NLS[0] / sum_rows((nodes > 0).astype(np.float64)))[None], 2**level, axis=0))
    return np.concatenate(parts)


def _levels(counts_NLS: np.ndarray) -> list[tuple[int, int]]:
    """(level, depth of the tree) of every level of nodes, root first."""
    depth = (len(counts_NLS) + 1).bit_length() - 2
    return [(level, depth) for level in range(depth + 1)]


DIVISORS: dict[str, Callable[[np.ndarray], np.ndarray] | None] = {
    "grpo": None,
    "lambda-grpo": process_set_divisors,
    "halving-depth": halving_divisors,
    "mean-depth": mean_depth_divisors,
}
"""What the terms of a node's tokens are divided by, from the counts (N + L, S) of completions that pass each node."""


def _heap_sums(leaf_values: np.ndarray) -> np.ndarray:
    """Sums over the leaves below every node, leaves included, in heap order: (L, S) -> (N + L, S)."""
    inner = len(leaf_values) - 1
    sums = np.empty((inner + len(leaf_values), leaf_values.shape[1]))
    sums[inner:] = leaf_values
    first = inner
    while first:
        parent = first // 2
        np.add(sums[first : 2 * first + 1 : 2], sums[first + 1 : 2 * first + 1 : 2], out=sums[parent:first])
        first = parent
    return sums


def sum_rows(values: np.ndarray) -> np.ndarray:
    """Sum over axis 0 in an order that does not depend on the width, unlike numpy's sum: (R, S) -> (S,).

    It keeps a seed's trajectory the same to the last bit whether it runs alone or beside others.
    """
    while len(values) > 1:
        half = len(values) // 2
        rest = values[2 * half :]
        values = values[:half] + values[half : 2 * half]
        if len(rest):
            values[0] += rest[0]
    return values[0]


def column_norms(values: np.ndarray) -> np.ndarray:
    """Euclidean norm of each column: (N, S) -> (S,)."""
    return np.sqrt(sum_rows(values * values))
