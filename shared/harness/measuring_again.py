"""Committed results -> some of their jobs measured again from the present source, each held against its rows.

Jobs are as a run's: stored under the digest of all that may change them, in a directory of their own for this source,
machine and these packages.  A verification that was killed is finished by the same command, and one that came to its
end leaves nothing there: the next one measures everything again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.assembly import now
from grpo_replications.shared.harness.jobs import Job, Origin, Outcome, read_job
from grpo_replications.shared.harness.measurements import MEASUREMENTS, read_rows, tidy, write_measurements
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.parts import sole_writer
from grpo_replications.shared.harness.provenance import (
    computes_in_16_bits,
    git_state,
    gpus,
    origin,
    package_versions,
    vector_instructions,
)
from grpo_replications.shared.harness.recorded_jobs import (
    Candidates,
    LeftOut,
    RecordedJob,
    candidates,
    draw,
    precision_of,
    recorded_profile,
)
from grpo_replications.shared.harness.records import RECORD, read_record
from grpo_replications.shared.harness.row_changes import matched
from grpo_replications.shared.harness.seed_ranges import written_range
from grpo_replications.shared.harness.verification import (
    DIFFERENT,
    FAILED,
    IDENTICAL,
    ROUNDING,
    STOPPED,
    JobCheck,
    NotDrawn,
    Verification,
    measured_digests,
)
from grpo_replications.shared.harness.workers import run_jobs, stop_workers

ROUNDED = 1e-6  # largest relative difference that counts as rounding
OVERRUN, STARTING = 3.0, 60.0  # when jobs are stopped: times the budget, and seconds in which processes start
SMALL, SMALL_IN_64_BITS = 0.1, 1e-6
"""Values below are held against this size: what is left over of an identity, a sum of numbers near 1, differs in every
digit.  So what 32 bits leave may be 1e-7 apart, about as they round; in jobs that say `float64` it is 1e-12."""


@dataclass(frozen=True)
class Request:
    """How many jobs to draw, from which seed, of which experiments; `budget_minutes`: by the record, in all."""

    number: int = 20
    seed: int = 0
    budget_minutes: float = 10.0
    only: str | None = None
    workers: int = 1

    @property
    def limit(self) -> float:
        """Seconds of processor time after which jobs are stopped: this machine may be slower than the record's."""
        return OVERRUN * 60 * self.budget_minutes + STARTING

    def check(self) -> None:
        """Refuse what draws nothing."""
        for name, value in (("--jobs", self.number), ("--budget", self.budget_minutes), ("--workers", self.workers)):
            if not value > 0:
                raise ReplicationError(f"{name} must be more than 0, not {value:g}.")


@dataclass(frozen=True)
class Drawing:
    """What is to be measured again of the results in `directory`, and all that is needed for it."""

    paper: Paper
    profile: str
    directory: Path
    record: dict[str, Any]
    rows: pd.DataFrame
    found: Candidates
    drawn: tuple[RecordedJob, ...]
    not_drawn: tuple[LeftOut, ...]
    request: Request

    @property
    def seconds(self) -> float:
        """What the drawn jobs took by the record."""
        return sum(one.seconds for one in self.drawn)


def draw_from(paper: Paper, profile: str, results: Path, request: Request) -> Drawing:
    """Draw jobs of the results of one profile below `results`; ReplicationError where there is nothing to draw from."""
    request.check()
    wanted = paper.profile(profile)
    directory = results / paper.name / profile
    record = read_record(directory)
    if not record:
        raise ReplicationError(
            f"{directory} has no results ({RECORD} is missing or damaged), so there is nothing to measure again."
        )
    if wanted.requires == "gpu" and not gpus():
        raise ReplicationError(f"Profile '{profile}' needs a GPU and torch finds none here.")
    recorded = recorded_profile(paper, profile, record).with_overrides(request.only)
    rows = read_rows(directory / MEASUREMENTS)
    found = candidates(paper, recorded, record, rows, slow=not computes_in_16_bits() and request.only is None)
    drawn, without = draw(found.drawable, request.number, 60 * request.budget_minutes, request.seed)
    return Drawing(paper, profile, directory, record, rows, found, tuple(drawn), (*found.left_out, *without), request)


def measure_again(drawing: Drawing, scratch: Path, root: Path, say: Callable[[JobCheck], None]) -> Verification:
    """Measure the drawn jobs in `scratch` and hold them against the committed rows; `say` is called for each.

    After three times the budget of processor time, and a minute in which processes start, what is unfinished is stopped
    and told as such, and what is finished is kept for the same command.  A job that fails does not stop the others; one
    that raises `ReplicationError` does.
    """
    git = git_state(root, drawing.paper.directory)
    source = origin(root, drawing.paper.directory, git)
    packages = package_versions()
    place = scratch / f"{drawing.paper.name}-{drawing.profile}-{_digest(source, packages)}"
    place.mkdir(parents=True, exist_ok=True)
    checks: list[JobCheck] = []
    with sole_writer(place / "jobs", None, lambda text: None):
        for job, outcome in _measured(drawing, place / "jobs", source):
            checks.append(_checked(drawing, job, outcome, place / "jobs"))
            say(checks[-1])
    if not any(check.outcome in (STOPPED, FAILED) for check in checks):
        shutil.rmtree(place, ignore_errors=True)
    experiments = {one.job.experiment for one in drawing.drawn}
    record_of = measured_digests(drawing.record)
    return Verification(
        paper=drawing.paper.slug,
        profile=drawing.profile,
        commit=git.commit,
        uncommitted_changes=git.dirty,
        machine=", ".join((_processor(source), *gpus())),
        date=now(),
        seed=drawing.request.seed,
        number=drawing.request.number,
        budget_minutes=drawing.request.budget_minutes,
        jobs=drawing.found.jobs,
        experiments=drawing.found.experiments,
        checks=tuple(checks),
        not_drawn=tuple(
            NotDrawn(one.experiment, one.jobs, one.reason, one.experiment not in experiments)
            for one in drawing.not_drawn
        ),
        measured={name: record_of[name] for name in sorted(experiments)},
        packages=packages,
    )


def held_against(
    job: Job, committed: pd.DataFrame, again: pd.DataFrame, seconds: float, small: float = SMALL
) -> JobCheck:
    """One job's rows in the committed results and those measured now, both as `read_rows` gives them.

    `small`: the size that smaller values are held against.
    """
    rows = matched(committed, again, floor=small)
    lone = rows["side"] != "both"
    off = rows[lone | (rows["relative"] > 0)]
    check = JobCheck(job.experiment, job.label, written_range(job.seeds), IDENTICAL, len(rows), len(off), 0.0)
    check = replace(check, seconds=round(seconds, 1))
    if off.empty:
        return check
    furthest = off.loc[off["relative"].fillna(math.inf).idxmax()]
    relative = float(rows["relative"].max()) if not lone.any() else math.inf
    return replace(
        check,
        outcome=ROUNDING if relative <= ROUNDED else DIFFERENT,
        relative=relative if math.isfinite(relative) else None,
        largest=_row_in_words(furthest, small),
    )


def _measured(drawing: Drawing, jobs_directory: Path, source: Origin) -> Iterator[tuple[Job, Outcome]]:
    """Every drawn job with its outcome: those that an earlier call has finished, then the others as they end."""
    used = _ProcessorTime()
    kept = [one.job for one in drawing.drawn if _is_kept(jobs_directory, one.job)]
    yield from ((job, Outcome("done")) for job in kept)
    waiting = [one.job for one in drawing.drawn if one.job not in kept]

    def tick(_: list[Job]) -> None:
        if used.seconds() > drawing.request.limit:
            raise _Spent

    try:
        # Workers know their number of threads from their start, so jobs of another number are another batch.
        for _, group in groupby(list(waiting), key=lambda job: (job.experiment, job.settings["threads"])):
            tick([])
            batch = list(group)
            for job, outcome in run_jobs(
                batch, drawing.paper.directory, jobs_directory, source, None, drawing.request.workers, tick
            ):
                if outcome.status == "stop":
                    raise ReplicationError(f"{job.experiment}: {outcome.message}")
                waiting.remove(job)
                yield job, outcome
    except _Spent:
        stop_workers()
        yield from ((job, Outcome(STOPPED)) for job in waiting)
    except BaseException:
        stop_workers()
        raise


class _ProcessorTime:
    """Processor time of the processes that this one has started, those that have ended since included."""

    def __init__(self) -> None:
        self.before = self._now()
        self.since: dict[tuple[int, float], float] = {}

    def seconds(self) -> float:
        """Since this object was made, as of the last call for a process that has ended."""
        for process, total in self._now().items():
            self.since[process] = total - self.before.get(process, 0.0)
        return sum(self.since.values())

    def _now(self) -> dict[tuple[int, float], float]:
        import psutil

        found = {}
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has just ended
                times = child.cpu_times()
                found[child.pid, child.create_time()] = times.user + times.system
        return found


class _Spent(Exception):
    """The limit of time is reached."""


def _checked(drawing: Drawing, job: Job, outcome: Outcome, jobs_directory: Path) -> JobCheck:
    if outcome.status != "done":
        status = STOPPED if outcome.status == STOPPED else FAILED
        note = f"{outcome.message}; {jobs_directory / job.stem}.error.txt" if status == FAILED else ""
        return JobCheck(job.experiment, job.label, written_range(job.seeds), status, note=note)
    content = read_job(jobs_directory / f"{job.stem}.json", job)
    again = jobs_directory / f"{job.stem}.csv.bz2"
    write_measurements(tidy([(job, content)])[0], again)  # the same text, digits included, as committed ones have
    rows = drawing.rows
    committed = rows[(rows["experiment"] == job.experiment) & (rows["settings"] == job.label)]
    if not job.seeds_at_once:
        committed = committed[committed["seed"] == job.seeds.start]
    precision = precision_of(job, drawing.record["experiments"][job.experiment])
    small = SMALL_IN_64_BITS if precision == "float64" else SMALL
    check = held_against(job, committed, read_rows(again), content["seconds"], small)
    return replace(check, note=_circumstances(drawing, job)) if check.outcome == DIFFERENT else check


def _circumstances(drawing: Drawing, job: Job) -> str:
    """What else is not as it was: processors, commits and defaults of settings, from the record."""
    entry: Mapping[str, Any] = drawing.record["experiments"][job.experiment]
    commits = ", ".join(commit.rstrip("+")[:12] for commit in entry["commits"])
    text = f"committed from {commits or 'an unknown commit'} on {' and '.join(entry['machines'])}"
    present = json.loads(json.dumps(drawing.paper.experiment(job.experiment).settings.defaults()))
    changed = [
        f"{name} {before} → {present[name]}"
        for name, before in entry.get("defaults", {}).items()
        if name in present and present[name] != before and name not in job.settings
    ]
    return text + (f"; defaults that have changed: {', '.join(changed)}" if changed else "")


def _row_in_words(row: pd.Series, small: float) -> str:
    """`reward, seed 3, step 20: committed 0.5, here 0.25`."""
    where = [row["metric"], *(f"{key} {int(row[key])}" for key in ("seed", "step") if not pd.isna(row[key]))]
    sides = {"left_only": "only among the committed", "right_only": "only here"}
    values = sides.get(row["side"], f"committed {row['value_a']:.9g}, here {row['value_b']:.9g}")
    if max(abs(row["value_a"]), abs(row["value_b"])) < small:
        values += f" (held against {small:g})"
    return f"{', '.join(where)}: {values}"


def _is_kept(jobs_directory: Path, job: Job) -> bool:
    path = jobs_directory / f"{job.stem}.json"
    try:
        return read_job(path, job) is not None
    except (ValueError, KeyError, TypeError):
        path.unlink()
        return False


def _processor(source: Origin) -> str:
    """The processor with what decides its rounding: `AMD EPYC (AVX2)`."""
    instructions = vector_instructions()
    return f"{source.machine} ({instructions})" if instructions else source.machine


def _digest(source: Origin, packages: Mapping[str, str]) -> str:
    """Names the directory of jobs of this source, on this machine, with these packages."""
    state: Sequence[Any] = (source.fingerprint, _processor(source), dict(packages))
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]
