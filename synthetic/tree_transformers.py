"""Many small transformers trained on the binary tree at once: one seed a model, everything exact but the sampling.

The environment is `synthetic.binary_tree`'s, the model a small Llama whose head is masked to the tokens L and R
(`synthetic.tree_task`), the update that of the suite's trainer (`shared.training.many_runs`). Every prefix of the tree
is computed once per step, so the probability of a path is exact, and a completion is drawn as a leaf.

With a head of zeros a policy starts with the same probability of L at every node, `start_left`. At one half each leaf
has probability 2^-depth. Away from one half, nodes of a depth differ in how many completions of a group share them, and
process sets are no function of depth.

Shape legend: S seeds, G completions, L leaves, T = depth tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from grpo_replications.shared.models.many_transformers import (
    MASKED,
    Architecture,
    ManyTransformers,
    SeedStreams,
    draw_index,
)
from grpo_replications.shared.models.stack_of_one import StackOfOne
from grpo_replications.shared.models.token_tree import TokenTree
from grpo_replications.shared.training.many_runs import ManyRuns, Objective, Rollout
from grpo_replications.synthetic.binary_tree import BinaryTree
from grpo_replications.synthetic.tree_task import PATH, path_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SAMPLING_STREAM, _TARGET_STREAM = 1, 2
_SEEDS_PER_STACK = 64  # affects speed only, never a result


@dataclass(frozen=True)
class Settled:
    """When a run may end early: one path has had at least `probability` in each of the last `steps` steps.

    Groups of such a policy hold nothing but that path, have equal rewards and change nothing. In each step left out a
    group of G differs from that with probability 1 - probability^G at most.
    """

    probability: float
    steps: int


@dataclass(frozen=True)
class TransformerResult:
    """Trajectories of one configuration; row t describes the policy that samples in step t, before its update.

    `target_probability` (steps, S): exact. `prefix_probability` (steps, S): exact, of the target's first n tokens.
    `grad_norm` (steps, S): before clipping. `silent` (steps, S) bool: the group had equal rewards.
    `steps_computed`: steps before the run was settled; the rows of those left out repeat its last one. None: all.
    """

    seeds: np.ndarray
    target_probability: np.ndarray
    prefix_probability: np.ndarray
    grad_norm: np.ndarray
    silent: np.ndarray
    steps_computed: int | None = None

    def target_frequency(self, last: int = 50) -> np.ndarray:
        """Mean exact target probability over the last steps, the metric of Table 1: (S,)."""
        steps = len(self.target_probability)
        if not 1 <= last <= steps:
            raise ValueError(f"last must be in 1 ... {steps} (the number of steps), got {last}")
        return self.target_probability[-last:].mean(axis=0)

    def steps_to(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Steps until the target's probability first reaches `level`, and whether it never did, (S,) each.

        A run that never did has the number of all steps, and is censored there.
        """
        reached = self.target_probability >= level
        censored = ~reached.any(axis=0)
        return np.where(censored, len(reached), reached.argmax(axis=0)), censored


def tree_models(seeds: Sequence[int], start_left: float = 0.5, head_std: float = 0.0, **sizes: int) -> ManyTransformers:
    """A new model per seed whose next token is L or R, with probability `start_left` for L where `head_std` is 0.

    `sizes`: of `Architecture`. Raises ValueError for a `start_left` that is no probability strictly within 0 and 1.
    """
    if not 0 < start_left < 1:
        raise ValueError(f"start_left must lie strictly between 0 and 1, got {start_left}")
    lean = math.log(start_left / (1 - start_left))
    return ManyTransformers.initial(
        Architecture(4, **sizes), seeds, head_std=head_std, bias=[MASKED, MASKED, lean, 0.0]
    )


def seed_target(tree: BinaryTree, seed: int, rights: int | None = None) -> int:
    """Target leaf of a seed: uniform over all leaves, or over those whose path has `rights` tokens R."""
    if rights is None:
        return tree.random_target(seed)
    leaves = [leaf for leaf in range(tree.leaves) if sum(tree.path_of_leaf(leaf)) == rights]
    if not leaves:
        raise ValueError(f"no path of {tree.depth} tokens has {rights} tokens R")
    return leaves[int(np.random.default_rng([_TARGET_STREAM, seed]).integers(len(leaves)))]


def run_transformers(
    tree: BinaryTree,
    objective: Objective,
    lr: float,
    *,
    seeds: Sequence[int],
    group_size: int = 16,
    steps: int = 250,
    start_left: float = 0.5,
    head_std: float = 0.0,
    target_rights: int | None = None,
    progress: Callable[[float], None] | None = None,
    **sizes: int,
) -> TransformerResult:
    """Train one transformer per seed, each on the target of its seed.

    A seed's weights, target and random numbers depend on the seed alone: configurations see common random numbers, and
    its trajectory is the same whichever seeds run beside it (bit by bit on one thread).
    Cost at depth 4, G = 16 and the default sizes: about 0.8 ms per step and seed on one core.
    """
    blocks = [seeds[i : i + _SEEDS_PER_STACK] for i in range(0, len(seeds), _SEEDS_PER_STACK)]
    paths = _token_tree(tree)
    results = []
    for number, block in enumerate(blocks):
        models = tree_models(block, start_left, head_std, **sizes)
        targets = [seed_target(tree, seed, target_rights) for seed in block]
        results.append(
            _run_stack(
                tree,
                paths,
                ManyRuns(models, objective, lr),
                SeedStreams(block, _SAMPLING_STREAM),
                targets,
                group_size,
                steps,
                lambda done, number=number: progress and progress((number + done) / len(blocks)),
            )
        )
    columns = [np.concatenate(parts, axis=1) for parts in zip(*results, strict=True)]
    return TransformerResult(np.array(list(seeds)), *columns)


def run_language_model(
    tree: BinaryTree,
    model: PreTrainedModel,
    objective: Objective,
    lr: float,
    *,
    seed: int,
    group_size: int = 16,
    steps: int = 250,
    settled: Settled | None = None,
    progress: Callable[[float], object] | None = None,
) -> TransformerResult:
    """Train one model of transformers on the target of a seed; `model` (`tree_task.path_model`) is trained in place.

    Random numbers are those of the seed in `run_transformers`. Cost of a step: a forward pass and a pass with gradients
    over 2^depth - 1 tokens, whatever the group size, and the optimizer's pass over all parameters.
    """
    columns = _run_stack(
        tree,
        _token_tree(tree),
        ManyRuns(StackOfOne(model), objective, lr),
        SeedStreams([seed], _SAMPLING_STREAM),
        [seed_target(tree, seed)],
        group_size,
        steps,
        progress or (lambda _: None),
        settled,
    )
    computed = len(columns[0])
    whole = [np.concatenate([column, np.repeat(column[-1:], steps - computed, axis=0)]) for column in columns]
    return TransformerResult(np.array([seed]), *whole, computed)


def _token_tree(tree: BinaryTree) -> TokenTree:
    return TokenTree.of([PATH], [path_ids(leaf, tree.depth) for leaf in range(tree.leaves)])


def _run_stack(
    tree: BinaryTree,
    paths: TokenTree,
    runs: ManyRuns,
    streams: SeedStreams,
    targets: Sequence[int],
    group_size: int,
    steps: int,
    progress: Callable[[float], object],
    settled: Settled | None = None,
) -> tuple[np.ndarray, ...]:
    """The columns of a `TransformerResult`, (steps, S) each, of one stack, up to where all of it is settled."""
    models, rows = runs.models, torch.arange(len(targets))
    rewards_SL = torch.from_numpy(np.stack([tree.leaf_rewards(target) for target in targets]))
    ignored = tree.depth - tree.prefix_length
    sharing_SL = torch.tensor([[leaf >> ignored == t >> ignored for leaf in range(tree.leaves)] for t in targets])
    recorded = []
    calm = 0
    for step in range(steps):
        probabilities = paths.path_probabilities(models)
        if settled is not None:
            calm = calm + 1 if bool((probabilities.amax(dim=1) >= settled.probability).all()) else 0
            if calm > settled.steps:
                break
        leaves = draw_index(probabilities.unsqueeze(1), streams.uniforms(group_size))  # (S, G)
        completions = paths.paths[leaves].unsqueeze(1)
        rollout = Rollout(
            completions,
            torch.ones_like(completions, dtype=torch.bool),
            rewards_SL.gather(1, leaves).unsqueeze(1),
            lambda these, leaves=leaves: paths.path_logits(these)[rows.unsqueeze(1), leaves].unsqueeze(1),
        )
        made = runs.step(rollout)[0]
        target, prefix = probabilities[rows, targets], (probabilities * sharing_SL).sum(dim=1)
        recorded.append([target.numpy(), prefix.numpy(), made.grad_norm.numpy(), made.silent.bool().numpy()])
        progress((step + 1) / steps)
    return tuple(np.stack(column) for column in zip(*recorded, strict=True))
