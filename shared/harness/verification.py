"""What came of measuring some committed jobs again: kept as JSON beside the results, and told in one sentence."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.records import read_record
from grpo_replications.shared.words import counted, without_marks

VERIFICATION = "verification.json"
FORMAT = 1
IDENTICAL, ROUNDING, DIFFERENT = "identical", "within rounding", "different"
FAILED, STOPPED = "failed", "not finished"
COMPARED = (IDENTICAL, ROUNDING, DIFFERENT)
# What an experiment's record says of its measurements: where it has changed, they are others.
MEASURED = ("settings", "seeds", "seeds_per_cell", "commits", "machines", "job_seconds", "jobs_finished")


@dataclass(frozen=True)
class JobCheck:
    """One job: `outcome`, in how many of its values it differs, the largest relative difference and where that is.

    `relative` is None where nothing finite can be said: a value that is no number now, or was none, or a row that only
    one side has.  `note`: the error of a job that failed.  `seconds`: what it took now.
    """

    experiment: str
    settings: str
    seeds: str
    outcome: str
    values: int = 0
    differ: int = 0
    relative: float | None = 0.0
    largest: str = ""
    note: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """Experiment, settings and seeds."""
        seeds = f"seed{'s' if '-' in self.seeds else ''} {self.seeds}"
        where = ", ".join(part for part in (self.settings, seeds) if part)
        return f"{self.experiment} ({where})"


@dataclass(frozen=True)
class NotDrawn:
    """Jobs of an experiment that were not drawn, and why; `whole`: none of the experiment's jobs was."""

    experiment: str
    jobs: int
    reason: str
    whole: bool


@dataclass(frozen=True)
class Verification:
    """Jobs of one profile's results, drawn and measured again.

    `jobs`, `experiments`: how many the results have.  `measured`: experiment -> digest of what the record said of it.
    """

    paper: str
    profile: str
    commit: str | None
    uncommitted_changes: bool
    machine: str
    date: str
    seed: int
    number: int
    budget_minutes: float
    jobs: int
    experiments: int
    checks: tuple[JobCheck, ...]
    not_drawn: tuple[NotDrawn, ...]
    measured: dict[str, str]
    packages: dict[str, str]

    def of(self, outcome: str) -> list[JobCheck]:
        """The jobs with one outcome."""
        return [check for check in self.checks if check.outcome == outcome]

    @property
    def compared(self) -> int:
        """Jobs that were measured again and held against the committed ones."""
        return sum(check.outcome in COMPARED for check in self.checks)

    @property
    def agrees(self) -> bool:
        """Whether no job differs or failed."""
        return not self.of(DIFFERENT) and not self.of(FAILED)

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file or a program."""
        return {"format": FORMAT, **dataclasses.asdict(self)}


def measured_digests(record: Mapping[str, Any]) -> dict[str, str]:
    """Experiment -> digest of what its record says of its measurements."""
    return {
        name: hashlib.sha256(
            json.dumps({key: entry.get(key) for key in MEASURED}, sort_keys=True).encode()
        ).hexdigest()[:16]
        for name, entry in record.get("experiments", {}).items()
    }


def write_verification(directory: Path, verification: Verification) -> Path:
    """Keep it beside the results in `directory`; returns its path."""
    path = directory / VERIFICATION
    write_atomic(path, json.dumps(verification.as_json(), indent=1) + "\n")
    return path


def read_verification(directory: Path) -> Verification | None:
    """What `write_verification` has kept; None where there is nothing, or it is damaged or of another format."""
    try:
        content = json.loads((directory / VERIFICATION).read_text(encoding="utf-8"))
        if content.pop("format") != FORMAT:
            return None
        content["checks"] = tuple(JobCheck(**one) for one in content["checks"])
        content["not_drawn"] = tuple(NotDrawn(**one) for one in content["not_drawn"])
        return Verification(**content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def measured_again(directory: Path) -> str:
    """`Measured again: …`, the line for pages on the results in `directory`; empty where nothing is kept.

    Experiments whose measurements have been replaced since are named: the line does not speak of them.
    """
    kept = read_verification(directory)
    if kept is None:
        return ""
    record = read_record(directory)
    now = measured_digests(record)
    drawn = dict.fromkeys(check.experiment for check in kept.checks if check.outcome in COMPARED)
    replaced = [f"`{name}`" for name in drawn if now.get(name) != kept.measured.get(name)]
    text = f"Measured again: {_amount(kept)}, {_place(kept)} on {kept.date[:10]}: {outcomes(kept)}"
    if replaced:
        text += f"; since then measured anew, so that this says nothing of it: {', '.join(replaced)}"
    return f"{text}.{_where_committed(kept, record)}{_not_drawn(kept)}"


def sentence(verification: Verification) -> str:
    """What was measured again, where, and how it came out."""
    text = f"{_amount(verification)} measured again {_place(verification)}: {outcomes(verification)}."
    return text + _left_out(verification)


def outcomes(verification: Verification) -> str:
    """`18 identical, 2 within 1e-9, none different`; experiments that differ or failed are named."""
    parts = []
    rounded, different = verification.of(ROUNDING), verification.of(DIFFERENT)
    if verification.of(IDENTICAL):
        parts.append(f"{len(verification.of(IDENTICAL))} identical")
    if rounded:
        parts.append(f"{len(rounded)} within {power_of_ten(max(check.relative or 0.0 for check in rounded))}")
    parts.append(f"{len(different)} different: {_with_sizes(different)}" if different else "none different")
    if verification.of(FAILED):
        parts.append(f"{len(verification.of(FAILED))} failed ({_named(verification.of(FAILED))})")
    if verification.of(STOPPED):
        parts.append(f"{len(verification.of(STOPPED))} not finished in time ({_named(verification.of(STOPPED))})")
    return ", ".join(parts)


def power_of_ten(value: float) -> str:
    """The smallest power of ten that is no less: `1e-9`."""
    exponent = math.ceil(math.log10(value)) if value > 0 else 0
    return f"1e{exponent}"


def _amount(verification: Verification) -> str:
    return (
        f"{verification.compared} of {counted(verification.jobs, 'job')} of "
        f"{counted(verification.experiments, 'experiment')}"
    )


def _place(verification: Verification) -> str:
    changes = " with uncommitted changes" if verification.uncommitted_changes else ""
    commit = f"at commit {verification.commit[:12]}{changes}" if verification.commit else "from an unknown commit"
    return f"{commit} on {without_marks(verification.machine)}"


def _left_out(verification: Verification) -> str:
    """Experiments of which no job was drawn, each with the reason; then those left out in part."""
    whole = [one for one in verification.not_drawn if one.whole]
    partly = [one for one in verification.not_drawn if not one.whole]
    text = ""
    if whole:
        by_reason: dict[str, list[str]] = {}
        for one in whole:
            by_reason.setdefault(one.reason, []).append(f"`{one.experiment}`")
        number = len({one.experiment for one in whole})
        listed = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
        text += f" {counted(number, 'experiment')} {'was' if number == 1 else 'were'} left out: {listed}."
    if partly:
        listed = "; ".join(f"{counted(one.jobs, 'job')} of `{one.experiment}` ({one.reason})" for one in partly)
        text += f" Left out, too: {listed}."
    return text


def _not_drawn(verification: Verification) -> str:
    """The experiments of which no job was drawn, without the reasons, which the file has."""
    names = dict.fromkeys(f"`{one.experiment}`" for one in verification.not_drawn if one.whole)
    return f" Not drawn (`{VERIFICATION}` says why): {', '.join(names)}." if names else ""


def _named(checks: Sequence[JobCheck]) -> str:
    """Experiments by name, with the number of jobs where several."""
    numbers = Counter(check.experiment for check in checks)
    return ", ".join(f"`{name}`" + (f" {number}" if number > 1 else "") for name, number in numbers.items())


def _with_sizes(checks: Sequence[JobCheck]) -> str:
    """The same with the largest difference of each: `` `training` (2 jobs, relative difference up to 0.31)``."""
    parts = []
    for name in dict.fromkeys(check.experiment for check in checks):
        own = [check for check in checks if check.experiment == name]
        sizes = [check.relative for check in own if check.relative is not None]
        size = f"relative difference up to {max(sizes):.2g}" if len(sizes) == len(own) else "no finite difference"
        parts.append(f"`{name}` ({counted(len(own), 'job')}, {size})")
    return ", ".join(parts)


def _where_committed(kept: Verification, record: Mapping[str, Any]) -> str:
    """On which processors the jobs that differ were committed; empty where none does."""
    entries = record.get("experiments", {})
    names = dict.fromkeys(check.experiment for check in kept.of(DIFFERENT))
    machines = dict.fromkeys(machine for name in names for machine in entries.get(name, {}).get("machines", []))
    if not machines:
        return ""
    listed = without_marks(" and ".join(machines))
    return (
        f" What differs was committed on {listed}; another processor, also one of the same name, rounds otherwise, and "
        "training multiplies that."
    )
