"""Tasks by name: prompts to train on, held-out prompts to measure with, and the rewards of both.

A task module offers `load(**settings) -> Task`; adding a task is adding one module and one line to `_MODULES`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.grading.rewards import RewardFunction

_MODULES = {
    "addition": "grpo_replications.shared.tasks.addition",
    "knights-and-knaves": "grpo_replications.shared.tasks.knights_and_knaves",
    "math": "grpo_replications.shared.tasks.math",
}


@dataclass(frozen=True)
class Task:
    """What a trainer and an evaluation need.

    `train` and `validation` have a column `prompt` (chat messages) and the columns that the rewards read; `rewards` are
    TRL reward functions, the first of them 1.0 exactly where a completion is correct. `build_prompt(problem)` makes the
    messages of a new problem.
    """

    name: str
    train: Dataset
    validation: Dataset
    rewards: list[RewardFunction]
    build_prompt: Callable[..., list[dict[str, str]]]
    settings: dict[str, Any] = field(default_factory=dict)


def load_task(name: str, **settings: Any) -> Task:
    """The task of that name with its settings; ReplicationError for an unknown name or setting."""
    if name not in _MODULES:
        raise ReplicationError(f"There is no task {name!r}; the tasks are: {', '.join(sorted(_MODULES))}.")
    load = importlib.import_module(_MODULES[name]).load
    known = list(inspect.signature(load).parameters)
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ReplicationError(
            f"Task {name!r} has no setting {', '.join(unknown)}; its settings are: {', '.join(known)}."
        )
    return load(**settings)
