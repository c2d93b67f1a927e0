r"""Competition mathematics with a boxed answer: training sets such as OpenRS, and the five benchmarks of the paper.

Every source is a hub id (optionally `id:config`, `id@commit`) or a local `.jsonl`, `.json`, `.parquet` or `.csv` file;
a hub id is looked for in one's own directory first (`shared.sources`). Column names are recognised. Nothing falls back
to other data, and no code from a data set is run.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.grading.completions import last_boxed
from grpo_replications.shared.grading.golds import unusable_golds
from grpo_replications.shared.grading.rewards import accuracy_reward
from grpo_replications.shared.sources import local_table, one_line, pinned, split_revision
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
    revisions: Mapping[str, str] | None = None,
) -> Dataset:
    """A benchmark by name (see BENCHMARKS), read from `source` (hub id or file) in place of its home.

    Its home is a file of its name in one's own directory, or the hub, there at the commit of `revisions`. One with
    another number of problems than the benchmark has is used as it is, with a warning.
    """
    problems, _ = gradable(name, source, split, revisions)
    known = BENCHMARKS.get(name)
    if known is not None and len(problems.rows) != known.problems:
        logger.warning("%s has %d problems here, %d were expected", name, len(problems.rows), known.problems)
    return problems.dataset(ungradable, system_message)


def benchmark_source(entry: str) -> tuple[str, str | None]:
    """Name and home of an entry `name=path-or-hub-id`; without a home, None."""
    name, _, source = entry.partition("=")
    return name, source or None


@dataclass(frozen=True)
class Problems:
    """Rows (problem, gold answer) of a source in its order, and by gold answer why those that are unusable are so."""

    source: str
    rows: list[tuple[str, str]]
    unusable: dict[str, str]

    def dataset(self, ungradable: str = "refuse", system_message: str = SYSTEM_MESSAGE) -> Dataset:
        """The problems as `problems_from` gives them."""
        if ungradable not in ("refuse", "drop"):
            raise ReplicationError(f'ungradable must be "refuse" or "drop", not {ungradable!r}.')
        for number, (_, gold) in enumerate(self.rows):
            if ungradable == "refuse" and gold in self.unusable:
                raise ReplicationError(
                    f"Row {number} of {self.source} cannot be graded: {self.unusable[gold]}. Repair the row, or set "
                    'ungradable = "drop" to leave such rows out.'
                )
        kept = [(problem, gold) for problem, gold in self.rows if gold not in self.unusable]
        dropped = len(self.rows) - len(kept)
        if dropped:
            logger.warning(
                "%s: %d of %d rows left out, their answers cannot be graded", self.source, dropped, len(self.rows)
            )
        if not kept:
            raise ReplicationError(f"{self.source} has no usable problem.")
        return Dataset.from_list(
            [
                {"prompt": build_prompt(problem, system_message), "solution": gold, "problem": problem}
                for problem, gold in kept
            ]
        )


def problems_from(
    source: str, split: str = "train", ungradable: str = "refuse", system_message: str = SYSTEM_MESSAGE
) -> Dataset:
    """Columns `prompt` (chat messages), `solution` (the gold answer) and `problem`, from a hub id or a local file.

    Every gold answer must grade itself as correct. `ungradable="refuse"` stops at the first that does not;
    `"drop"` leaves those rows out and logs how many, so that a benchmark with a few of them can still be measured.
    Raises ReplicationError. Answers that were never checked on this machine cost 5 to 200 ms each.
    """
    return read_problems(source, split).dataset(ungradable, system_message)


def read_problems(source: str, split: str = "train", names: tuple[str, ...] = ()) -> Problems:
    """Every row of a source with its problem and its gold answer, all golds checked; `names` as `read_rows`."""
    rows = [(_problem_text(row, source), _gold_answer(row, source)) for row in read_rows(source, split, names)]
    return Problems(source, rows, unusable_golds(gold for _, gold in rows))


def gradable(
    name: str, source: str | None = None, split: str | None = None, revisions: Mapping[str, str] | None = None
) -> tuple[Problems, str]:
    """The problems of a benchmark by its name, and the hub id or the file that they are read from."""
    known = BENCHMARKS.get(name)
    if known is None:
        home = source or name
        return read_problems(home, split or "train"), home
    home = source or pinned(known.hub, revisions or {})
    return read_problems(home, split or known.split, () if source else (name,)), home


def build_prompt(problem: str, system_message: str = SYSTEM_MESSAGE) -> list[dict[str, str]]:
    """Chat messages that pose a problem."""
    return [{"role": "system", "content": system_message}, {"role": "user", "content": problem}]


def read_rows(source: str, split: str, names: tuple[str, ...] = ()) -> Dataset | list[dict[str, Any]]:
    """Rows of a local file or a hub data set (`id` or `id:config`, with `@commit`); ReplicationError where unreadable.

    `names`: what else a file in one's own directory may be called.
    """
    own = local_file(source, names)
    if own is not None:
        return read_table(own).to_dict("records")
    identifier, revision = split_revision(source)
    name, _, config = identifier.partition(":")
    at = {} if revision is None else {"revision": revision}
    return _load(identifier, name, config or None, split=split, **at)


def local_file(source: str, names: tuple[str, ...] = ()) -> Path | None:
    """The file that `source` or one's own directory gives; None for what the hub has to give."""
    path = Path(source).expanduser()
    if path.suffix in FILE_TYPES:
        return path
    return local_table(split_revision(source)[0].partition(":")[0], *names)


def _load(source: str, *arguments: Any, **options: Any) -> Dataset:
    try:
        return load_dataset(*arguments, **options)
    except Exception as error:  # the library raises many types: offline, unknown, gated, unreadable, no such split
        raise ReplicationError(
            f"The data set {source} could not be read ({one_line(error)}). If it is on the hub: with a network, run "
            "the same command again; if it is gated, accept its terms on its page and log in with `hf auth login`; "
            "without a network, fetch it elsewhere with "
            f"`hf download --repo-type dataset {source.partition(':')[0]}` and give the path of its .jsonl or .parquet "
            "file in place of the hub id, or the directory of such files by --data-dir."
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
