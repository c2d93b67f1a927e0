"""A log of every group: one JSON line per group, written during training and read by later tools.

Fields of a line (lists have one entry per completion of the group):

    format                   2; see below
    step                     first optimizer step that the group is used for, counted from 1 as TRL counts
    prompt                   text, or list of messages; images and other objects by their kind and size
    completions              texts
    completion_ids           token ids (absent when the log was opened without them)
    rewards, advantages      summed reward (null when no reward function scored it); advantage used in the loss
    reward_functions         of each function {"name", "weight", "rewards"}: its weight in the sum, and what it gave
                             (null where it gave no score)
    lengths                  tokens, end-of-sequence included
    entropy                  mean token entropy in nats under the policy at its first update; null if never updated on
    weights                  {"mean", "min", "max"} of the token weights over each completion's tokens
    path_depth, intermediate_proportion, flat   the group's prefix tree (shared.theory.process_sets)
    silent                   "all right", "all wrong" or null
    draws                    how often the group was drawn; 1: never redrawn (shared.training.dynamic_sampling)
    redraws_exhausted        true where the group was silent after the last redraw allowed, too; false without redraws

Lines without `format` are of the first format: they have no `reward_functions`, and their steps count from 0.
`read_group_log` adds 1 to these, so that its readers see one way of counting.

What is logged of a group is what was kept; of earlier draws only their number, and that all of them were silent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grpo_replications.shared.errors import ReplicationError

FORMAT = 2


class GroupLog:
    """Appends groups to a file; each call of `append` leaves whole lines on disk."""

    def __init__(self, path: str | Path, token_ids: bool = True) -> None:
        """Open `path` for a new log (an older log of that name is replaced at the first write)."""
        self.path = Path(path)
        self.token_ids = token_ids
        self._started = False

    def check(self) -> None:
        """Raise ReplicationError where the file could not be written; leaves an older log as it is."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            existed = self.path.exists()
            with self.path.open("ab"):
                pass
            if not existed:
                self.path.unlink()
        except OSError as error:
            raise ReplicationError(f"The group log {self.path} cannot be written: {error}.") from error

    def append(self, groups: Iterable[dict[str, Any]]) -> None:
        """Write groups, one line each. Raises ReplicationError when the file cannot be written."""
        lines = [_line(group) for group in groups]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a" if self._started else "w", encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            raise ReplicationError(f"The group log {self.path} could not be written: {error}.") from error
        self._started = True

    def keep_before(self, step: int) -> None:
        """Drop groups sampled at or after `step`: a run resumed from a checkpoint writes those again."""
        if self.path.exists():
            kept = [group for group in read_group_log(self.path) if group["step"] < step]
            self._started = False
            self.append(kept)


def read_group_log(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the groups of a log in the order of training, their steps counted from 1 whatever the log's format.

    A last line cut short by a killed run is left out. Raises ReplicationError for a missing, empty or foreign file.
    """
    path = Path(path)
    seen = 0
    try:
        with path.open("rb") as file:  # bytes: a killed run may have cut the last line inside a character
            for line in file:
                seen += 1
                if not line.endswith(b"\n") and seen > 1:
                    return
                yield _parse(line, f"{path}, line {seen}")
    except OSError as error:
        raise ReplicationError(f"The group log {path} could not be read: {error}.") from error
    if seen == 0:
        raise ReplicationError(f"The group log {path} is empty.")


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        group = json.loads(line.decode("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ReplicationError(f"{where}: not a group log ({error}).") from error
    if not isinstance(group, dict) or not {"step", "rewards", "advantages"} <= group.keys():
        raise ReplicationError(f"{where}: not a group log (step, rewards or advantages is missing).")
    if group.pop("format", 1) == 1 and isinstance(group["step"], int):
        group["step"] += 1
    return group


def _line(group: dict[str, Any]) -> str:
    return json.dumps({"format": FORMAT, **group}, ensure_ascii=False, separators=(",", ":"), default=_described) + "\n"


def _described(value: Any) -> Any:
    """What stands in the log for an object that JSON has no form for, such as an image."""
    if getattr(value, "size", None) == 1 and hasattr(value, "item"):  # a number of numpy
        return value.item()
    size = getattr(value, "shape", None) or getattr(value, "size", None)
    extent = "x".join(map(str, size)) if isinstance(size, tuple) else len(value) if isinstance(value, bytes) else ""
    return f"<{type(value).__name__} {extent}>".replace(" >", ">")
