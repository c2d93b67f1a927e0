"""Table 1 with a transformer and hundreds of seeds, and the same on a tree where process sets do not follow depth.

The runs are those of `synthetic.tree_transformers`: a small Llama per seed, all seeds of a cell at once, the trainer's
update. `many_table1_trl` makes the same run through TRL, one seed at a time, to hold the simulator against it.

Arms beside "grpo" and "lambda-grpo": "halving-depth" weighs tokens by depth alone, 1/8, 1/4, 1/2, 1; "mean-depth" gives
each token the mean of lambda-GRPO's weights at its depth, in its group. Where a policy starts uniform, process sets are
nearly a function of depth; with `start_left` away from one half they are not.
"""

from __future__ import annotations

import numpy as np

from grpo_replications.replications.lambda_grpo.settings import (
    ManyTable1Settings,
    ManyTable1TrlSettings,
    TreeTransformerSettings,
)
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row, row, seed_rows
from grpo_replications.shared.theory.depth_weights import depth_mean_weights, halving_weights
from grpo_replications.shared.training.many_runs import Objective
from grpo_replications.shared.training.settings import TrainingSettings
from grpo_replications.shared.training.token_weights import TokenWeight
from grpo_replications.synthetic.binary_tree import BinaryTree
from grpo_replications.synthetic.tree_transformers import TransformerResult, run_transformers, seed_target, tree_models

DEPTH_ARMS = ("halving-depth", "mean-depth")


def many_table1(settings: ManyTable1Settings, seeds: range, context: JobContext) -> list[Row]:
    """A row of Table 1, a method, an optimizer and a learning rate: every seed's transformer at once.

    Returns per seed: `target_frequency` (mean exact probability of the target over the last `last` steps), `success`
    (whether it is above one half), `steps_to_half` (steps until the probability of the target is one half; all steps
    where it never is) with `censored`, `start_probability`; by step `target_probability` and `prefix_probability` (of
    the target's first n tokens). Raises ReplicationError for settings that cannot be run.
    Cost: `synthetic.tree_transformers.run_transformers`.
    """
    return rows_of(_simulated(settings, settings.method, seeds, context), settings.last, settings.curve_every)


def many_table1_trl(settings: ManyTable1TrlSettings, seed: int, context: JobContext) -> list[Row]:
    """The run of a seed through TRL and through the simulator: same start, same target, other random numbers.

    Returns `target_frequency`, `success`, `steps_to_half`, `censored` and `start_probability` of the run through TRL,
    and `start_difference`, `frequency_difference` and `mean_difference`, which are TRL's minus the simulator's: of the
    start, of the target frequency and of the mean probability of the target over all steps.
    """
    from grpo_replications.shared.training.run import run_training
    from grpo_replications.synthetic.tree_task import leaf_probability, path_model, tree_dataset, tree_reward

    tree, steps = _tree(settings), settings.steps
    target = seed_target(tree, seed, settings.target_rights)
    run = run_training(
        TrainingSettings.of(settings, prompts_per_step=1, max_new_tokens=tree.depth, precision="float32"),
        seed,
        tree_dataset(steps),
        tree_reward(tree, target),
        directory=context.directory,
        model=tree_models([seed], settings.start_left, settings.head_std, **_sizes(settings)).export(0),
        tokenizer=path_model("random-small")[1],
        observe=lambda policy, _: {"p": leaf_probability(policy, target, tree.depth)},
        observe_every=1,
        progress=context.progress,
    )
    p = np.array([seen["p"] for step, seen in run.observations if step < steps])[:, None]
    nothing = np.zeros_like(p)
    through_trl = TransformerResult(np.array([seed]), p, nothing, nothing, nothing)
    simulated = _simulated(settings, settings.method, range(seed, seed + 1), context)
    ours, theirs = (_summary(result, settings.last) for result in (through_trl, simulated))
    mean = p.mean() - simulated.target_probability.mean()
    return [
        *(row(name, values[0]) for name, values in ours.items()),
        row("start_difference", ours["start_probability"][0] - theirs["start_probability"][0]),
        row("frequency_difference", ours["target_frequency"][0] - theirs["target_frequency"][0]),
        row("mean_difference", mean),
    ]


def arm(method: str, depth: int) -> str | TokenWeight:
    """What a method's name stands for: one of `DEPTH_ARMS` over `depth` tokens, or one of the trainer's."""
    if method in DEPTH_ARMS:
        return halving_weights(depth) if method == "halving-depth" else depth_mean_weights
    return method


def rows_of(result: TransformerResult, last: int, curve_every: int) -> list[Row]:
    """What `many_table1` returns, from the trajectories; curves have a row every `curve_every` steps, 0 for none."""
    seeds = result.seeds.tolist()
    rows = seed_rows(_summary(result, last), seeds)
    for name in ("target_probability", "prefix_probability"):
        curve = getattr(result, name)
        for step in range(0, len(curve), curve_every) if curve_every else ():
            rows += seed_rows({name: curve[step]}, seeds, step)
    return rows


def _simulated(settings: TreeTransformerSettings, method: str, seeds: range, context: JobContext) -> TransformerResult:
    objective = Objective(
        method=arm(method, settings.depth), optimizer=settings.optimizer, max_grad_norm=settings.max_grad_norm
    )
    if settings.last > settings.steps:
        raise ReplicationError(f"last = {settings.last} is more than the {settings.steps} steps of the run.")
    try:
        return run_transformers(
            _tree(settings),
            objective,
            settings.lr,
            seeds=seeds,
            group_size=settings.group_size,
            steps=settings.steps,
            start_left=settings.start_left,
            head_std=settings.head_std,
            target_rights=settings.target_rights,
            progress=context.progress,
            **_sizes(settings),
        )
    except ValueError as error:
        raise ReplicationError(f"Table 1 with many transformers: {error}. Correct it in profiles.toml.") from error


def _summary(result: TransformerResult, last: int) -> dict[str, np.ndarray]:
    """What one number per seed says of a run, (S,) each."""
    frequency = result.target_frequency(last)
    steps, censored = result.steps_to(0.5)
    return {
        "target_frequency": frequency,
        "success": frequency > 0.5,
        "steps_to_half": steps,
        "censored": censored,
        "start_probability": result.target_probability[0],
    }


def _sizes(settings: TreeTransformerSettings) -> dict[str, int]:
    return {
        "width": settings.width,
        "layers": settings.layers,
        "heads": settings.heads,
        "inner": settings.inner,
    }


def _tree(settings: TreeTransformerSettings) -> BinaryTree:
    return BinaryTree(settings.depth, settings.n, prefix_reward=settings.r_neg)
