"""Experiments that train the small transformer with TRL: many seeds of every method, from the same start.

All methods of a seed start from one pre-trained model and see the same prompts in the same order, with the same
sampling seed and the same number of completions; what they sample differs as soon as their policies do. Experiments:
`training-small` (also `training-small-lr`, `training-small-sgd` and `placement`, which are other settings of it),
`sensitivity` to the constants of the weights, and `identifiability-training`, where the raw logits are shifted by a
constant.

Under Adam a factor that all weights share cancels, and so it does where the gradient norm is clipped at every step. A
method that makes all weights larger is thus plain GRPO; only how weights differ from each other can matter. Under SGD
without clipping a common factor is a larger learning rate.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_replications.replications.grpo_sg.identifiability import shift_head
from grpo_replications.replications.grpo_sg.settings import (
    SensitivitySettings,
    ShiftedTrainingSettings,
    SmallSettings,
)
from grpo_replications.replications.grpo_sg.training_metrics import run_rows, weights
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.small_transformer import PROBE, answers, encode, problems, small_start
from grpo_replications.shared.tasks.addition import addition_reward
from grpo_replications.shared.training.comparison import MethodRun, run_method
from grpo_replications.shared.training.run import passes

SETS = ("held_out", "train", "longer")
SELECTION = 1000
"""Added to a seed for other prompts and samples from the same start."""


@dataclass(frozen=True)
class SmallRun(MethodRun):
    """One training run of the small transformer.

    `solved` (N,): which problems of all sets the greedy answer solves at the end; `probabilities` (N,): of sampling
    their right answers.
    """

    solved: np.ndarray
    probabilities: np.ndarray


def small_run(
    settings: SmallSettings,
    seed: int,
    progress: Callable[[float], None] | None = None,
    shift: float = 0.0,
    sampling_seed: int | None = None,
) -> SmallRun:
    """Train the start of `seed` by the settings' method on `rollouts` rollouts.

    `equal = "steps"` in place of "samples" gives a method with two optimizer steps per rollout half the rollouts.
    `shift` is added to all logits. `sampling_seed`, if given, decides prompts and samples in place of `seed`.
    """
    data = problems(settings, seed)
    probe = data.train.select(range(min(PROBE, len(data.train))))
    parts = dict(zip(SETS, map(encode, (data.held_out, probe, data.longer)), strict=True))
    model, tokenizer = catalog.load(str(small_start(settings, seed)))
    if shift:
        shift_head(model, shift)
    repeats = 1 if settings.equal == "samples" else passes(settings)

    def look(policy: Any) -> dict[str, float]:
        found = {name: answers(policy, *part) for name, part in parts.items()}
        seen = {f"{name}_accuracy": solved.mean() for name, (solved, _) in found.items()}
        return {**seen, "held_out_solve_rate": found["held_out"][1].mean()}

    with tempfile.TemporaryDirectory(prefix="small-run-") as scratch:
        run = run_method(
            settings,
            seed if sampling_seed is None else sampling_seed,
            (model, tokenizer),
            data.train,
            [addition_reward],
            look,
            rollouts=settings.rollouts // repeats,
            eval_every=settings.eval_every,
            directory=scratch,
            progress=progress,
        )
    final = [answers(run.model.eval(), *parts[name]) for name in SETS]
    solved, probabilities = (np.concatenate(values) for values in zip(*final, strict=True))
    return SmallRun(**vars(run), solved=solved, probabilities=probabilities)


def planned_completions(settings: SmallSettings) -> int:
    """Completions that every method of a comparison at equal samples may sample."""
    return settings.rollouts * settings.prompts_per_step * settings.group_size


def small_rows(run: SmallRun, settings: SmallSettings) -> list[Row]:
    """The rows of one run: its curves by rollout, their summaries, and those of `run_rows`."""
    rows = [row(name, value, step) for name, curve in run.curves.items() for step, value in curve]
    rows += [
        row("start_accuracy", run.values("held_out_accuracy")[0]),
        row("final_accuracy", run.final("held_out_accuracy")),
        row("mean_accuracy", run.mean("held_out_accuracy")),
        row("peak_accuracy", run.peak("held_out_accuracy")[1]),
        row("final_solve_rate", run.final("held_out_solve_rate")),
        row("final_train_accuracy", run.final("train_accuracy")),
        row("final_longer_accuracy", run.final("longer_accuracy")),
        row("longer_change", run.final("longer_accuracy") - run.values("longer_accuracy")[0]),
    ]
    return rows + run_rows(run.history, planned_completions(settings), settings.eval_every)


def training_small(settings: SmallSettings, seed: int, context: JobContext) -> list[Row]:
    """One method from the start of a seed.

    By step (rollouts): `held_out_accuracy`, `train_accuracy` (of a probe), `longer_accuracy` (greedy answers), and
    `held_out_solve_rate`, the exact chance that a sampled answer is right. Without step: their values at the end
    (`final_*`; `final_accuracy` is of held-out problems), `mean_accuracy` over all looks, `peak_accuracy`,
    `longer_change` from start to end, and everything of `training_metrics.run_rows`.
    """
    return small_rows(small_run(settings, seed, context.progress), settings)


def identifiability_training(settings: ShiftedTrainingSettings, seed: int, context: JobContext) -> list[Row]:
    """Training when every logit is shifted by a constant, which leaves the policy as it is: for GRPO and `method`.

    `shifts` are tried with `method`; GRPO is run without a shift, with the last of them, and without one but other
    samples. Distances between two runs: `curve_distance`, mean over looks of the difference of the held-out solve rate;
    `policy_distance`, mean over all problems of the difference of the chance to answer right at the end;
    `solved_changed`, share of problems that only one of them solves at the end. Each is measured for
    `grpo_shift` (the last shift; rounding only), `grpo_reseeded` (what other samples do, a yardstick), `<c>` (the
    method shifted by c against itself without a shift) and `<c>_to_grpo`. Also by shift: `final_accuracy`,
    `weight_mean`, `weight_share_between`, `weight_inert` and `grad_norm_ratio`, the median norm over that of GRPO.
    """
    shifts = settings.shifts
    total, done = 3 + 1 + len(shifts), 0

    def run(method: str, shift: float = 0.0, **options: Any) -> SmallRun:
        nonlocal done
        plain = {"alpha": None, "tau": None, "mu": None, "lower": None, "upper": None} if method == "grpo" else {}
        result = small_run(settings.changed(method=method, **plain), seed, shift=shift, **options)
        done += 1
        context.progress(done / total)
        return result

    grpo = run("grpo")
    pairs = {
        "grpo_shift": (run("grpo", shifts[-1]), grpo),
        "grpo_reseeded": (run("grpo", sampling_seed=seed + SELECTION), grpo),
    }
    own = {0.0: run(settings.method), **{c: run(settings.method, c) for c in shifts}}
    rows = []
    for c, result in own.items():
        if c:
            pairs[f"{c:g}"] = (result, own[0.0])
        pairs[f"{c:g}_to_grpo"] = (result, grpo)
        measured = {entry["metric"]: entry["value"] for entry in small_rows(result, settings) if "step" not in entry}
        for name in ("final_accuracy", "weight_mean", "weight_share_between", "weight_inert"):
            rows.append(row(f"{name}/{c:g}", measured[name]))
        median = statistics.median(entry["grad_norm"] for entry in grpo.history)
        rows.append(row(f"grad_norm_ratio/{c:g}", measured["grad_norm_median"] / median))
    rows.append(row("final_accuracy/grpo", grpo.final("held_out_accuracy")))
    for name, (one, other) in pairs.items():
        rows += [row(f"{metric}/{name}", value) for metric, value in distances(one, other).items()]
    return rows


def sensitivity(settings: SensitivitySettings, seed: int, context: JobContext) -> list[Row]:
    """`method` with one constant moved at a time: `alphas`, `taus`, `mus`, `lowers`, `uppers` in place of its own.

    For each `<option>=<value>`: `accuracy_change/...`, `train_change/...` and `solve_rate_change/...`, the final value
    minus that of the method as it is (from the same start, with the same sampling seed), and its weights,
    `weight_mean/...` and `weight_share_between/...`. `accuracy_change/other_samples`: what another sampling seed does
    to the method as it is, a yardstick. `final_accuracy`: of the method as it is.
    """
    lists = {
        "alpha": settings.alphas,
        "tau": settings.taus,
        "mu": settings.mus,
        "lower": settings.lowers,
        "upper": settings.uppers,
    }
    moved = {f"{option}={value:g}": {option: value} for option, values in lists.items() for value in values}
    total = len(moved) + 2

    def run(position: int, changes: dict[str, Any], sampling_seed: int | None = None) -> SmallRun:
        result = small_run(settings.changed(**changes), seed, sampling_seed=sampling_seed)
        context.progress((position + 1) / total)
        return result

    plain = run(0, {})
    rows = [row("final_accuracy", plain.final("held_out_accuracy"))]
    others = {name: run(position, changes) for position, (name, changes) in enumerate(moved.items(), start=1)}
    others["other_samples"] = run(total - 1, {}, seed + SELECTION)
    curves = {"accuracy": "held_out_accuracy", "train": "train_accuracy", "solve_rate": "held_out_solve_rate"}
    for name, result in others.items():
        rows += [
            row(f"{short}_change/{name}", result.final(curve) - plain.final(curve)) for short, curve in curves.items()
        ]
        audited = weights(result.history)
        rows += [row(f"{key}/{name}", audited[key]) for key in ("weight_mean", "weight_share_between")]
    return rows


def distances(one: SmallRun, other: SmallRun) -> dict[str, float]:
    """How far apart two runs are: `curve_distance`, `policy_distance`, `solved_changed`, `accuracy_change`."""
    curves = (np.array(run.values("held_out_solve_rate")) for run in (one, other))
    return {
        "curve_distance": float(np.abs(np.subtract(*curves)).mean()),
        "policy_distance": float(np.abs(one.probabilities - other.probabilities).mean()),
        "solved_changed": float((one.solved != other.solved).mean()),
        "accuracy_change": one.final("held_out_accuracy") - other.final("held_out_accuracy"),
    }
