"""Benchmarks by name, each with what decides that a completion is right: the five of mathematics, and puzzles.

`KK-3` to `KK-7` are the 100 public Knights & Knaves puzzles of each number of people that AR-Lopti evaluates on, read
strictly. Any other name is a file or a hub id of mathematics problems.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.grading.rewards import RewardFunction, accuracy_reward
from grpo_replications.shared.sources import local_table, pinned
from grpo_replications.shared.tables import FILE_TYPES
from grpo_replications.shared.tasks import knights_and_knaves
from grpo_replications.shared.tasks.math import SYSTEM_MESSAGE, benchmark, benchmark_source
from grpo_replications.shared.tasks.puzzles.public import public_files

PUZZLES = "K-and-K/knights-and-knaves"
PUZZLES_EACH = 100
_PUZZLE_NAME = re.compile(r"KK-([2-8])")


@dataclass(frozen=True)
class LoadedBenchmark:
    """Problems with their prompts, and the reward that pays 1.0 for a right completion."""

    problems: Dataset
    reward: RewardFunction


def people_of(name: str) -> int | None:
    """The number of people of a benchmark of puzzles; None for any other."""
    found = _PUZZLE_NAME.fullmatch(name)
    return int(found[1]) if found else None


def load_benchmarks(
    entries: Sequence[str],
    system_message: str = SYSTEM_MESSAGE,
    revisions: Mapping[str, str] | None = None,
    maths_reward: RewardFunction = accuracy_reward,
) -> dict[str, LoadedBenchmark]:
    """Benchmarks from entries `name` or `name=path-or-hub-id`; problems that cannot be graded are left out.

    `system_message` and `maths_reward` are for mathematics: puzzles have their own. Raises ReplicationError.
    """
    loaded = {}
    for name, source in map(benchmark_source, entries):
        if people_of(name) is not None:
            loaded[name] = LoadedBenchmark(puzzles(name, source, revisions), knights_and_knaves.strict_reward)
        else:
            problems = benchmark(name, source, None, "drop", system_message, revisions)
            loaded[name] = LoadedBenchmark(problems, maths_reward)
    return loaded


def puzzles(name: str, source: str | None = None, revisions: Mapping[str, str] | None = None) -> Dataset:
    """The puzzles of `KK-n` as the task's rows; `source`: a file of them, or the hub id or directory of the data set.

    Every gold solution is the only one that the statements allow, or ReplicationError is raised.
    """
    path, rows = puzzle_file(name, source, revisions)
    people = people_of(name)
    read = knights_and_knaves.read_puzzles(path)[rows]
    others = sorted({len(puzzle.names) for puzzle in read} - {people})
    if others or not read:
        raise ReplicationError(f"{path} does not hold puzzles of {people} people alone, which {name} asks for.")
    return knights_and_knaves.as_rows(read, knights_and_knaves.SYSTEM_MESSAGE)


def puzzle_file(name: str, source: str | None, revisions: Mapping[str, str] | None) -> tuple[Path, slice]:
    """The file of a benchmark of puzzles and its rows there."""
    people = people_of(name)
    if source is not None and Path(source).suffix in FILE_TYPES:
        return Path(source).expanduser(), slice(None)
    own = None if source else local_table(name, f"{people}ppl_test", f"people{people}_num100")
    if own is not None:
        return own, slice(None)
    home = source or pinned(PUZZLES, revisions or {})
    return next(public_files(home, "validation", [people]))
