"""Experiment `open-test`: silent groups and gradient mass by difficulty in a real run, against the closed forms.

The authors name it as the natural next test: a full language-model training loop that logs silent groups and
per-difficulty gradient mass across G. A language model is trained with TRL on a fixed set of prompts; at checkpoints
the solve rate of every prompt is estimated from many completions of their own (no completion of a training group is
among them), and what the closed forms say at these rates is compared with what groups of G really did:

- **training groups**, as TRL's trainer sampled and rewarded them (its group log). Between two checkpoints the policy
  moves, so predictions are interpolated linearly in the step;
- **fresh groups**, drawn at the checkpoint itself, where the policy is exactly the one that was measured.

Completions of one prompt are independent by construction, so for fresh groups the law of silent groups is mathematics:
the comparison checks that sampler, grader and log are what they claim. For training groups it can fail in earnest: by
groups that are not independent draws, by sampling settings that differ from the policy's, and by a policy that moves
faster than the checkpoints see. Two predictions are made that must fail (controls): the silent rate at one solve rate
for all prompts, and mass in proportion to the number of groups.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from grpo_replications.replications.sigma_identity.open_estimates import (
    BINS,
    Measured,
    by_count,
    difficulty_bin,
    mean_gap,
    share_gaps,
    shares,
    without_replacement,
)
from grpo_replications.replications.sigma_identity.settings import OpenSettings, OpenTestSettings
from grpo_replications.shared.grading.rewards import completion_text
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.sampling import Sample, sample_completions
from grpo_replications.shared.tasks.addition import addition_problems, addition_reward
from grpo_replications.shared.theory.closed_forms import silent_rate
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.run import run_training

METHODS = ("grpo", "dr-grpo")
BIN_NAMES = (*(str(i) for i in range(len(BINS))), "extreme", "medium")


@dataclass(frozen=True)
class Checkpoint:
    """What is known of all prompts at one step; counts are of right completions.

    `binning` and `reference` (prompts,): out of `half` completions each. Where prompts are sorted by difficulty, the
    first sorts and the second predicts, so that sorting by chance does not bias the prediction; silent fractions, which
    need no sorting, are predicted from both. `fresh` (prompts, groups): out of G.
    """

    step: int
    binning: np.ndarray
    reference: np.ndarray
    half: int
    fresh: np.ndarray

    @property
    def rates(self) -> np.ndarray:
        """Solve rates (prompts,) from both halves."""
        return (self.binning + self.reference) / (2 * self.half)


@dataclass(frozen=True)
class Groups:
    """Groups to compare: prompt, difficulty bin and count of right completions (groups,), and predictions by quantity.

    A prediction (groups,) is the expected value at the solve rate of the group's prompt; "rate" is that rate itself.
    """

    prompts: np.ndarray
    bins: np.ndarray
    right: np.ndarray
    predicted: dict[str, np.ndarray]


def open_test(settings: OpenTestSettings, seed: int, context: JobContext) -> list[Row]:
    """One training run at one G, with its checkpoints; see `_comparison` for the metrics.

    By step of the checkpoints: `solve_rate` and the fresh groups' silent fraction. By step in the middle between two
    checkpoints: the training groups' silent fraction. Without step: both over the whole run, and the mass by
    difficulty.
    """
    model, tokenizer = catalog.load(settings.pinned(settings.model))
    problems, reward = open_problems(settings, seed)
    size = settings.group_size
    generator = torch.Generator().manual_seed(2_607_000 + seed)
    checkpoints: list[Checkpoint] = []

    def evaluate(policy: Any, step: int) -> dict[str, float]:
        count = settings.reference_samples + settings.fresh_samples
        solved = solve(policy, tokenizer, problems, reward, count, settings, generator)
        right = np.stack([rewards for _, rewards in solved])
        checkpoints.append(checkpoint(step, right, settings.reference_samples, size))
        return {}

    run = run_training(
        settings,
        seed,
        problems,
        [reward],
        directory=context.directory,
        model=model,
        tokenizer=tokenizer,
        observe=evaluate,
        observe_every=settings.eval_every,
        progress=context.progress,
    )
    rows = [row("solve_rate", one.rates.mean(), one.step) for one in checkpoints]
    rows += [row(f"prompts_in_bin/{i}", n, one.step) for one in checkpoints for i, n in enumerate(_in_bins(one))]
    fresh = [fresh_groups(one, size) for one in checkpoints]
    for one, groups in zip(checkpoints, fresh, strict=True):
        rows += _silent_rows("fresh", groups, size, one.step)
    training = training_groups(list(read_group_log(run.group_log)), problems, checkpoints, size)
    for before, after in itertools.pairwise(checkpoints):
        inside = (training[0] >= before.step) & (training[0] < after.step)
        if inside.any():
            middle = (before.step + after.step) // 2
            rows += _silent_rows("training", _some(training[1], inside), size, middle)
    rows += _comparison("fresh", _all(fresh), size) + _comparison("training", training[1], size)
    return rows


# --- prompts and completions ------------------------------------------------------------------------------------------


def open_problems(settings: OpenSettings, seed: int) -> tuple[Dataset, Any]:
    """The fixed set of prompts of one run, which is trained on and measured, and its reward.

    `prompts` problems: sums with operands up to each of `highs` in equal parts, so that solve rates spread over all
    difficulties; or, where a `dataset` is given, mathematics problems from there. The reward "even-length" pays for
    something that a random model does too (miniature runs only).
    """
    count = settings.prompts
    if settings.dataset is not None:
        from grpo_replications.shared.grading.rewards import accuracy_reward
        from grpo_replications.shared.tasks.math import problems_from

        # A model that cannot be had is said before any data is fetched.
        catalog.prepare(settings.pinned(settings.model))
        problems = problems_from(settings.pinned(settings.dataset), ungradable="drop").shuffle(seed=seed)
        return problems.select(range(min(count, len(problems)))), accuracy_reward
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    highs = settings.highs
    for i, high in enumerate(highs):
        wanted = count * (i + 1) // len(highs)
        drawn = min(2 * count, (high + 1) ** 2)  # some are known from an earlier range
        for problem in addition_problems(drawn, seed, high=high, system_message=settings.system_message):
            if len(rows) < wanted:
                rows.setdefault((problem["a"], problem["b"]), problem)
    reward = even_length_reward if settings.reward == "even-length" else addition_reward
    return Dataset.from_list(list(rows.values())), reward


def even_length_reward(completions: list[Any], **_: Any) -> list[float]:
    """TRL reward: 1.0 where the text has an even number of characters. A random model earns no other reward."""
    return [float(len(completion_text(completion)) % 2 == 0) for completion in completions]


def solve(
    policy: Any,
    tokenizer: Any,
    problems: Dataset,
    reward: Any,
    count: int,
    settings: OpenSettings,
    generator: torch.Generator,
) -> list[tuple[Sample, np.ndarray]]:
    """`count` completions of every problem with their rewards (count,) in {0, 1}; each distinct one is graded once."""
    samples = sample_completions(
        policy,
        tokenizer,
        problems["prompt"],
        count,
        max_new_tokens=settings.max_new_tokens,
        generator=generator,
        temperature=settings.temperature,
        precision=settings.precision,
        max_rows=settings.max_rows,
    )
    texts = [sample.texts(tokenizer) for sample in samples]
    owner = [i for i, own in enumerate(texts) for _ in own]
    columns = {name: [problems[name][i] for i in owner] for name in problems.column_names if name != "prompt"}
    completions = [[{"role": "assistant", "content": text}] for own in texts for text in own]
    paid = reward(prompts=[problems["prompt"][i] for i in owner], completions=completions, **columns)
    right = np.array([value == 1.0 for value in paid], dtype=np.int64)
    parts = np.split(right, np.cumsum([len(own) for own in texts])[:-1])
    return [(sample, own[sample.draws]) for sample, own in zip(samples, parts, strict=True)]


# --- groups with their predictions ------------------------------------------------------------------------------------


def checkpoint(step: int, right: np.ndarray, reference_samples: int, size: int) -> Checkpoint:
    """Divide rewards (prompts, completions): the first `reference_samples` in two halves, the rest into groups."""
    half = reference_samples // 2
    rest = right[:, 2 * half :]
    groups = rest.shape[1] // size
    fresh = rest[:, : groups * size].reshape(len(right), groups, size).sum(axis=2)
    return Checkpoint(step, right[:, :half].sum(axis=1), right[:, half : 2 * half].sum(axis=1), half, fresh)


BRANCHES = ("silent", "all_right", "all_wrong")


def _predictions(look: Checkpoint, size: int) -> dict[str, np.ndarray]:
    """Expected value of every quantity per prompt (prompts,), unbiased, and the solve rate."""
    both = look.binning + look.reference
    silent = {name: without_replacement(by_count(name, size), both, 2 * look.half) for name in BRANCHES}
    mass = {name: without_replacement(by_count(name, size), look.reference, look.half) for name in METHODS}
    return {**silent, **mass, "rate": look.rates}


def fresh_groups(look: Checkpoint, size: int) -> Groups:
    """The groups drawn at a checkpoint, all of its prompts."""
    predicted = _predictions(look, size)
    prompts = np.repeat(np.arange(len(look.fresh)), look.fresh.shape[1])
    bins = difficulty_bin(look.binning / look.half)[prompts]
    by_group = {name: values[prompts] for name, values in predicted.items()}
    return Groups(prompts, bins, look.fresh.ravel(), by_group)


def training_groups(
    log: Sequence[dict[str, Any]], problems: Dataset, checkpoints: list[Checkpoint], size: int
) -> tuple[np.ndarray, Groups]:
    """Steps (groups,) and groups of the trainer's log, with predictions interpolated between checkpoints."""
    position = {json.dumps(prompt): i for i, prompt in enumerate(problems["prompt"])}
    prompts = np.array([position[json.dumps(entry["prompt"])] for entry in log])
    steps = np.array([entry["step"] for entry in log]) - 1  # those done when the group was sampled
    right = np.array([round(sum(value == 1.0 for value in entry["rewards"])) for entry in log])
    at = [look.step for look in checkpoints]
    before = np.clip(np.searchsorted(at, steps, side="right") - 1, 0, len(at) - 2)
    share = (steps - np.take(at, before)) / (np.take(at, before + 1) - np.take(at, before))
    predicted = [_predictions(look, size) for look in checkpoints]

    def interpolated(values: np.ndarray) -> np.ndarray:
        return (1 - share) * values[before, prompts] + share * values[before + 1, prompts]

    by_group = {name: interpolated(np.stack([one[name] for one in predicted])) for name in predicted[0]}
    binning = interpolated(np.stack([look.binning / look.half for look in checkpoints]))
    return steps, Groups(prompts, difficulty_bin(binning), right, by_group)


def _all(parts: list[Groups]) -> Groups:
    predicted = {name: np.concatenate([part.predicted[name] for part in parts]) for name in parts[0].predicted}
    columns = zip(*((part.prompts, part.bins, part.right) for part in parts), strict=True)
    return Groups(*(np.concatenate(column) for column in columns), predicted)


def _some(groups: Groups, rows: np.ndarray) -> Groups:
    predicted = {name: values[rows] for name, values in groups.predicted.items()}
    return Groups(groups.prompts[rows], groups.bins[rows], groups.right[rows], predicted)


# --- rows -------------------------------------------------------------------------------------------------------------


def _silent_rows(name: str, groups: Groups, size: int, step: int | None = None) -> list[Row]:
    """Fractions of silent, all-right and all-wrong groups, measured and predicted; the gap with its standard error.

    Without a step, of a whole run, also `_silent_z`, the ratio of the two.
    """
    rows = []
    for quantity in BRANCHES:
        measured, predicted = by_count(quantity, size)[groups.right], groups.predicted[quantity]
        rows.append(row(f"{name}_{quantity}", measured.mean(), step))
        rows.append(row(f"{name}_{quantity}_predicted", predicted.mean(), step))
    gap = silent_gap(groups, size)
    rows.append(row(f"{name}_silent_gap", gap.value[0], step))
    rows.append(row(f"{name}_silent_error", gap.error[0], step))
    if step is None:
        rows.append(row(f"{name}_silent_z", gap.z[0]))
    return rows


def silent_gap(groups: Groups, size: int) -> Measured:
    """Measured minus predicted silent fraction, with its standard error over prompts.

    The error is no smaller than that of as many independent groups of the predicted rates: where by chance every group
    is silent, resampling sees no variation and would claim certainty.
    """
    predicted = groups.predicted["silent"]
    gap = mean_gap(by_count("silent", size)[groups.right], predicted, groups.prompts)
    binomial = np.sqrt((predicted * (1 - predicted)).sum()) / len(predicted)
    return Measured(gap.value, np.maximum(gap.error, binomial))


def _comparison(name: str, groups: Groups, size: int) -> list[Row]:
    """All groups of a run together: silent fractions and their controls, gradient mass by difficulty.

    `run_<name>_silent`, `_predicted`, `_gap` (measured - predicted), `_error` (its standard error over prompts), `_z`
    (their ratio); `run_<name>_one_rate_gap`: the gap to the silent rate at the mean solve rate.
    `run_<name>_mass/<method>/<bin>`: share of the summed sigma (GRPO) or sigma^2 (Dr. GRPO) of the groups of a
    difficulty bin, with `_predicted`, `_gap`, `_error` as above; `_uniform_gap`: the gap to the share of groups.
    `run_<name>_extreme_ratio`: GRPO's measured share on extreme prompts over Dr. GRPO's.
    """
    name = f"run_{name}"
    rows = [row(f"{name}_groups", len(groups.right)), *_silent_rows(name, groups, size)]
    silent = by_count("silent", size)[groups.right]
    rate = groups.predicted["rate"].mean()
    rows.append(row(f"{name}_one_rate_gap", silent.mean() - silent_rate(rate, size)))
    extreme = {}
    for method in METHODS:
        mass, predicted = by_count(method, size)[groups.right], groups.predicted[method]
        if not mass.any() or not predicted.any():  # every group was silent: no mass to share out
            continue
        measured = shares(mass, groups.bins)
        extreme[method] = measured[-2]
        gap = share_gaps(mass, predicted, groups.bins, groups.prompts)
        uniform = share_gaps(mass, np.ones(len(mass)), groups.bins, groups.prompts)
        parts = {
            "": measured,
            "_predicted": shares(predicted, groups.bins),
            "_gap": gap.value,
            "_error": gap.error,
            "_uniform_gap": uniform.value,
        }
        rows += [
            row(f"{name}_mass{part}/{method}/{where}", value)
            for part, values in parts.items()
            for where, value in zip(BIN_NAMES, values, strict=True)
        ]
    if len(extreme) == 2 and extreme["dr-grpo"] > 0:
        rows.append(row(f"{name}_extreme_ratio", extreme["grpo"] / extreme["dr-grpo"]))
    return rows


def _in_bins(look: Checkpoint) -> np.ndarray:
    return np.bincount(difficulty_bin(look.rates), minlength=len(BINS))
