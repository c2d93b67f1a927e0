r"""Competition mathematics with a boxed answer: training sets such as OpenRS, and the five benchmarks of the paper.

Every source is a hub id (optionally `id:config`) or a local `.jsonl`, `.json`, `.parquet` or `.csv` file;
column names are recognised. Nothing falls back to other data, and no code from a data set is run.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.grading.completions import last_boxed
from grpo_replications.shared.grading.rewards import UngradableGoldError, accuracy_reward, check_gold
from grpo_replications.shared.tables import FILE_TYPES, read_table
from grpo_replications.shared.tasks import Task

logger = logging.getLogger(__name__)

SYSTEM_MESSAGE = (
    "You solve mathematics problems. Think through the problem one step at a time and explain each step. "
    r"When you are done, write the final answer once inside \boxed{}."
)

HELD_OUT = "held-out"
"""As `validation`: problems of the training set that are kept apart, the same ones for every seed."""

_PROBLEM_COLUMNS = ("problem", "question", "Problem", "Question", "prompt")
_ANSWER_COLUMNS = ("answer", "final_answer", "expected_answer", "Answer")
_SOLUTION_COLUMNS = ("solution", "Solution")  # a worked solution: its last box is the answer


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark is found on the hub and how many problems it has."""

    hub: str
    split: str
    problems: int


BENCHMARKS = {
    "AIME24": Benchmark("HuggingFaceH4/aime_2024", "train", 30),
    "MATH-500": Benchmark("HuggingFaceH4/MATH-500", "test", 500),
    "AMC23": Benchmark("knoveleng/AMC-23", "train", 40),
    "Minerva": Benchmark("knoveleng/Minerva-Math", "train", 272),
    "OlympiadBench": Benchmark("knoveleng/OlympiadBench", "train", 675),
}


def load(
    dataset: str = "knoveleng/open-rs",
    split: str = "train",
    validation: str = "AMC23",
    validation_split: str | None = None,
    train_size: int | None = None,
    validation_size: int | None = None,
    ungradable: str = "refuse",
    system_message: str = SYSTEM_MESSAGE,
    seed: int = 0,
) -> Task:
    """Training problems from `dataset`, validation problems from a benchmark's name, a hub id or a file.

    With `validation = "held-out"`, `validation_size` problems of `dataset` are kept apart for it. `train_size` and
    `validation_size` keep the first so many rows; `seed` shuffles the training rows. `ungradable`: see `problems_from`.
    Raises ReplicationError when a source cannot be reached or read, or holds too few problems.
    """
    problems = problems_from(dataset, split, ungradable, system_message)
    if validation == HELD_OUT:
        if validation_size is None or not 0 < validation_size < len(problems):
            raise ReplicationError(
                f'validation = "{HELD_OUT}" needs validation_size, from 1 to {len(problems) - 1} problems of {dataset}.'
            )
        parts = problems.train_test_split(test_size=validation_size, seed=0)
        problems, held_out = parts["train"], parts["test"]
    else:
        held_out = benchmark(validation, None, validation_split, ungradable, system_message)
    train = problems.shuffle(seed=seed)
    return Task(
        name="math",
        train=_first(train, train_size),
        validation=_first(held_out, validation_size),
        rewards=[accuracy_reward],
        build_prompt=lambda problem: build_prompt(problem, system_message),
        settings={"dataset": dataset, "split": split, "validation": validation, "ungradable": ungradable, "seed": seed},
    )


def benchmark(
    name: str,
    source: str | None = None,
    split: str | None = None,
    ungradable: str = "refuse",
    system_message: str = SYSTEM_MESSAGE,
) -> Dataset:
    """A benchmark by name (see BENCHMARKS), read from `source` (hub id or file) in place of its home on the hub.

    A file with another number of problems than the benchmark has is used as it is, with a warning.
    """
    known = BENCHMARKS.get(name)
    if known is None:
        return problems_from(source or name, split or "train", ungradable, system_message)
    problems = problems_from(source or known.hub, split or known.split, ungradable, system_message)
    if len(problems) != known.problems:
        logger.warning("%s has %d problems here, %d were expected", name, len(problems), known.problems)
    return problems


def benchmarks_from(entries: Sequence[str], system_message: str = SYSTEM_MESSAGE) -> dict[str, Dataset]:
    """Benchmarks by name, from entries `name` or `name=path-or-hub-id`; problems that cannot be graded are left out."""
    return {
        name: benchmark(name, source, ungradable="drop", system_message=system_message)
        for name, source in map(benchmark_source, entries)
    }


def benchmark_source(entry: str) -> tuple[str, str | None]:
    """Name and home of an entry `name=path-or-hub-id`; without a home, None."""
    name, _, source = entry.partition("=")
    return name, source or None


def problems_from(
    source: str, split: str = "train", ungradable: str = "refuse", system_message: str = SYSTEM_MESSAGE
) -> Dataset:
    """Columns `prompt` (chat messages), `solution` (the gold answer) and `problem`, from a hub id or a local file.

    Every gold answer must grade itself as correct. `ungradable="refuse"` stops at the first that does not;
    `"drop"` leaves those rows out and logs how many, so that a benchmark with a few of them can still be measured.
    Raises ReplicationError; costs a few milliseconds of checking for each row.
    """
    if ungradable not in ("refuse", "drop"):
        raise ReplicationError(f'ungradable must be "refuse" or "drop", not {ungradable!r}.')
    rows, dropped = [], 0
    for number, record in enumerate(read_rows(source, split)):
        problem, gold = _problem_text(record, source), _gold_answer(record, source)
        try:
            check_gold(gold)
        except UngradableGoldError as error:
            if ungradable == "refuse":
                raise ReplicationError(
                    f"Row {number} of {source} cannot be graded: {error}. Repair the row, or set "
                    'ungradable = "drop" to leave such rows out.'
                ) from error
            dropped += 1
            continue
        rows.append({"prompt": build_prompt(problem, system_message), "solution": gold, "problem": problem})
    if dropped:
        logger.warning(
            "%s: %d of %d rows left out, their answers cannot be graded", source, dropped, dropped + len(rows)
        )
    if not rows:
        raise ReplicationError(f"{source} (split {split}) has no usable problem.")
    return Dataset.from_list(rows)


def build_prompt(problem: str, system_message: str = SYSTEM_MESSAGE) -> list[dict[str, str]]:
    """Chat messages that pose a problem."""
    return [{"role": "system", "content": system_message}, {"role": "user", "content": problem}]


def read_rows(source: str, split: str) -> Dataset | list[dict[str, Any]]:
    """Rows of a local file or a hub data set (`id` or `id:config`); ReplicationError where they cannot be read."""
    path = Path(source).expanduser()
    if path.suffix in FILE_TYPES:
        return read_table(path).to_dict("records")
    name, _, config = source.partition(":")
    return _load(source, name, config or None, split=split)


def _load(source: str, *arguments: Any, **options: Any) -> Dataset:
    try:
        return load_dataset(*arguments, **options)
    except Exception as error:  # the library raises many types: offline, unknown, gated, unreadable, no such split
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ReplicationError(
            f"The data set {source} could not be read ({reason}). If it is on the hub: with a network, run the same "
            "command again; if it is gated, log in with `hf auth login`; without a network, fetch it elsewhere with "
            f"`hf download --repo-type dataset {source.partition(':')[0]}` and give the path of its .jsonl or .parquet "
            "file in place of the hub id."
        ) from error


def _problem_text(record: dict[str, Any], source: str) -> str:
    for column in _PROBLEM_COLUMNS:
        value = record.get(column)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, list) and value and isinstance(value[-1], dict):  # chat messages: the question is the last
            return str(value[-1]["content"]).strip()
    raise ReplicationError(f"{source} has none of the problem columns {', '.join(_PROBLEM_COLUMNS)}: {sorted(record)}.")


def _gold_answer(record: dict[str, Any], source: str) -> str:
    """The gold answer as a string: an answer column, else the last box of a worked solution."""
    for column in _ANSWER_COLUMNS:
        if record.get(column) not in (None, "", []):
            return _as_text(record[column])
    for column in _SOLUTION_COLUMNS:
        boxed = last_boxed(str(record.get(column) or ""))
        if boxed is not None:
            return boxed.strip()
    raise ReplicationError(
        f"{source} has a row without an answer: none of {', '.join(_ANSWER_COLUMNS)}, and no box in a worked solution."
    )


def _as_text(value: Any) -> str:
    """A gold answer from a column: lists are joined, 27.0 is 27, '$x$' is x."""
    if isinstance(value, str) and value.startswith("['") and value.endswith("']"):
        value = ast.literal_eval(value)
    if isinstance(value, list):
        return ", ".join(_as_text(item) for item in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _first(dataset: Dataset, size: int | None) -> Dataset:
    return dataset if size is None else dataset.select(range(min(size, len(dataset))))
