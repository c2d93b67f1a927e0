"""The runs of a profile as their files tell: what is running, done, failed and waiting, read by any other process."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_replications.shared.harness.job_progress import ENDING, JobProgress, read_progress
from grpo_replications.shared.harness.records import read_record
from grpo_replications.shared.harness.run_file import ALIVE, FAILED, FINISHED, RUN, RUNNING, process_started
from grpo_replications.shared.saved_runs import saved_step

DONE, WAITING = "done", "waiting"
KILLED = "killed"  # its files say that it runs, and no process of it does
FACTS = ("part", "only", "seeds", "command", "executor", "started", "host", "process")
LOGS = (".error.txt", ".log")  # of a job: its traceback, and what it printed
SILENT_SECONDS = 60.0  # without a sign of life from another machine, a run there counts as killed


@dataclass(frozen=True)
class JobStatus:
    """One job: `state` is done, failed, running or waiting; `progress` of a running job, or of one that was killed.

    `saved`: the optimizer step of its newest checkpoint, from which it would go on. `files`: where its error and what
    it printed are, unless it is done.
    """

    name: str
    state: str
    progress: JobProgress | None = None
    message: str = ""
    saved: int | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunStatus:
    """One run, or one part of one.

    `state`: running, finished, failed (some jobs), interrupted, stopped (by the error in `message`) or killed.
    `remaining`: seconds of the whole run, None where nobody knows; `silent`: seconds since its last sign of life.
    """

    paper: str
    profile: str
    part: str | None
    only: str | None
    seeds: int | str | None
    state: str
    message: str
    command: str
    executor: str
    started: str
    host: str
    process: int
    here: bool
    silent: float
    remaining: float | None
    jobs: tuple[JobStatus, ...]

    @property
    def running(self) -> bool:
        """Whether a process of the run is alive, as far as can be told from here."""
        return self.state == RUNNING

    @property
    def unfinished(self) -> bool:
        """Whether measurements of its jobs have not been written: it runs, or ended before its end."""
        return self.state not in (FINISHED, FAILED)

    def count(self, state: str) -> int:
        """Number of jobs in a state."""
        return sum(job.state == state for job in self.jobs)

    def of(self, state: str) -> list[JobStatus]:
        """Jobs in a state."""
        return [job for job in self.jobs if job.state == state]


@dataclass(frozen=True)
class RecordStatus:
    """What a profile's record counts: jobs finished of all, when, and whether that is the whole profile."""

    paper: str
    profile: str
    done: int
    jobs: int
    finished: str
    complete: bool


def read_runs(directory: Path) -> list[RunStatus]:
    """The runs that left their files in `directory`, which is `.../<paper>/<profile>`; the parts of one in order."""
    files = [path for path in (directory / "jobs").glob(f"{RUN}*") if not path.suffix]  # none that is being written
    files.sort(key=lambda path: [int(number) for number in path.name.split("-")[1::2]])
    return [run for run in map(_read_run, files) if run is not None]


def read_records(results: Path) -> Iterator[tuple[Path, RecordStatus | None]]:
    """Every directory of a profile below `results` that holds a record or a run, with what its record counts."""
    found = {path.parent for path in results.glob("*/*/record.json")}
    found |= {path.parents[1] for path in results.glob(f"*/*/jobs/{RUN}*")}
    for directory in sorted(found):
        record = read_record(directory)
        entries = record.get("experiments", {}).values()
        yield (
            directory,
            RecordStatus(
                directory.parent.name.replace("_", "-"),
                directory.name,
                sum(entry.get("jobs_finished", 0) for entry in entries),
                sum(entry.get("jobs", 0) for entry in entries),
                record.get("finished", ""),
                bool(record.get("complete")),
            )
            if record
            else None,
        )


def _read_run(path: Path) -> RunStatus | None:
    """A run from its file; None where it has vanished or belongs to another version of the suite."""
    alive = path.with_name(path.name.replace(RUN, ALIVE, 1))
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        said = json.loads(alive.read_text(encoding="utf-8"))
        silent = max(time.time() - alive.stat().st_mtime, 0.0)
        here = facts["host"] == socket.gethostname()
        state = said["state"]
        if state == RUNNING and not _is_alive(facts, here, silent):
            state = KILLED
        jobs = tuple(_job(path.parent, stem, name, state, said) for stem, name in facts["jobs"])
        return RunStatus(
            paper=path.parents[2].name.replace("_", "-"),
            profile=path.parents[1].name,
            state=state,
            message=said.get("message", ""),
            here=here,
            silent=round(silent, 1),
            remaining=max(said["remaining"] - silent, 0.0) if state == RUNNING and "remaining" in said else None,
            jobs=jobs,
            **{
                name: facts[name]
                for name in ("part", "only", "seeds", "command", "executor", "started", "host", "process")
            },
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_alive(facts: dict[str, Any], here: bool, silent: float) -> bool:
    if here:
        return process_started(facts["process"]) == facts["process_started"]
    return silent < SILENT_SECONDS


def _job(directory: Path, stem: str, name: str, state: str, said: dict[str, Any]) -> JobStatus:
    if (directory / f"{stem}.json").exists():
        return JobStatus(name, DONE)
    own: dict[str, Any] = {"saved": saved_step(directory / stem)}
    logs = (directory / f"{stem}{ending}" for ending in LOGS)
    own["files"] = tuple(str(path) for path in logs if path.exists())
    if stem in said["failed"]:
        return JobStatus(name, FAILED, message=said["failed"][stem], **own)
    path = directory / f"{stem}{ENDING}"
    progress = read_progress(path)
    if state == RUNNING and progress is not None:
        with contextlib.suppress(OSError):  # it has just ended
            progress = progress.after(max(time.time() - path.stat().st_mtime, 0.0))
        return JobStatus(name, RUNNING, progress, **own)
    return JobStatus(name, WAITING, progress, **own)
