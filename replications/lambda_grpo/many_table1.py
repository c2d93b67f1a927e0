"""Table 1 with a transformer and hundreds of seeds, and the same on a tree where process sets do not follow depth.

The runs are those of `synthetic.tree_transformers`: a small Llama per seed, all seeds of a cell at once, the trainer's
update. `many_table1_trl` makes the same run through TRL, one seed at a time, to hold the simulator against it.

Arms beside "grpo" and "lambda-grpo": "halving-depth" weighs tokens by depth alone, 1/8, 1/4, 1/2, 1; "mean-depth" gives
each token the mean of lambda-GRPO's weights at its depth, in its group. Where a policy starts uniform, process sets are
nearly a function of depth; with `start_left` away from one half they are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replications.lambda_grpo.settings import ManySettings, ManyTable1Settings, ManyTreeSettings
from shared.errors import ReplicationError
from shared.harness.jobs import JobContext, Row, row
from shared.theory.depth_weights import depth_mean_weights, halving_weights
from shared.training.many_runs import Objective
from shared.training.token_weights import TokenWeight
from synthetic.binary_tree import BinaryTree
from synthetic.tree_transformers import run_transformers, seed_target, tree_models

DEPTH_ARMS = ("halving-depth", "mean-depth")


def many_table1(settings: ManyTable1Settings, seeds: range, context: JobContext) -> list[Row]:
    """A row of Table 1, a method, an optimizer and a learning rate: every seed's transformer at once.

    Returns per seed: `target_frequency` (mean exact probability of the target over the last `last` steps), `success`
    (whether it is above one half), `steps_to_half` (steps until the probability of the target is one half; all steps
    where it never is) with `censored`, `start_probability`; by step `target_probability` and `prefix_probability` (of
    the target's first n tokens). Raises ReplicationError for settings that cannot be run.
    """
    try:
        result = run_transformers(
            _tree(settings),
            objective(settings, settings.depth),
            settings.lr,
            seeds=seeds,
            group_size=settings.group_size,
            steps=settings.steps,
            target_rights=settings.target_rights,
            progress=context.progress,
            **_start(settings),
        )
        frequency = result.target_frequency(settings.last)
    except ValueError as error:
        raise ReplicationError(f"Table 1 with many transformers: {error}. Correct it in profiles.toml.") from error
    steps, censored = result.steps_to(0.5)
    columns = {
        "target_frequency": frequency,
        "success": frequency > 0.5,
        "steps_to_half": steps,
        "censored": censored,
        "start_probability": result.target_probability[0],
    }
    rows = [_row(name, value, seed) for name, values in columns.items() for seed, value in zip(seeds, values)]
    every = settings.curve_every
    for name in ("target_probability", "prefix_probability"):
        curve = getattr(result, name)
        for step in range(0, len(curve), every) if every else ():
            rows += [_row(name, value, seed, step) for seed, value in zip(seeds, curve[step])]
    return rows


def many_table1_trl(settings: ManyTreeSettings, seed: int, context: JobContext) -> list[Row]:
    """The run of a seed of `many_table1` through TRL: same weights at the start, same target, other random numbers.

    Returns `target_frequency`, `success`, `steps_to_half`, `censored` and `start_probability` of the
    seed. Raises ReplicationError for the arms by depth, which the trainer has no name for.
    """
    from shared.training.run import run_training
    from shared.training.settings import TrainingSettings
    from synthetic.tree_task import leaf_probability, path_model, tree_dataset, tree_reward

    if settings.method in DEPTH_ARMS:
        raise ReplicationError(f"{settings.method} is no method of the trainer; run it with many-table1.")
    tree = _tree(settings)
    target = seed_target(tree, seed, settings.target_rights)
    steps = settings.steps
    run = run_training(
        TrainingSettings.of(
            settings,
            prompts_per_step=1,
            max_new_tokens=tree.depth,
            precision="float32",
            trl={"epsilon": settings.epsilon},
        ),
        seed,
        tree_dataset(steps),
        tree_reward(tree, target),
        directory=context.directory,
        model=tree_models([seed], **_start(settings)).export(0),
        tokenizer=path_model("random-small")[1],
        observe=lambda policy, _: {"p": leaf_probability(policy, target, tree.depth)},
        observe_every=1,
        progress=context.progress,
    )
    p = np.array([seen["p"] for step, seen in run.observations if step < steps])
    frequency, reached = float(p[-settings.last :].mean()), p >= 0.5
    return [
        row("target_frequency", frequency),
        row("success", frequency > 0.5),
        row("steps_to_half", int(reached.argmax()) if reached.any() else steps),
        row("censored", not reached.any()),
        row("start_probability", p[0]),
    ]


def arm(method: str, depth: int) -> str | TokenWeight:
    """What a method's name stands for: one of `DEPTH_ARMS` over `depth` tokens, or one of the trainer's."""
    if method in DEPTH_ARMS:
        return halving_weights(depth) if method == "halving-depth" else depth_mean_weights
    return method


def objective(settings: ManySettings, tokens: int) -> Objective:
    """The objective of the settings, for completions of so many tokens."""
    return Objective(
        method=arm(settings.method, tokens),
        loss_type=settings.loss_type,
        scale_rewards=settings.scale_rewards,
        temperature=settings.temperature,
        epsilon=settings.epsilon,
        beta=settings.beta,
        num_iterations=settings.num_iterations,
        max_grad_norm=settings.max_grad_norm,
        optimizer=settings.optimizer,
    )


def _start(settings: ManyTreeSettings) -> dict[str, Any]:
    return {
        "start_left": settings.start_left,
        "head_std": settings.head_std,
        "width": settings.width,
        "layers": settings.layers,
        "heads": settings.heads,
        "inner": settings.inner,
    }


def _tree(settings: ManyTreeSettings) -> BinaryTree:
    return BinaryTree(settings.depth, settings.n, prefix_reward=settings.r_neg)


def _row(metric: str, value: float, seed: int, step: int | None = None) -> Row:
    return {**row(metric, round(float(value), 6), step), "seed": int(seed)}
