"""Slow, plain version of the tabular policy on the tree: the oracle for `synthetic.binary_tree`.

It draws every completion token by token (numpy over the G completions), finds each token's process set by comparing
prefixes, and loops over seeds. It shares nothing with the fast version but the environment's rewards.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def draw_paths(logits: np.ndarray, depth: int, group_size: int, generator: np.random.Generator) -> np.ndarray:
    """Completions drawn token by token: int, shape (G, depth), 0 = L and 1 = R."""
    nodes = np.zeros(group_size, dtype=int)
    paths = np.empty((group_size, depth), dtype=int)
    for t in range(depth):
        left = 1.0 / (1.0 + np.exp(-logits[nodes]))
        paths[:, t] = generator.random(group_size) >= left
        nodes = 2 * nodes + 1 + paths[:, t]
    return paths


def process_set_sizes(paths: np.ndarray) -> np.ndarray:
    """|lambda(i,t)| by comparing every completion's first t + 1 tokens with every other's: shape (G, depth)."""
    same_token = paths[:, None, :] == paths[None, :, :]
    same_prefix = np.logical_and.accumulate(same_token, axis=-1)
    return same_prefix.sum(axis=1)


def advantages(rewards: np.ndarray, ddof: int = 1, eps: float = 1e-4) -> np.ndarray:
    """(r - mean) / (std + eps), exactly 0 for equal rewards: shape (G,)."""
    if rewards.max() == rewards.min():
        return np.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(ddof=ddof) + eps)


def gradient(
    logits: np.ndarray,
    paths: np.ndarray,
    rewards: np.ndarray,
    weighted: bool,
    beta: float = 0.0,
    reference: np.ndarray | None = None,
) -> np.ndarray:
    """Gradient of the objective, one term per token: shape (N,)."""
    group_size, depth = paths.shape
    advantage = advantages(rewards)
    weights = 1.0 / process_set_sizes(paths) if weighted else np.ones(paths.shape)
    total = np.zeros(len(logits))
    nodes = np.zeros(group_size, dtype=int)
    for t in range(depth):
        left = 1.0 / (1.0 + np.exp(-logits[nodes]))
        went_left = paths[:, t] == 0
        coefficient = advantage.copy()
        if beta:
            reference_left = 1.0 / (1.0 + np.exp(-reference[nodes]))
            ratio = np.where(went_left, reference_left / left, (1.0 - reference_left) / (1.0 - left))
            coefficient -= beta * (1.0 - ratio)
        np.add.at(total, nodes, weights[:, t] * coefficient * (went_left - left))
        nodes = 2 * nodes + 1 + paths[:, t]
    return total / (group_size * depth)


def target_probability(logits: np.ndarray, target_path: Iterable[int]) -> float:
    """Probability of the target path."""
    node, probability = 0, 1.0
    for token in target_path:
        left = 1.0 / (1.0 + np.exp(-logits[node]))
        probability *= left if token == 0 else 1.0 - left
        node = 2 * node + 1 + int(token)
    return float(probability)


def run_paths(
    tree, method: str, optimizer: str, lr: float, group_size: int = 16, steps: int = 250, seeds: Iterable[int] = (0,)
) -> np.ndarray:
    """Target probability before each update, one seed after the other: shape (steps, S)."""
    columns = []
    for seed in seeds:
        generator = np.random.default_rng(seed)
        target = int(generator.integers(tree.leaves))
        leaf_rewards = tree.leaf_rewards(target)
        logits = np.zeros(tree.inner_nodes)
        first, second = np.zeros_like(logits), np.zeros_like(logits)
        column = []
        for step in range(1, steps + 1):
            column.append(target_probability(logits, tree.path_of_leaf(target)))
            paths = draw_paths(logits, tree.depth, group_size, generator)
            rewards = leaf_rewards[paths @ 2 ** np.arange(tree.depth - 1, -1, -1)]
            g = gradient(logits, paths, rewards, weighted=method == "lambda-grpo")
            if optimizer == "sgd":
                logits = logits + lr * g
            else:
                first = 0.9 * first + 0.1 * g
                second = 0.999 * second + 0.001 * g**2
                logits = logits + lr * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        columns.append(column)
    return np.array(columns).T
