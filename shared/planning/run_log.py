"""Logs of training runs in one form: what each group was rewarded, whichever program wrote it.

A run's `trainer_state.json` beside the log adds what the log does not hold, such as gradient norms.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from grpo_replications.shared.errors import ReplicationError

TRAINER_STATE = "trainer_state.json"


@dataclass(frozen=True)
class RunLog:
    """The n groups of a run in the order of training, G completions each.

    `steps` (n,): the writer's step counter. `prompts` (n,): a number for each distinct prompt. `rewards` (n, G):
    summed reward, finite. `lengths` (n, G) in `length_unit`. `entropy` (n,): mean token entropy in nats, NaN
    where unknown. `draws` (n,): how often the group was drawn; `exhausted` (n,): still silent after the last
    redraw. `distinct` (n,): different texts among the completions. None where the log does not say. `history`: the
    entries of the trainer's own log. `notes`: what was assumed or left out while reading.
    """

    source: str
    kind: str
    steps: np.ndarray
    prompts: np.ndarray
    rewards: np.ndarray
    lengths: np.ndarray | None = None
    length_unit: str = "tokens"
    entropy: np.ndarray | None = None
    draws: np.ndarray | None = None
    exhausted: np.ndarray | None = None
    distinct: np.ndarray | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def group_size(self) -> int:
        """G, the completions of a group."""
        return self.rewards.shape[1]


def read_history(directory: Path) -> list[dict[str, Any]]:
    """`log_history` of a run's `trainer_state.json`: in `directory`, or in its checkpoint of the highest step.

    Empty where there is no such file; ReplicationError where it is damaged.
    """
    found = [directory / TRAINER_STATE] if (directory / TRAINER_STATE).is_file() else []
    checkpoints = [path for path in directory.glob(f"checkpoint-*/{TRAINER_STATE}") if _checkpoint_step(path) >= 0]
    found += sorted(checkpoints, key=_checkpoint_step)[-1:] if not found else []
    if not found:
        return []
    try:
        history = json.loads(found[0].read_text(encoding="utf-8"))["log_history"]
        return [{**entry, "step": int(entry["step"])} for entry in history if "step" in entry]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReplicationError(f"{found[0]} beside the log is damaged ({error!r}); mend or remove it.") from error


def first_appearance(values: list[Any]) -> np.ndarray:
    """Number each distinct value (compared by its JSON) in the order of first appearance: n values to (n,) int."""
    numbers: dict[str, int] = {}
    keys = (value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str) for value in values)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def weighted_sum(weights: dict[str, float]) -> str:
    """A sum of rewards in words: `0.5 x format + accuracy`."""
    return " + ".join(name if weight == 1 else f"{weight:g} x {name}" for name, weight in weights.items())


def scored_groups(rewards: np.ndarray, where: str, skip_unscored: bool) -> np.ndarray:
    """Which groups of rewards (n, G) have a number for every completion, (n,) bool.

    Raises ReplicationError for infinite rewards, for unscored completions (NaN) unless they are to be skipped, and
    where nothing is left.
    """
    if np.isinf(rewards).any():
        raise ReplicationError(f"{where}: {int(np.isinf(rewards).sum())} rewards are infinite; no statistic holds.")
    scored = ~np.isnan(rewards).any(axis=1)
    if scored.all() or (skip_unscored and scored.any()):
        return scored
    missing = int(np.isnan(rewards).sum())
    if not scored.any():
        raise ReplicationError(f"{where}: every group has completions without a reward (NaN or null); nothing is left.")
    raise ReplicationError(
        f"{where}: {missing} completions in {int((~scored).sum())} of {len(scored)} groups have no reward (NaN or "
        "null). Add --skip-unscored to leave those groups out."
    )


def _checkpoint_step(path: Path) -> int:
    number = path.parent.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() else -1
