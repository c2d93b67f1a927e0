"""Steps to the target on the synthetic tree: is lambda-GRPO twice as fast, and does it need process sets for it?

A tabular policy, exact target probabilities, and one threshold common to all methods and runs. Each method has the
learning rate at which it is fastest, chosen on seeds that are not reported. "halving-depth" and "mean-depth" weigh
tokens by depth alone: what they gain over GRPO needs no process sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grpo_replications.replications.lambda_grpo.settings import TabularSpeedSettings
from grpo_replications.replications.lambda_grpo.table1 import SELECTION_OFFSET
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.synthetic.binary_tree import BinaryTree, run_tabular


def tabular_speed(settings: TabularSpeedSettings, seeds: range, context: JobContext) -> list[Row]:
    """A row of Table 1, a method and an optimizer: steps to the threshold, all seeds at once.

    Returns per seed `steps_to_threshold` (steps until the target's probability is `threshold`; all steps where it never
    is) with `censored`; for the cell `chosen_lr`, the rate with the fewest mean steps over `selection_seeds` seeds from
    SELECTION_OFFSET on, and `edge` (1 if it is the lowest or highest of `lrs`, so that a better one may lie outside).
    Raises ReplicationError if a seed lies at or beyond SELECTION_OFFSET, or for settings out of range.
    Cost: `synthetic.binary_tree.run_tabular` for each rate on the selection seeds, and once on the others.
    """
    if max(seeds) >= SELECTION_OFFSET:
        raise ReplicationError(f"tabular-speed: seeds must lie below {SELECTION_OFFSET}; got seeds up to {max(seeds)}.")
    selection = range(SELECTION_OFFSET, SELECTION_OFFSET + settings.selection_seeds)
    means = []
    for lr in settings.lrs:
        means.append(float(_steps(settings, lr, selection)[0].mean()))
        context.progress(len(means) / (len(settings.lrs) + 1))
    best = int(np.argmin(means))
    steps, censored = _steps(settings, settings.lrs[best], seeds)
    rates = (min(settings.lrs), max(settings.lrs))
    return [
        *_rows("steps_to_threshold", seeds, steps),
        *_rows("censored", seeds, censored),
        {"metric": "chosen_lr", "value": settings.lrs[best]},
        {"metric": "edge", "value": float(settings.lrs[best] in rates)},
    ]


def _steps(settings: TabularSpeedSettings, lr: float, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    try:
        result = run_tabular(
            BinaryTree(settings.depth, settings.n, prefix_reward=settings.r_neg),
            settings.method,
            settings.optimizer,
            lr,
            group_size=settings.group_size,
            steps=settings.steps,
            seeds=seeds,
        )
    except ValueError as error:
        raise ReplicationError(f"tabular-speed: {error}. Correct it in profiles.toml.") from error
    return result.steps_to(settings.threshold)


def _rows(metric: str, seeds: range, values: np.ndarray) -> list[Row]:
    return [
        {"metric": metric, "seed": int(seed), "value": float(value)} for seed, value in zip(seeds, values, strict=True)
    ]
