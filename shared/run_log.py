"""Logs of training runs in one form: what each group was rewarded, whichever program wrote it.

Two kinds of log are read: this project's group log (`shared.group_log`, one JSON line a group) and the completions that
TRL's own GRPOTrainer writes with ``log_completions=True`` (`shared.completions_log`). A run's ``trainer_state.json``
beside the log adds what neither holds, such as gradient norms.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shared.errors import ReplicationError
from shared.group_log import read_group_log

GROUP_LOG = "groups.jsonl"
TRAINER_STATE = "trainer_state.json"


@dataclass(frozen=True)
class RunLog:
    """The n groups of a run in the order of training, G completions each.

    ``steps`` (n,): the writer's step counter. ``prompts`` (n,): a number for each distinct prompt. ``rewards`` (n, G):
    summed reward, finite. ``lengths`` (n, G) in ``length_unit``. ``entropy`` (n,): mean token entropy in nats, NaN
    where unknown. ``draws`` (n,): how often the group was drawn; ``exhausted`` (n,): still silent after the last
    redraw. ``distinct`` (n,): different texts among the completions. None where the log does not say. ``history``: the
    entries of the trainer's own log. ``notes``: what was assumed or left out while reading.
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


def read_run_log(
    path: str | Path,
    group_size: int | None = None,
    rewards: list[str] | None = None,
    skip_unscored: bool = False,
) -> RunLog:
    """Read a log file or a run's directory.

    A directory may hold ``groups.jsonl``, ``completions_*.parquet`` or ``completions/completions_*.parquet``; where it
    holds both kinds, the group log is read, which has every group. ``group_size`` and ``rewards`` (names of reward
    columns) are for TRL's completions where they cannot be inferred. ``skip_unscored`` leaves out groups with a
    completion that no reward function scored; otherwise these are an error. Raises ReplicationError for whatever
    cannot be read as a log. Memory and time grow with the text in the log.
    """
    path = Path(path)
    if not path.exists():
        raise ReplicationError(f"There is no file or directory {path}.")
    if path.is_dir() and (path / GROUP_LOG).is_file():
        path = path / GROUP_LOG
    if path.is_dir() or _is_parquet(path):
        from shared.completions_log import read_completions_log

        return read_completions_log(path, group_size, rewards, skip_unscored)
    if group_size is not None or rewards is not None:
        raise ReplicationError(f"{path} is read as a group log: --group-size and --reward are for TRL's completions.")
    return _from_group_log(path, skip_unscored)


def read_history(directory: Path) -> list[dict[str, Any]]:
    """``log_history`` of a run's ``trainer_state.json``: in `directory`, or in its checkpoint of the highest step.

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


def _from_group_log(path: Path, skip_unscored: bool) -> RunLog:
    groups = list(read_group_log(path))
    if not groups:
        raise ReplicationError(f"The group log {path} is empty.")
    sizes = {len(group["rewards"]) if isinstance(group["rewards"], list) else 0 for group in groups}
    if len(sizes) > 1 or min(sizes) < 2:
        raise ReplicationError(
            f"{path}: groups of {', '.join(map(str, sorted(sizes)))} rewards; every group must have the same number, "
            "at least 2."
        )
    rewards = _column(groups, "rewards", path)
    kept = scored_groups(rewards, str(path), skip_unscored)
    notes = [f"{int((~kept).sum())} groups with unscored completions left out."] if not kept.all() else []
    groups = [group for group, keep in zip(groups, kept) if keep]
    steps = _column(groups, "step", path)
    if not np.isfinite(steps).all():
        raise ReplicationError(f"{path}: a group has no step.")
    order = np.argsort(steps, kind="stable")

    def column(name: str) -> np.ndarray | None:
        if any(group.get(name) is None for group in groups):
            return None
        return _column(groups, name, path)[order]

    texts = [group.get("completions") for group in groups]
    distinct = np.array([len(set(map(str, t))) for t in texts])[order] if all(texts) else None
    draws, exhausted = column("draws"), column("redraws_exhausted")
    return RunLog(
        source=str(path),
        kind="group log",
        steps=steps[order].astype(np.int64),
        prompts=first_appearance([group.get("prompt") for group in groups])[order],
        rewards=rewards[kept][order],
        lengths=column("lengths"),
        entropy=_mean_entropy(groups)[order],
        draws=None if draws is None else draws.astype(np.int64),
        exhausted=None if exhausted is None else exhausted.astype(bool),
        distinct=distinct,
        history=read_history(path.parent),
        notes=notes,
    )


def _column(groups: list[dict[str, Any]], name: str, path: Path) -> np.ndarray:
    """One field of all groups as float64, null as NaN; ReplicationError where it holds anything but numbers."""
    try:
        return np.array([group[name] for group in groups], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ReplicationError(
            f"{path}: the field '{name}' does not hold the same number of numbers in every group ({error})."
        ) from error


def _mean_entropy(groups: list[dict[str, Any]]) -> np.ndarray:
    means = []
    for group in groups:
        known = [value for value in group.get("entropy") or [] if value is not None]
        means.append(sum(known) / len(known) if known else math.nan)
    return np.array(means)


def _is_parquet(path: Path) -> bool:
    """By its first bytes, or, for a file too damaged to tell, by its name."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1" or path.suffix == ".parquet"
    except OSError as error:
        raise ReplicationError(f"{path} could not be read: {error}.") from error


def _checkpoint_step(path: Path) -> int:
    number = path.parent.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() else -1
