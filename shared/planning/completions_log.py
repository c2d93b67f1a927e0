"""The completions that TRL's GRPOTrainer writes with `log_completions=True`, read as groups.

TRL 1.16 writes `<output_dir>/completions/completions_<step>.parquet` each time it logs (every `logging_steps`, and
once more at the end of training). Columns: step, prompt, completion, one per reward function, any that reward functions
added with `log_extra`, advantage. What follows from the way it is written:

- A file holds the *last* generation batch of all processes, rows in the order of groups. With `logging_steps` above 1
  the rollouts between two logs are not in any file.
- A rollout used for several updates (`num_iterations`, `steps_per_generation` above the accumulation steps) is
  written once per log: neighboring steps with the same rows are one rollout and are counted once.
- The group size is not written. It is inferred: G rows of one prompt make a group only if the advantages of its rows
  are a multiple of reward minus mean reward. Blocks of another size break this wherever the groups are not silent.
  Where all groups are silent, or advantages were normalized per reward function, only the runs of equal prompts are
  left: two or more different prompts with runs of one length give that length, with a note; else it must be given.
- An evaluation writes into the same files. A trainer's history beside them tells at which steps; these are left out.
  Without a history, groups of an evaluation cannot be told from those of training.
- Extra columns that hold numbers look like rewards. The first columns whose sum explains the advantages are taken;
  where none do (as with `reward_weights`), they must be named.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.planning.run_log import (
    RunLog,
    first_appearance,
    read_history,
    scored_groups,
    weighted_sum,
)
from grpo_replications.shared.tables import read_table

NEEDED = ("step", "prompt", "completion")
_CLOSE = 1e-2  # of the largest advantage: what rounding may leave (TRL adds 1e-4 to the standard deviation)


@dataclass(frozen=True)
class _Batch:
    """One generation batch: rows of one step, rewards by column."""

    step: int
    prompts: np.ndarray  # (rows,) int
    completions: list[Any]
    columns: dict[str, np.ndarray]  # numbers between completion and advantage, in the order of the file
    advantages: np.ndarray | None

    def same_rows(self, other: _Batch) -> bool:
        return (
            len(self.prompts) == len(other.prompts)
            and self.completions == other.completions
            and np.array_equal(self.prompts, other.prompts)
            and self.columns.keys() == other.columns.keys()
            and all(np.array_equal(self.columns[n], other.columns[n], equal_nan=True) for n in self.columns)
            and (self.advantages is None or np.array_equal(self.advantages, other.advantages, equal_nan=True))
        )


def read_completions_log(
    path: Path, group_size: int | None = None, rewards: dict[str, float] | None = None, skip_unscored: bool = False
) -> RunLog:
    """A parquet file, a directory of them, or a run's directory with `completions/` in it.

    `group_size`: given, or inferred. `rewards`: the columns to sum with their weights, or inferred with weights of 1.
    Raises ReplicationError where a file is no completions log, or what cannot be inferred was not given.
    """
    files, run = _files(path)
    history = read_history(run)
    notes: list[str] = []
    batches = _training_batches(_batches(files), history, notes)
    weights = rewards or dict.fromkeys(_reward_columns(batches, group_size, path), 1.0)
    unknown = [name for name in weights if name not in batches[0].columns]
    if unknown:
        have = ", ".join(batches[0].columns) or "none"
        raise ReplicationError(f"{path} has no column of numbers '{unknown[0]}'; there are: {have}.")
    totals = [_total(batch, weights) for batch in batches]
    if group_size is None:
        group_size = _infer_group_size(batches, totals, path, notes)
    else:
        _check_group_size(batches, group_size)
    if len(batches[0].columns) > 1:
        notes.append(
            f"Reward: {weighted_sum(weights)}; other columns of numbers are not rewards or were not asked for."
        )
    return _assemble(path, batches, np.concatenate(totals), group_size, skip_unscored, history, notes)


def _files(path: Path) -> tuple[list[Path], Path]:
    """The parquet files under `path`, and the run's directory, where its history may lie."""
    if path.is_file():
        return [path], path.parent.parent if path.parent.name == "completions" else path.parent
    for directory, run in ((path, path.parent if path.name == "completions" else path), (path / "completions", path)):
        files = sorted(directory.glob("completions_*.parquet"))
        if files:
            return files, run
    raise ReplicationError(
        f"{path} holds neither groups.jsonl nor completions_*.parquet (written by TRL with log_completions=True)."
    )


def _batches(files: list[Path]) -> list[_Batch]:
    """All files in order of their steps, divided wherever the step changes; prompts numbered over all of them."""
    tables = [_table(file) for file in files]
    first = tables[0]
    for file, table in zip(files, tables):
        if table.keys() != first.keys():
            raise ReplicationError(
                f"{file} has other columns than {files[0]}: they are not of one run; give a single file or directory."
            )
    joined = {name: [value for table in tables for value in table[name]] for name in first}
    steps = _numbers(joined["step"])
    if steps is None or not np.isfinite(steps).all():
        raise ReplicationError(f"{files[0]}: the column 'step' does not hold numbers.")
    prompts = first_appearance(joined["prompt"])
    names = list(joined)
    # TRL puts rewards and extra columns between these two; without an advantage, up to the end.
    last = names.index("advantage") if "advantage" in names else len(names)
    columns = {name: _numbers(joined[name]) for name in names[:last] if name not in NEEDED}
    columns = {name: values for name, values in columns.items() if values is not None}
    if not columns:
        raise ReplicationError(f"{files[0]} has no column of rewards between 'completion' and 'advantage'.")
    advantages = _numbers(joined["advantage"]) if "advantage" in joined else None
    order = np.argsort(steps, kind="stable")
    cuts = np.flatnonzero(np.diff(steps[order])) + 1
    return [
        _Batch(
            step=int(steps[rows[0]]),
            prompts=prompts[rows],
            completions=[joined["completion"][i] for i in rows],
            columns={name: values[rows] for name, values in columns.items()},
            advantages=None if advantages is None else advantages[rows],
        )
        for rows in np.split(order, cuts)
    ]


def _table(file: Path) -> dict[str, list[Any]]:
    table = read_table(file, ".parquet")
    missing = [name for name in NEEDED if name not in table.columns]
    if missing:
        raise ReplicationError(
            f"{file} is not a completions log of TRL: column {', '.join(missing)} is missing "
            f"(it has: {', '.join(table.columns) or 'none'})."
        )
    if table.empty:
        raise ReplicationError(f"{file} has no rows.")
    return {name: table[name].tolist() for name in table.columns}


def _numbers(values: list[Any]) -> np.ndarray | None:
    """A column as float64 with null as NaN, or None if it holds anything but numbers (decimals are numbers)."""
    if not all(value is None or isinstance(value, (int, float, Decimal)) for value in values):
        return None
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _training_batches(batches: list[_Batch], history: list[dict[str, Any]], notes: list[str]) -> list[_Batch]:
    """Each rollout of training once: without repeats, and without what an evaluation wrote."""
    evaluated = {entry["step"] for entry in history if any(str(key).startswith("eval_") for key in entry)}
    kept: list[_Batch] = []
    repeated = left_out = 0
    previous: _Batch | None = None
    from_evaluation = False
    for batch in batches:
        if previous is not None and batch.same_rows(previous):
            repeated += not from_evaluation
            left_out += from_evaluation
            continue
        previous, from_evaluation = batch, batch.step in evaluated
        if from_evaluation:
            left_out += 1
        else:
            kept.append(batch)
    if not kept:
        raise ReplicationError("Every logged step is one of an evaluation; there is no training group to diagnose.")
    if repeated:
        notes.append(
            f"{repeated} logged steps repeat the rows of the step before (one rollout, several updates): counted once."
        )
    between = np.diff([batch.step for batch in batches])
    if len(between) and between.min() > 1:
        notes.append(
            f"Logged every {between.min()} steps: rollouts in between are in no file (logging_steps=1 writes all)."
        )
    if left_out:
        notes.append(f"{left_out} logged steps left out: an evaluation wrote over them.")
    return kept


def _total(batch: _Batch, weights: dict[str, float]) -> np.ndarray:
    """Weighted sum of each row's rewards; NaN where no column has a number, as in TRL."""
    parts = np.stack([weight * batch.columns[name] for name, weight in weights.items()])
    return np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))


def _reward_columns(batches: list[_Batch], group_size: int | None, path: Path) -> list[str]:
    names = list(batches[0].columns)
    if len(names) == 1:
        return names
    sizes = [group_size] if group_size else _candidates(batches)
    for count in range(1, len(names) + 1):
        totals = [_total(batch, dict.fromkeys(names[:count], 1.0)) for batch in batches]
        if any(_explains(batches, totals, size) for size in sizes):
            return names[:count]
    raise ReplicationError(
        f"{path} has several columns of numbers ({', '.join(names)}), and no sum of the first ones explains the "
        "advantages. Say which are rewards, and their weights if any: --reward NAME=WEIGHT, once for each."
    )


def _candidates(batches: list[_Batch]) -> list[int]:
    """Group sizes that divide every run of equal prompts, from 2 up."""
    divisor = int(np.gcd.reduce(np.concatenate([_runs(batch.prompts) for batch in batches])))
    return [size for size in range(2, divisor + 1) if divisor % size == 0]


def _runs(prompts: np.ndarray) -> np.ndarray:
    """Lengths of runs of equal neighbors."""
    ends = np.append(np.flatnonzero(np.diff(prompts)) + 1, len(prompts))
    return np.diff(ends, prepend=0)


def _explains(batches: list[_Batch], totals: list[np.ndarray], size: int) -> bool:
    """Whether in blocks of `size` rows each advantage is a multiple, one per block, of reward minus mean reward."""
    for batch, total in zip(batches, totals):
        if batch.advantages is None or len(total) % size:
            return False
        rewards, advantages = total.reshape(-1, size), np.nan_to_num(batch.advantages).reshape(-1, size)
        known = ~np.isnan(rewards)
        count = np.maximum(known.sum(axis=1, keepdims=True), 1)
        centered = np.where(known, rewards - np.nansum(rewards, axis=1, keepdims=True) / count, 0.0)
        spread = (centered**2).sum(axis=1, keepdims=True)
        # Equal rewards leave rounding errors behind; they are silent, and so must their advantages be.
        silent = np.nan_to_num(np.ptp(rewards, axis=1, keepdims=True)) == 0
        slope = np.where(
            silent, 0.0, (centered * advantages).sum(axis=1, keepdims=True) / np.where(silent, 1.0, spread)
        )
        if np.any(slope < 0) or np.abs(advantages - slope * centered).max() > _CLOSE * np.abs(advantages).max():
            return False
    return True


def _infer_group_size(batches: list[_Batch], totals: list[np.ndarray], path: Path, notes: list[str]) -> int:
    candidates = _candidates(batches)
    if not candidates:
        raise ReplicationError(
            f"{path}: the group size cannot be inferred, because runs of equal prompts have no common length of 2 or "
            "more. Rows of an evaluation or of a changed file may be among them; give --group-size N if not."
        )
    fitting = [size for size in candidates if _explains(batches, totals, size)]
    if len(fitting) == 1:
        return fitting[0]
    runs = np.concatenate([_runs(batch.prompts) for batch in batches])
    if len(runs) > 1 and len(set(runs.tolist())) == 1 and (not fitting or int(runs[0]) in fitting):
        notes.append(
            f"Group size {runs[0]} inferred from runs of equal prompts alone, because the advantages leave it "
            "open; --group-size N sets another."
        )
        return int(runs[0])
    raise ReplicationError(
        f"{path}: the group size cannot be inferred; possible are {', '.join(map(str, fitting or candidates))}. "
        "Give --group-size N (num_generations of the run)."
    )


def _check_group_size(batches: list[_Batch], size: int) -> None:
    if size < 2:
        raise ReplicationError(f"--group-size is {size}; a group has at least 2 completions.")
    for batch in batches:
        if len(batch.prompts) % size:
            raise ReplicationError(
                f"Step {batch.step} has {len(batch.prompts)} rows, which do not divide into groups of {size}."
            )
        groups = batch.prompts.reshape(-1, size)
        mixed = np.flatnonzero((groups != groups[:, :1]).any(axis=1))
        if len(mixed):
            first = int(mixed[0]) * size + 1
            raise ReplicationError(
                f"Rows {first} to {first + size - 1} of step {batch.step} have different prompts: groups of {size} "
                "are not what this run used."
            )


def _assemble(
    path: Path,
    batches: list[_Batch],
    totals: np.ndarray,
    size: int,
    skip_unscored: bool,
    history: list[dict[str, Any]],
    notes: list[str],
) -> RunLog:
    rewards = totals.reshape(-1, size)
    kept = scored_groups(rewards, str(path), skip_unscored)
    if not kept.all():
        notes.append(f"{int((~kept).sum())} groups with unscored completions left out.")
    completions = [_text(completion) for batch in batches for completion in batch.completions]
    groups = [completions[start : start + size] for start in range(0, len(completions), size)]
    return RunLog(
        source=str(path),
        kind="TRL completions",
        steps=np.concatenate([np.full(len(b.prompts) // size, b.step) for b in batches])[kept],
        prompts=np.concatenate([batch.prompts for batch in batches])[::size][kept],
        rewards=rewards[kept],
        lengths=np.array([[len(text) for text in group] for group in groups], dtype=np.float64)[kept],
        length_unit="characters",
        distinct=np.array([len(set(group)) for group in groups])[kept],
        history=history,
        notes=notes,
    )


def _text(completion: Any) -> str:
    """A completion as text: of a conversation, what its messages say."""
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, list):
        return str(completion)
    return "\n".join(
        str(message.get("content") or "") if isinstance(message, dict) else str(message) for message in completion
    )
