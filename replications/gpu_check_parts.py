"""What `replicate gpu-check` measures, part by part: each part yields lines, a number with what is wanted of it.

Formulas are those of the experiments and of `shared.theory`: the theorem is λ-GRPO's `model_rollouts`, the identity is
`real_gradients`, the oracle of the process sets is the trie in plain Python.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from grpo_replications.replications.lambda_grpo.settings import TheoremSettings
from grpo_replications.replications.lambda_grpo.theorem import model_rollouts
from grpo_replications.replications.sigma_identity.real_gradients import real_gradients
from grpo_replications.replications.sigma_identity.settings import RealGradientsSettings
from grpo_replications.replications.sigma_identity.trl_updates import level_reward
from grpo_replications.shared.harness.bench import process_set_workloads
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.models import catalog
from grpo_replications.shared.tasks.addition import addition_problems
from grpo_replications.shared.theory import process_sets_reference
from grpo_replications.shared.theory.process_sets import process_set_sizes, step_rewards, tree_statistics
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.run import run_training
from grpo_replications.shared.training.settings import TrainingSettings
from grpo_replications.shared.training.token_weights import lambda_weights, method_weighting

FLOAT32, FLOAT64 = 1e-3, 1e-9
"""Largest relative error of a gradient: above the rounding of a deep network, far below what a wrong formula does."""

_ROUNDED = 1e-6  # weights are float32


@dataclass(frozen=True)
class Line:
    """One number: `passed` is None where nothing is wanted of it, and `value` where a part failed without one."""

    part: str
    name: str
    value: float | None
    wanted: str
    passed: bool | None
    unit: str = ""


@dataclass(frozen=True)
class Sizes:
    """How large everything is.

    `short`, `long`: tokens of a completion; `identity_group`, `loss_types`, `reward`: completions of a prompt,
    losses and reward of the identity; `workload`: completions and tokens of a group of the process sets; `sharpness`:
    options of the weight, such that the model's logits fall between its bounds; `share`: of a step, what weights may
    take.
    """

    model: str
    groups: int
    group_size: int
    short: int
    long: int
    steps: int
    identity_group: int
    loss_types: tuple[str, ...]
    workload: tuple[int, int]
    reward: str
    sharpness: dict[str, float]
    share: float


FULL = Sizes(
    model="embedded",
    groups=8,
    group_size=8,
    short=64,
    long=512,
    steps=4,
    identity_group=8,
    loss_types=("grpo", "dapo", "dr_grpo"),
    workload=(64, 4096),
    reward="addition",
    sharpness={"tau": 9.0},
    share=0.05,
)
MINIATURE = Sizes(
    model="tiny-random",
    groups=2,
    group_size=16,
    short=6,
    long=12,
    steps=2,
    identity_group=4,
    loss_types=("grpo", "dapo", "dr_grpo"),
    workload=(8, 64),
    reward="parity",
    sharpness={"tau": 0.1, "mu": 0.0},
    share=1.0,
)


@dataclass(frozen=True)
class Place:
    """Where and how large: the device ("cuda" or "cpu"), the sizes, and a directory for logs."""

    device: str
    sizes: Sizes
    directory: Path

    def free(self) -> None:
        """Give back the memory of what is no longer used, and count its peak anew."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def wait(self) -> None:
        """Wait until the device has done what it was told."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def at_most(part: str, name: str, value: float, limit: float, unit: str = "") -> Line:
    """A line that passes up to `limit`; NaN does not pass."""
    return Line(part, name, value, f"≤ {limit:g}", value <= limit, unit)


def at_least(part: str, name: str, value: float, limit: float, unit: str = "") -> Line:
    """A line that passes from `limit` on; infinity and NaN do not pass."""
    return Line(part, name, value, f"≥ {limit:g}", math.isfinite(value) and value >= limit, unit)


def above_zero(part: str, name: str, value: float) -> Line:
    """A line that passes for a finite number above 0."""
    return Line(part, name, value, "finite, > 0", math.isfinite(value) and value > 0)


def measured(part: str, name: str, value: float, unit: str) -> Line:
    """A line of which nothing is wanted."""
    return Line(part, name, value, "", None, unit)


# --- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """One training run: what it is called, its method, tokens of every completion, redraws of a silent group."""

    name: str
    method: str
    tokens: int
    max_redraws: int = 0


def trainings(sizes: Sizes) -> list[Training]:
    """GRPO, λ-GRPO, sharpness and dynamic sampling on short completions; GRPO and λ-GRPO on long ones."""
    return [
        Training(f"grpo, {sizes.short} tokens", "grpo", sizes.short),
        Training(f"lambda-grpo, {sizes.short} tokens", "lambda-grpo", sizes.short),
        Training(f"sharpness, {sizes.short} tokens", "sharpness", sizes.short),
        Training(f"dynamic sampling, {sizes.short} tokens", "grpo", sizes.short, max_redraws=2),
        Training(f"grpo, {sizes.long} tokens", "grpo", sizes.long),
        Training(f"lambda-grpo, {sizes.long} tokens", "lambda-grpo", sizes.long),
    ]


def training_settings(training: Training, sizes: Sizes) -> TrainingSettings:
    """Settings of a run in bfloat16 whose completions all have exactly the tokens asked for.

    With dynamic sampling groups have two completions, so that half of them are silent and a redraw is all but certain.
    """
    long = training.tokens == sizes.long
    return TrainingSettings(
        model=sizes.model,
        method=training.method,
        steps=min(sizes.steps, 2) if long else sizes.steps,
        prompts_per_step=sizes.groups * (2 if training.max_redraws else 1),
        group_size=2 if training.max_redraws else sizes.group_size,
        gradient_accumulation_steps=4 if long else 1,
        lr=1e-5,
        max_new_tokens=training.tokens,
        max_redraws=training.max_redraws,
        precision="bfloat16",
        trl={"generation_kwargs": {"min_new_tokens": training.tokens}},
        **(sizes.sharpness if training.method == "sharpness" else {}),
    )


def train(place: Place, training: Training) -> Iterator[Line]:
    """A few steps: finite, moving, with weights inside their bounds; tokens a second and peak memory of the GPU.

    The reward, whether the sum of the token ids is odd, is one that any policy receives both values of.
    """
    part, settings = training.name, training_settings(training, place.sizes)
    model, tokenizer = catalog.load(settings.model)
    before = [p.detach().clone() for p in model.parameters()]
    problems = settings.steps * settings.prompts_per_step * (1 + settings.max_redraws)
    run = run_training(
        settings,
        0,
        Dataset.from_list(addition_problems(problems)),
        level_reward(2),
        directory=place.directory / part.replace(", ", "-").replace(" ", "-"),
        model=model,
        tokenizer=tokenizer,
    )
    history = run.history
    moved = max(float((new.detach().cpu() - old).abs().max()) for new, old in zip(run.model.parameters(), before))
    finite = sum(math.isfinite(entry["loss"]) for entry in history)
    groups = list(read_group_log(run.group_log))
    yield Line(part, "steps with a finite loss", finite, f"{settings.steps}", finite == settings.steps == len(history))
    yield above_zero(part, "smallest gradient norm", min(entry["grad_norm"] for entry in history))
    yield above_zero(part, "largest gradient norm", max(entry["grad_norm"] for entry in history))
    yield above_zero(part, "largest move of a weight", moved)
    shortest = min(min(group["lengths"]) for group in groups)
    yield Line(part, "tokens of the shortest completion", shortest, f"{training.tokens}", shortest == training.tokens)
    if settings.max_redraws:
        drawn = statistics.fmean(entry["groups/redrawn"] for entry in history)
        yield above_zero(part, "share of groups redrawn", drawn)
    yield from _audit(part, settings, history)
    yield from _speed(place, part, settings, history, groups)


def _audit(part: str, settings: TrainingSettings, history: list[dict[str, float]]) -> Iterator[Line]:
    """The audit of the token weights over all steps: within the method's bounds, and not the same everywhere."""
    weighting = method_weighting(settings)
    if weighting is None:
        return
    lower, upper = weighting.factors[0].bounds or (1 / settings.group_size, 1.0)
    low = min(entry["token_weights/min"] for entry in history)
    high = max(entry["token_weights/max"] for entry in history)
    yield at_least(part, "smallest token weight", low, lower - _ROUNDED)
    yield at_most(part, "largest token weight", high, upper + _ROUNDED)
    inert = sum(entry["token_weights/inert"] for entry in history)
    yield at_most(part, "steps whose weights are all alike", inert, len(history) - 1)


def _speed(
    place: Place, part: str, settings: TrainingSettings, history: list[dict[str, float]], groups: list[dict[str, Any]]
) -> Iterator[Line]:
    """Tokens a second and, for λ-GRPO, what its weights take of a step; the first step, which warms up, is left out."""
    seconds = [entry["step_time"] for entry in history[1:]]
    tokens = sum(entry["groups/samples_spent"] for entry in history[1:]) * settings.max_new_tokens
    yield measured(part, "seconds a step", statistics.median(seconds), "s")
    yield measured(part, "tokens sampled and trained on", tokens / sum(seconds), "tokens/s")
    if settings.method == "lambda-grpo":
        share = _weights_seconds(place, groups) / statistics.median(seconds)
        yield at_most(part, "process sets and weights, share of a step", share, place.sizes.share)
        by_trainer = statistics.median(entry["time/token_weights"] / entry["step_time"] for entry in history[1:])
        yield measured(part, "the same by the trainer's clock", by_trainer, "")
    if place.device == "cuda":
        yield measured(part, "peak GPU memory", torch.cuda.max_memory_allocated() / 2**30, "GiB")


def _weights_seconds(place: Place, groups: list[dict[str, Any]], repeats: int = 5) -> float:
    """Median seconds to find the trees and the weights of a step's completions on the device, everything waited for."""
    step = [group for group in groups if group["step"] == groups[-1]["step"]]
    ids = torch.tensor([row for group in step for row in group["completion_ids"]], device=place.device)
    mask, size = torch.ones_like(ids, dtype=torch.bool), len(step[0]["completion_ids"])
    taken = []
    for _ in range(repeats + 1):
        place.wait()
        begin = time.perf_counter()
        lambda_weights(tree_statistics(ids, mask, size).sizes)
        place.wait()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


# --- process sets -----------------------------------------------------------------------------------------------------


def process_sets(place: Place) -> Iterator[Line]:
    """Sizes of process sets on the device against the trie in plain Python, and step rewards against their mean."""
    part = "process sets"
    for name, ids in process_set_workloads(*place.sizes.workload).items():
        group_size, columns = ids.shape
        lengths = torch.arange(group_size) * columns // group_size + 1  # from 1 token to nearly all, padded right
        mask = torch.arange(columns) < lengths.flip(0).unsqueeze(1)
        rewards = (torch.arange(group_size) % 3).double()
        oracle = process_sets_reference.process_set_sizes(ids, mask, group_size)
        on_device = ids.to(place.device), mask.to(place.device)
        sizes = process_set_sizes(*on_device, group_size).cpu()
        wrong = int((sizes != oracle).sum())
        yield at_most(part, f"wrong sizes, {name}", wrong, 0, f"of {ids.numel()}")
        steps = step_rewards(*on_device, rewards.to(place.device), group_size).cpu()
        # The sum over a column of R_{i,t} is that of the completions' rewards, wherever sets begin and end.
        error = float(((steps - rewards.unsqueeze(1) * mask).sum(dim=0)).abs().max())
        yield at_most(part, f"error of step rewards, {name}", error, FLOAT64)
    place.free()


# --- the two theorems -------------------------------------------------------------------------------------------------


def theorem(place: Place, precision: str) -> Iterator[Line]:
    """GRPO's loss against the loss of the process reward model: value and gradient over all parameters."""
    part, limit = f"theorem, {precision}", {"float32": FLOAT32, "float64": FLOAT64}[precision]
    sizes = place.sizes
    settings = TheoremSettings(
        source="rollouts",
        groups=2,
        model=sizes.model,
        group_size=sizes.group_size,
        max_new_tokens=min(sizes.short, 32),
        system_message="Answer briefly.",
    )
    torch.manual_seed(0)
    found = model_rollouts(settings, 0, JobContext(place.directory / part), place.device, precision)
    yield at_most(part, "relative error of the loss", found["value_error"], limit)
    yield at_most(part, "relative error of the gradient", found["gradient_error"], limit)
    yield at_most(part, "relative error of the sets' contributions", found["set_contribution_error"], limit)
    yield at_least(part, "groups with sets between all and one", found["groups_with_inner_sets"], 1)


def identity(place: Place, loss_type: str, precision: str) -> Iterator[Line]:
    """One SGD step of TRL's trainer against gain (mean right score - mean wrong score), and against a wrong gain."""
    part, limit = f"identity, {loss_type}, {precision}", {"float32": FLOAT32, "float64": FLOAT64}[precision]
    sizes = place.sizes
    settings = RealGradientsSettings(
        model=sizes.model,
        precision=precision,
        reward=sizes.reward,
        prompts=max(sizes.groups, 3),
        group_size=sizes.identity_group,
        micro_batch=8,
        max_new_tokens=24,
        loss_type=loss_type,
        scale_rewards="none" if loss_type == "dr_grpo" else "group",
        lr=1024.0,
        low=0,
        high=9,
        system_message="Reply with a number.",
    )
    torch.manual_seed(0)
    rows = real_gradients(settings, 0, JobContext(place.directory / part))
    found = {row["metric"]: row["value"] for row in rows}
    yield at_least(part, "groups with right and wrong completions", found["mixed_groups"], 1)
    yield at_most(part, "relative error of the update", found["error"], limit)
    yield at_least(part, "cosine of update and prediction", found.get("cosine", math.nan), 1 - 1e-6)
    yield at_least(part, "control: error of a misprinted gain", found.get("error_misprint", math.nan), 0.1)


def parts(place: Place) -> dict[str, Callable[[], Iterator[Line]]]:
    """All parts by name, in the order in which they run."""
    every: dict[str, Callable[[], Iterator[Line]]] = {"process sets": partial(process_sets, place)}
    for precision in ("float32", "float64"):
        every[f"theorem, {precision}"] = partial(theorem, place, precision)
    cells = [*((loss_type, "float32") for loss_type in place.sizes.loss_types), ("grpo", "float64")]
    for loss_type, precision in cells:
        every[f"identity, {loss_type}, {precision}"] = partial(identity, place, loss_type, precision)
    for training in trainings(place.sizes):
        every[training.name] = partial(train, place, training)
    return every
