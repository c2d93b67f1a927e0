"""Reading the log of a training run, of this project or of TRL's own trainer.

Two kinds of log are read: this project's group log (`shared.training.group_log`, one JSON line a group) and the
completions that TRL's GRPOTrainer writes with `log_completions=True` (`shared.planning.completions_log`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.planning.completions_log import read_completions_log
from grpo_replications.shared.planning.run_log import (
    RunLog,
    first_appearance,
    read_history,
    scored_groups,
    weighted_sum,
)
from grpo_replications.shared.training.group_log import read_group_log

GROUP_LOG = "groups.jsonl"


def read_run_log(
    path: str | Path,
    group_size: int | None = None,
    rewards: dict[str, float] | None = None,
    skip_unscored: bool = False,
) -> RunLog:
    """Read a log file or a run's directory.

    A directory may hold `groups.jsonl`, `completions_*.parquet` or `completions/completions_*.parquet`; where it
    holds both kinds, the group log is read, which has every group. `group_size` is for
    TRL's completions where it cannot be inferred. `rewards` names reward functions with their weights, for a sum other
    than the one that was trained on, or where a log of TRL leaves it open. `skip_unscored` leaves out groups with a
    completion that no reward function scored; otherwise these are an error. Raises ReplicationError for whatever
    cannot be read as a log. Memory and time grow with the text in the log.
    """
    path = Path(path)
    if not path.exists():
        raise ReplicationError(f"There is no file or directory {path}.")
    if path.is_dir() and (path / GROUP_LOG).is_file():
        path = path / GROUP_LOG
    if path.is_dir() or _is_parquet(path):
        return read_completions_log(path, group_size, rewards, skip_unscored)
    return _from_group_log(path, group_size, rewards, skip_unscored)


def _from_group_log(
    path: Path, group_size: int | None, weights: dict[str, float] | None, skip_unscored: bool
) -> RunLog:
    groups = list(read_group_log(path))
    if not groups:
        raise ReplicationError(f"The group log {path} is empty.")
    sizes = {len(group["rewards"]) if isinstance(group["rewards"], list) else 0 for group in groups}
    if len(sizes) > 1 or min(sizes) < 2:
        raise ReplicationError(
            f"{path}: groups of {', '.join(map(str, sorted(sizes)))} rewards; every group must have the same number, "
            "at least 2."
        )
    if group_size not in (None, min(sizes)):
        raise ReplicationError(f"{path} has groups of {min(sizes)} completions; leave --group-size out.")
    rewards = _column(groups, "rewards", path) if weights is None else _reward_functions(groups, weights, path)
    kept = scored_groups(rewards, str(path), skip_unscored)
    notes = [f"{int((~kept).sum())} groups with unscored completions left out."] if not kept.all() else []
    if weights is not None:
        notes.append(f"Reward: {weighted_sum(weights)}, as asked for.")
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


def _reward_functions(groups: list[dict[str, Any]], weights: dict[str, float], path: Path) -> np.ndarray:
    """Another sum of the rewards that single functions gave, (n, G); NaN where none of them scored a completion."""
    logged = groups[0].get("reward_functions")
    if not logged:
        raise ReplicationError(f"{path} holds summed rewards only; leave --reward out.")
    unknown = [name for name in weights if name not in {one["name"] for one in logged}]
    if unknown:
        have = ", ".join(f"{one['name']} (weight {one['weight']:g})" for one in logged)
        raise ReplicationError(f"{path} has no reward function '{unknown[0]}'; there are: {have}.")
    try:
        by_name = [{one["name"]: one["rewards"] for one in group["reward_functions"]} for group in groups]
        parts = np.array([[group[name] for name in weights] for group in by_name], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise ReplicationError(f"{path}: the field 'reward_functions' is damaged in some group ({error}).") from error
    total = np.nansum(parts * np.array(list(weights.values()))[:, None], axis=1)
    return np.where(np.isnan(parts).all(axis=1), np.nan, total)


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
