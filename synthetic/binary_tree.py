"""The synthetic tree of the lambda-GRPO paper (section on process sets, Table 1) and a tabular policy trained on it.

A completion is a path of `depth` tokens, each L or R, so it ends in one of `2**depth` leaves. One target path earns
+1.0, every other path that shares the target's first n tokens earns r_neg, all remaining paths earn +0.7.

Everything here is exact where it can be: the policy's probability of the target is a product, not a frequency, and a
group is drawn as the counts of its completions per leaf, since neither method's gradient depends on anything else.

Departures from the paper, which trains GPT-2-small restricted to two tokens:

* The policy is a table, so nodes share no parameters.
* The paper's learning rate, 1e-5, is GPT-2's and means nothing to a table; optimizer, KL and whether the target is
  redrawn per seed are not stated. Here all four are arguments. With a table that starts symmetric (all logits 0) every
  target has the same law, so redrawing it changes nothing.

Shape legend: S seeds, N = 2**depth - 1 inner nodes, L = 2**depth leaves, G completions in a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from grpo_replications.synthetic.tree_policy import (
    DIVISORS,
    column_norms,
    draw_leaf_counts,
    group_advantages,
    leaf_probabilities,
    left_probabilities,
    policy_gradient,
    sum_rows,
)

METHODS = (*DIVISORS, "lambda-grpo-matched", "grpo-matched")
OPTIMIZERS = ("sgd", "adam")

# First words of the seed sequences: sampling and the choice of target never share a stream.
_SAMPLING_STREAM = 1
_TARGET_STREAM = 2
# Seeds simulated side by side. Affects speed only (arrays of this width stay in the cache), never a result.
_SEEDS_PER_BLOCK = 500


@dataclass(frozen=True)
class BinaryTree:
    """The environment: a full binary tree whose leaves carry rewards.

    Args:
        depth: tokens per completion, at least 2.
        prefix_length: n, the number of leading target tokens that mark a path as part of the target's neighborhood;
            1 <= n < depth, so that both other kinds of path exist.
        target_reward: reward of the target path.
        prefix_reward: r_neg, reward of the other paths that share the target's first n tokens.
        other_reward: reward of all remaining paths.

    Raises:
        ValueError: an argument is outside its range or a reward is not finite.
    """

    depth: int = 4
    prefix_length: int = 1
    target_reward: float = 1.0
    prefix_reward: float = -0.5
    other_reward: float = 0.7

    def __post_init__(self) -> None:
        if self.depth < 2:
            raise ValueError(f"depth must be at least 2, got {self.depth}")
        if not 1 <= self.prefix_length < self.depth:
            raise ValueError(f"prefix_length must be in 1 ... {self.depth - 1} (depth - 1), got {self.prefix_length}")
        for name in ("target_reward", "prefix_reward", "other_reward"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")

    @property
    def leaves(self) -> int:
        """Number of leaves L, which is the number of different completions."""
        return 2**self.depth

    @property
    def inner_nodes(self) -> int:
        """Number of inner nodes N, which is the number of the policy's parameters."""
        return self.leaves - 1

    def path_of_leaf(self, leaf: int) -> tuple[int, ...]:
        """Tokens (0 = L, 1 = R) that lead to a leaf: the leaf's number in binary, first token first."""
        self._check_leaf(leaf)
        return tuple((leaf >> (self.depth - 1 - level)) & 1 for level in range(self.depth))

    def leaf_rewards(self, target: int) -> np.ndarray:
        """Rewards of all leaves when `target` is the target leaf: float64, shape (L,)."""
        self._check_leaf(target)
        ignored_bits = self.depth - self.prefix_length
        shares_prefix = np.arange(self.leaves) >> ignored_bits == target >> ignored_bits
        rewards = np.where(shares_prefix, float(self.prefix_reward), float(self.other_reward))
        rewards[target] = self.target_reward
        return rewards

    def random_target(self, seed: int) -> int:
        """Target leaf of a seed, uniform over the leaves, from a stream that sampling does not touch."""
        return int(_generator(_TARGET_STREAM, seed).integers(self.leaves))

    def _check_leaf(self, leaf: int) -> None:
        if not 0 <= leaf < self.leaves:
            raise ValueError(f"a tree of depth {self.depth} has leaves 0 ... {self.leaves - 1}, got {leaf}")


@dataclass(frozen=True)
class TabularResult:
    """Trajectories of one configuration; row t describes the policy that samples in step t, before its update.

    Attributes:
        seeds: shape (S,).
        target_probability: exact probability of the target path, shape (steps, S).
        update_norm: Euclidean length of the change that step t makes to the logits, shape (steps, S).
        silent: whether the group of step t had equal rewards throughout, bool, shape (steps, S).
        logits: logits after the last update, shape (S, N).
    """

    seeds: np.ndarray
    target_probability: np.ndarray
    update_norm: np.ndarray
    silent: np.ndarray
    logits: np.ndarray

    def steps_to(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Steps until the target's probability first reaches `level`, and whether it never did: shape (S,) each.

        A run that never did has the number of all steps, and is censored there.
        """
        reached = self.target_probability >= level
        censored = ~reached.any(axis=0)
        return np.where(censored, len(reached), reached.argmax(axis=0)), censored

    def target_frequency(self, last: int = 50) -> np.ndarray:
        """Mean exact target probability over the last steps, the metric of Table 1: shape (S,)."""
        steps = len(self.target_probability)
        if not 1 <= last <= steps:
            raise ValueError(f"last must be in 1 ... {steps} (the number of steps), got {last}")
        return sum_rows(self.target_probability[-last:]) / last


def run_tabular(
    tree: BinaryTree,
    method: str,
    optimizer: str,
    lr: float,
    *,
    group_size: int = 16,
    steps: int = 250,
    seeds: Sequence[int] = range(1000),
    targets: Sequence[int] | None = None,
    initial_logits: np.ndarray | None = None,
    ddof: int = 1,
    eps: float = 1e-4,
    beta: float = 0.0,
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    adam_eps: float = 1e-8,
) -> TabularResult:
    """Train the tabular policy once per seed, all seeds of the configuration side by side, in float64.

    A seed's random numbers depend on the seed alone. Its trajectory is therefore the same whichever seeds run
    beside it, and configurations see common random numbers: compare them seed by seed, as pairs.

    Methods:
        grpo: token-level loss, advantages (r - mean) / (std + eps).
        lambda-grpo: each token's term divided by its process set's size.
        halving-depth: each token's term weighed by its depth alone, ..., 1/4, 1/2, 1.
        mean-depth: lambda-GRPO's weights averaged within each group and depth: no process sets, the same depth.
        lambda-grpo-matched: lambda-GRPO's direction at GRPO's length; in every step and seed the gradient is rescaled
            to the norm of GRPO's gradient on the same sample. What still differs from grpo is due to direction.
        grpo-matched: GRPO's direction at lambda-GRPO's length; the same the other way round.

    Under SGD, matching gradients matches step sizes. Adam divides by its running scale of each parameter's gradient.
    In a table every node has a parameter of its own, and lambda-GRPO's factor is one per node (about 8, 4, 2, 1 by
    depth): Adam removes most of it, with or without matching. A model whose nodes share parameters keeps the factor,
    so that Adam on a table says nothing about Adam on a transformer.

    Args:
        tree: the environment.
        method: one of METHODS.
        optimizer: one of OPTIMIZERS, with PyTorch's update rules.
        lr: learning rate on one logit per node (see `synthetic.tree_policy`).
        group_size: G, above ddof.
        steps: groups drawn, one update each.
        seeds: distinct runs, integers >= 0.
        targets: target leaf per seed; by default drawn for each seed.
        initial_logits: shape (N,), zeros by default; also the reference policy of the KL term.
        ddof: of the group's standard deviation.
        eps: added to it.
        beta: coefficient of the k3 KL term to the initial policy. A silent group keeps its KL gradient.
        momentum: of SGD.
        betas: of Adam.
        adam_eps: of Adam.

    Raises:
        ValueError: unknown method or optimizer, or an argument out of range.

    Cost: O(steps * S * L * G) byte-wide comparisons plus O(steps * S * L) arithmetic; memory
    8 * steps * (500 G + 3 S) bytes. At depth 4, G = 16, 250 steps and 1,000 seeds about 0.25 s on one core.
    """
    _check_run(method, optimizer, lr, group_size, steps, ddof, beta)
    seeds = [int(seed) for seed in seeds]
    if not seeds or min(seeds) < 0:
        raise ValueError("seeds must be one or more integers >= 0")
    if targets is None:
        targets = [tree.random_target(seed) for seed in seeds]
    if len(targets) != len(seeds):
        raise ValueError(f"{len(targets)} targets for {len(seeds)} seeds")
    start = np.zeros(tree.inner_nodes) if initial_logits is None else np.asarray(initial_logits, dtype=np.float64)
    if start.shape != (tree.inner_nodes,):
        raise ValueError(f"initial_logits must have shape ({tree.inner_nodes},), got {start.shape}")

    reference_left = left_probabilities(start)[:, None]
    blocks = []
    for first in range(0, len(seeds), _SEEDS_PER_BLOCK):
        block = slice(first, first + _SEEDS_PER_BLOCK)
        blocks.append(
            _run_block(
                tree,
                seeds[block],
                targets[block],
                logits=np.repeat(start[:, None], len(seeds[block]), axis=1),
                steps=steps,
                group_size=group_size,
                advantages_of=partial(group_advantages, ddof=ddof, eps=eps),
                gradient_of=partial(_method_gradient, method, beta=beta, reference_left=reference_left),
                update_of=_Sgd(lr, momentum) if optimizer == "sgd" else _Adam(lr, betas, adam_eps),
            )
        )
    return TabularResult(
        seeds=np.concatenate([block.seeds for block in blocks]),
        target_probability=np.concatenate([block.target_probability for block in blocks], axis=1),
        update_norm=np.concatenate([block.update_norm for block in blocks], axis=1),
        silent=np.concatenate([block.silent for block in blocks], axis=1),
        logits=np.concatenate([block.logits for block in blocks]),
    )


def _run_block(
    tree: BinaryTree,
    seeds: Sequence[int],
    targets: Sequence[int],
    *,
    logits: np.ndarray,
    steps: int,
    group_size: int,
    advantages_of: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    gradient_of: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    update_of: Callable[[np.ndarray], np.ndarray],
) -> TabularResult:
    """Train some seeds side by side from `logits` (N, S), which it changes in place."""
    width = len(seeds)
    rewards_LS = np.stack([tree.leaf_rewards(target) for target in targets], axis=1)
    uniforms = np.stack([sampling_uniforms(seed, steps, group_size) for seed in seeds], axis=-1)  # (steps, G, S)
    target_probability, update_norm = np.empty((steps, width)), np.empty((steps, width))
    silent = np.empty((steps, width), dtype=bool)
    target_of_seed = (np.asarray(targets), np.arange(width))
    for step in range(steps):
        left = left_probabilities(logits)
        probabilities = leaf_probabilities(left)
        target_probability[step] = probabilities[target_of_seed]
        counts = draw_leaf_counts(probabilities, uniforms[step])
        advantages, silent[step] = advantages_of(counts, rewards_LS)
        update = update_of(gradient_of(left, counts, advantages))
        update_norm[step] = column_norms(update)
        logits += update
    return TabularResult(np.array(seeds), target_probability, update_norm, silent, logits.T.copy())


def _method_gradient(
    method: str,
    left: np.ndarray,
    counts: np.ndarray,
    advantages: np.ndarray,
    *,
    beta: float,
    reference_left: np.ndarray,
) -> np.ndarray:
    """Gradient of a method of METHODS (see `run_tabular`): (N, S)."""
    name = method.removesuffix("-matched")
    own = policy_gradient(left, counts, advantages, name, beta, reference_left)
    if name == method:
        return own
    opposite = "grpo" if name == "lambda-grpo" else "lambda-grpo"
    other = policy_gradient(left, counts, advantages, opposite, beta, reference_left)
    own_norm = column_norms(own)
    return own * (column_norms(other) / np.where(own_norm > 0, own_norm, 1.0))


class _Sgd:
    """Ascent by SGD with PyTorch's momentum: gradient (N, S) -> change of the logits (N, S)."""

    def __init__(self, lr: float, momentum: float) -> None:
        self.lr, self.momentum, self.velocity = lr, momentum, 0.0

    def __call__(self, gradient: np.ndarray) -> np.ndarray:
        if self.momentum:
            self.velocity = gradient = self.momentum * self.velocity + gradient
        return self.lr * gradient


class _Adam:
    """Ascent by Adam (Kingma & Ba, 2015, algorithm 1): gradient (N, S) -> change of the logits (N, S)."""

    def __init__(self, lr: float, betas: tuple[float, float], eps: float) -> None:
        self.lr, self.betas, self.eps = lr, betas, eps
        self.first, self.second, self.step = 0.0, 0.0, 0

    def __call__(self, gradient: np.ndarray) -> np.ndarray:
        beta1, beta2 = self.betas
        self.step += 1
        self.first = beta1 * self.first + (1.0 - beta1) * gradient
        self.second = beta2 * self.second + (1.0 - beta2) * gradient * gradient
        scale = np.sqrt(self.second / (1.0 - beta2**self.step)) + self.eps
        return self.lr / (1.0 - beta1**self.step) * self.first / scale


def sampling_uniforms(seed: int, steps: int, group_size: int) -> np.ndarray:
    """The random numbers that a seed samples its completions with, one each: float64 in [0, 1), shape (steps, G)."""
    return _generator(_SAMPLING_STREAM, seed).random((steps, group_size))


def _generator(stream: int, seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([stream, int(seed)])))


def _check_run(method: str, optimizer: str, lr: float, group_size: int, steps: int, ddof: int, beta: float) -> None:
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}; got {optimizer!r}")
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"lr must be positive and finite, got {lr}")
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    if group_size <= ddof:
        raise ValueError(f"group_size must be above ddof = {ddof}, got {group_size}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if not (math.isfinite(beta) and beta >= 0):
        raise ValueError(f"beta must be finite and >= 0, got {beta}")
