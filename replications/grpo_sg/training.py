"""Experiment `training`: the methods compared on a pre-trained language model that learns to add.

From the same start, on the same prompts in the same order, at equal samples. A step of this model takes seconds, so
few seeds and steps fit on two cores; what they leave undecided, `training-small` decides for a small transformer only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datasets import Dataset

from grpo_replications.replications.grpo_sg.settings import AdditionTrainingSettings, ComparisonSettings
from grpo_replications.replications.grpo_sg.training_metrics import run_rows
from grpo_replications.shared.grading.rewards import RewardFunction
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.tasks import load_task
from grpo_replications.shared.training.comparison import accuracies, run_method


def training(settings: AdditionTrainingSettings, seed: int, context: JobContext) -> list[Row]:
    """One method from the start of the model: addition with operands `low` to `high`.

    Settings beyond the trainer's: `rollouts`, `eval_every` (rollouts; 0 looks at the end only), `eval_batch_size`,
    sizes and bounds of the task, `longer_low` and `longer_high` (operands of the longer validation problems) and
    `longer_size`. Rows: those of `comparison_rows`, for the sets "held_out" and "longer".
    """
    sizes = {"system_message": settings.system_message, "seed": seed}
    task = load_task(
        "addition",
        low=settings.low,
        high=settings.high,
        train_size=settings.train_size,
        validation_size=settings.validation_size,
        **sizes,
    )
    longer = load_task(
        "addition",
        low=settings.longer_low,
        high=settings.longer_high,
        train_size=1,
        validation_size=settings.longer_size,
        **sizes,
    )
    model, tokenizer = catalog.load(settings.model)
    sets = {"held_out": task.validation, "longer": longer.validation}
    return comparison_rows(settings, seed, context, model, tokenizer, task.train, sets, task.rewards)


def comparison_rows(
    settings: ComparisonSettings,
    seed: int,
    context: JobContext,
    model: Any,
    tokenizer: Any,
    train: Dataset,
    sets: Mapping[str, Dataset],
    rewards: list[RewardFunction],
) -> list[Row]:
    """Train `model` by the settings' method on `rollouts` rollouts; everything measured.

    By step (rollouts): `<set>_accuracy`, greedy, of every set. Without step: `final_<set>_accuracy`, of the first set
    also `final_accuracy` and `mean_accuracy` over all looks, and everything of `training_metrics.run_rows`.
    """
    look = accuracies(
        tokenizer,
        sets,
        rewards,
        max_new_tokens=settings.max_new_tokens,
        batch_size=settings.eval_batch_size,
        precision=settings.precision,
    )
    run = run_method(
        settings,
        seed,
        (model, tokenizer),
        train,
        rewards,
        look,
        rollouts=settings.rollouts,
        eval_every=settings.eval_every,
        directory=context.directory,
        progress=context.progress,
    )
    looks = zip(*run.curves.values(), strict=True)
    rows = [row(name, value, step) for seen in looks for name, (step, value) in zip(run.curves, seen, strict=True)]
    rows += [row(f"final_{name}", run.final(name)) for name in run.curves]
    first = next(iter(run.curves))
    rows += [row("final_accuracy", run.final(first)), row("mean_accuracy", run.mean(first))]
    planned = settings.rollouts * settings.mini_batches * settings.prompts_per_step * settings.group_size
    return rows + run_rows(run.history, planned, max(1, settings.eval_every))
