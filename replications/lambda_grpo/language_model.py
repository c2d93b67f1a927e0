"""Experiments that train a language model with TRL: `table1-lm`, `overlap`, `training` and `overhead`."""

from __future__ import annotations

import statistics
from typing import Any

from datasets import Dataset
from trl import GRPOTrainer

from grpo_replications.replications.lambda_grpo.settings import (
    Data,
    LearningSettings,
    OverheadSettings,
    OverlapSettings,
    Table1LanguageModelSettings,
)
from grpo_replications.shared.grading.rewards import of_first_box
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.tasks import load_task
from grpo_replications.shared.tasks.math import SYSTEM_MESSAGE
from grpo_replications.shared.training.comparison import accuracies, run_method
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.run import passes, run_training, sampling_correction
from grpo_replications.shared.training.settings import TrainingSettings
from grpo_replications.shared.training.trainer import OneContextGRPOTrainer, TokenWeightedGRPOTrainer
from grpo_replications.synthetic.binary_tree import BinaryTree
from grpo_replications.synthetic.tree_task import leaf_probability, path_model, tree_dataset, tree_reward


def table1_lm(settings: Table1LanguageModelSettings, seed: int, context: JobContext) -> list[Row]:
    """Table 1 through the trainer: a transformer that says L or R, one target path per seed.

    Metrics: `target_probability` (exact, before the step, every tenth step) and `target_frequency` (its mean over the
    last `last` steps: the expectation of the paper's sampled frequency, without its sampling noise).
    There is no KL term: the trainer rebuilds a reference policy from the path that the policy was loaded from, and a
    policy over two tokens has no such path.
    """
    tree = BinaryTree(settings.depth, settings.n, prefix_reward=settings.r_neg)
    target = tree.random_target(seed)
    model, tokenizer = path_model(settings.pinned(settings.model), seed)
    run = run_training(
        TrainingSettings.of(settings, max_new_tokens=settings.depth),
        seed,
        tree_dataset(settings.steps),
        tree_reward(tree, target),
        directory=context.directory,
        model=model,
        tokenizer=tokenizer,
        observe=lambda policy, _: {"p": leaf_probability(policy, target, settings.depth)},
        observe_every=1,
        progress=context.progress,
    )
    sampled = [(step, seen["p"]) for step, seen in run.observations if step < settings.steps]
    rows = [row("target_probability", p, step) for step, p in sampled if step % 10 == 0]
    rows.append(row("target_frequency", statistics.fmean(p for _, p in sampled[-settings.last :])))
    rows.append(row("start_probability", sampled[0][1]))
    return rows


def overlap(settings: OverlapSettings, seed: int, context: JobContext) -> list[Row]:
    """Prefix trees during a real GRPO run on addition: flat trees, path depth, intermediate proportion by step.

    `*_rise` is the mean over the last fifth of the steps minus the mean over the first fifth. With vLLM also what
    `sampling_correction` gives, here and in `training`.
    """
    train, _, rewards = _data(settings, seed)
    run = run_training(
        settings,
        seed,
        train,
        rewards,
        directory=context.directory,
        progress=context.progress,
    )
    names = {
        "tree/path_depth": "path_depth",
        "tree/intermediate_proportion": "intermediate_proportion",
        "tree/flat": "flat_share",
        "reward": "reward",
        "groups/silent": "silent_share",
    }
    rows = [row(name, entry[key], step) for step, entry in enumerate(run.history) for key, name in names.items()]
    flat = [group["flat"] for group in read_group_log(run.group_log)]
    rows += [
        row("groups", len(flat)),
        row("nonflat_groups", len(flat) - sum(flat)),
        row("nonflat_share", 1 - sum(flat) / len(flat)),
    ]
    fifth = max(1, len(run.history) // 5)
    for key in ("tree/path_depth", "tree/intermediate_proportion"):
        values = [entry[key] for entry in run.history]
        rise = statistics.fmean(values[-fifth:]) - statistics.fmean(values[:fifth])
        rows.append(row(f"{names[key]}_rise", rise))
    return rows + [row(name, value) for name, value in sampling_correction(run.history).items()]


def training(settings: LearningSettings, seed: int, context: JobContext) -> list[Row]:
    """GRPO or lambda-GRPO from the same start, on the same prompts in the same order: accuracy on held-out problems.

    Metrics: `validation_accuracy` by step (greedy decoding, before the step is made), `peak_accuracy`,
    `steps_to_peak` (first step that reaches the peak), `final_accuracy`, `mean_accuracy` (over all looks: the area
    under the curve), and by step `reward`, `grad_norm`, `entropy`, `silent_share`.
    """
    train, validation, rewards = _data(settings, seed)
    start = catalog.load(settings.pinned(settings.model))
    run = run_method(
        settings,
        seed,
        start,
        train,
        rewards,
        accuracies(
            start[1],
            {"validation": validation},
            rewards,
            max_new_tokens=settings.max_new_tokens,
            batch_size=settings.eval_batch_size,
            precision=settings.precision,
        ),
        rollouts=settings.steps // passes(settings),
        eval_every=settings.eval_every,
        directory=context.directory,
        progress=context.progress,
    )
    name = "validation_accuracy"
    step, peak = run.peak(name)
    rows = [row(name, value, step) for step, value in run.curves[name]]
    rows += [
        row("peak_accuracy", peak),
        row("steps_to_peak", step),
        row("final_accuracy", run.final(name)),
        row("mean_accuracy", run.mean(name)),
    ]
    names = {"reward": "reward", "grad_norm": "grad_norm", "entropy": "entropy", "groups/silent": "silent_share"}
    rows += [row(name, entry[key], step) for step, entry in enumerate(run.history) for key, name in names.items()]
    return rows + [row(name, value) for name, value in sampling_correction(run.history).items()]


def overhead(settings: OverheadSettings, seed: int, context: JobContext) -> list[Row]:
    """Cost of the weights: as a share of a training step, and step time of lambda-GRPO over that of TRL's GRPO.

    Three trainers run once each, from the same seed and with learning rate 0, so that they sample the same completions;
    the first step of each (warm-up) is left out. Who goes first changes with the seed, so that a machine that slows
    down or warms up favors nobody. `step_ratio` compares with TRL's trainer sampling in the same way,
    `step_ratio_stock` with TRL's trainer as it comes. All rows are timings, one per step.
    """
    train, _, rewards = _data(settings, seed)
    trainers = {"stock": GRPOTrainer, "alike": OneContextGRPOTrainer, "ours": TokenWeightedGRPOTrainer}
    names = list(trainers)
    history = {}
    for name in names[seed % 3 :] + names[: seed % 3]:
        run = run_training(
            settings, seed, train, rewards, directory=context.directory / name, trainer_class=trainers[name]
        )
        history[name] = run.history[1:]
        context.progress(len(history) / 3)
    rows: list[Row] = []
    for step, (stock, alike, ours) in enumerate(zip(*(history[name] for name in names), strict=True), start=1):
        rows += [
            _timing("step_ratio", ours["step_time"] / alike["step_time"], step),
            _timing("step_ratio_stock", ours["step_time"] / stock["step_time"], step),
            _timing("step_seconds_stock", stock["step_time"], step),
            _timing("weights_share", ours["time/token_weights"] / ours["step_time"], step),
        ]
    return rows


def _data(settings: Data, seed: int) -> tuple[Dataset, Dataset, list[Any]]:
    """Training prompts, validation problems and rewards: addition, or mathematics where a `dataset` is set."""
    if settings.dataset is not None:
        # A model that cannot be had is said before any data is fetched.
        catalog.prepare(settings.pinned(settings.model))
        task = load_task(
            "math",
            dataset=settings.pinned(settings.dataset),
            validation=settings.validation,
            validation_size=settings.validation_size,
            ungradable="drop",
            system_message=settings.system_message or SYSTEM_MESSAGE,
            seed=seed,
        )
    else:
        task = load_task(
            "addition",
            low=settings.low,
            high=settings.high,
            train_size=settings.train_size,
            validation_size=settings.validation_size,
            system_message=settings.system_message,
            seed=seed,
        )
    rewards = [of_first_box(reward) for reward in task.rewards] if settings.stop_at_box else task.rewards
    return task.train, task.validation, rewards


def _timing(metric: str, value: float, step: int) -> Row:
    return {**row(metric, value, step), "timing": True}
