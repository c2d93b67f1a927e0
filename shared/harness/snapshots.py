"""The results of one profile as they lie on disk, read for a comparison: without the paper's claims, which may differ.

A side of a comparison may come from another commit, so nothing here asks what claims and checks there are today: the
files say it themselves.  Columns that an older commit lacks are empty.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.measurements import MEASUREMENTS, TIMINGS, metrics_measured
from grpo_replications.shared.harness.outcomes import CELLS_FILE, CLAIMS_CSV, VERDICTS_FILE, read_csv
from grpo_replications.shared.harness.records import RECORD, read_record
from grpo_replications.shared.harness.verdicts import NOT_RUN, experiment_of

CRITERION = ("kind", "threshold", "margin", "paper_value", "criterion")  # columns that say what is asked
RANGE_KINDS = ("interval",)  # low and high are the central 95 % of possible means, not a confidence interval


@dataclass(frozen=True)
class Number:
    """One number of a check: `name` is `id[conditions]`; low and high are nan where there is no interval."""

    name: str
    check: str
    metric: str
    value: float
    low: float
    high: float
    n: int
    seeds: str
    state: str


@dataclass(frozen=True)
class JudgedCheck:
    """One line of `verdicts.csv` with its numbers by conditions."""

    id: str
    claim: str
    answers: str
    verdict: str
    unit: str
    experiment: str
    n: int
    reason: str
    criterion: dict[str, str]  # the columns of CRITERION
    numbers: dict[str, Number]
    timing: bool

    @property
    def run(self) -> bool:
        """Whether anything was measured for it."""
        return self.verdict != NOT_RUN

    @property
    def paper_value(self) -> float:
        """The number that the paper prints; nan where it prints none."""
        return _number(self.criterion["paper_value"])

    @property
    def is_range(self) -> bool:
        """Whether low and high are a range of possible means instead of a confidence interval."""
        return self.criterion["kind"] in RANGE_KINDS


@dataclass(frozen=True)
class Snapshot:
    """One side of a comparison: `side` names it; the rest is what one profile's files say."""

    side: str
    paper: str  # the directory's name
    profile: str
    directory: Path
    record: dict[str, Any]
    checks: dict[str, JudgedCheck]
    answers: dict[tuple[str, str], str]  # (claim, "published" or "here") -> verdict
    measured: frozenset[str]  # experiments with finished jobs

    @property
    def digest(self) -> str | None:
        """SHA-256 of the file of measurements; None where there is none."""
        path = self.directory / MEASUREMENTS
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def read_snapshot(directory: Path, side: str) -> Snapshot:
    """The results in `directory`, which is `.../<paper>/<profile>`; nothing is computed anew.

    Raises ReplicationError where a file is damaged, or the record is missing, without which nothing is comparable.
    """
    record = read_record(directory)
    if not record:
        raise _damaged(side, directory, RECORD, "run the profile again")
    timed = {(name, metric) for name, metrics in metrics_measured(directory / TIMINGS).items() for metric in metrics}
    numbers: dict[str, dict[str, Number]] = {}
    for line in _table(side, directory, CELLS_FILE):
        where = line["conditions"]
        numbers.setdefault(line["id"], {})[where] = Number(
            f"{line['id']}[{where}]" if where else line["id"],
            line["id"],
            line.get("metric", ""),
            *(_number(line.get(name, "")) for name in ("value", "low", "high")),
            n=int(line.get("n") or 0),
            seeds=line.get("seeds", ""),
            state=line.get("state", ""),
        )
    checks = {}
    for line in _table(side, directory, VERDICTS_FILE):
        own = numbers.get(line["id"], {})
        experiment = experiment_of(line["command"])
        criterion = {name: line.get(name, "") for name in CRITERION}
        criterion["paper_value"] = criterion["paper_value"] or line.get("value_paper", "")
        checks[line["id"]] = JudgedCheck(
            id=line["id"],
            claim=line.get("claim", ""),
            answers=line.get("answers", ""),
            verdict=line["verdict"],
            unit=line.get("unit", ""),
            experiment=experiment,
            n=int(line.get("n") or 0),
            reason=line["reason"],
            criterion=criterion,
            numbers=own,
            timing=any((experiment, one.metric) in timed for one in own.values()),
        )
    answers = {
        (line["id"], question): line[question]
        for line in _table(side, directory, CLAIMS_CSV)
        for question in ("published", "here")
        if line.get(question)
    }
    entries = record.get("experiments", {})
    measured = frozenset(name for name, entry in entries.items() if entry.get("jobs_finished"))
    paper, profile = directory.parent.name, directory.name
    return Snapshot(side, paper, profile, directory, record, checks, answers, measured)


def _table(side: str, directory: Path, name: str) -> list[dict[str, str]]:
    lines = read_csv(directory / name)
    if any(None in line.values() or None in line for line in lines):  # a line is cut short, or too long
        raise _damaged(side, directory, name, "write it again by: replicate verdicts")
    return lines


def _damaged(side: str, directory: Path, name: str, what_to_do: str) -> ReplicationError:
    path = f"{directory.parent.name}/{directory.name}/{name}"
    return ReplicationError(f"{path} of {side} is missing or damaged, so it cannot be compared; {what_to_do}.")


def _number(text: str) -> float:
    return float(text) if text else math.nan
