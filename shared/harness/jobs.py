"""One job: one experiment, one combination of settings, one seed (or all seeds at once) -> one file on disk.

A job's file appears complete or not at all, under a name that its experiment, version, settings and seeds determine;
finding that file is what resuming means.  Everything here runs inside a worker process, which imports little.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import math
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_replications.shared import live
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.job_progress import ENDING as PROGRESS
from grpo_replications.shared.harness.job_progress import Stopwatch
from grpo_replications.shared.harness.memory import import_once, keep_freed_memory, release_freed_memory
from grpo_replications.shared.harness.paper_modules import import_from
from grpo_replications.shared.harness.seed_ranges import written_range
from grpo_replications.shared.harness.torch_state import prepare_torch
from grpo_replications.shared.saved_runs import FOLDER as CHECKPOINTS
from grpo_replications.shared.tracking import RunFacts, Tracking, tracked

if TYPE_CHECKING:
    from grpo_replications.shared.settings import Settings

Row = dict[str, Any]
"""`{"metric": str, "value": float}` and, where they apply, `"seed"`, `"step"` (int) and `"timing"` (bool)."""


def row(metric: str, value: float, step: int | None = None) -> Row:
    """One measured row."""
    measured: Row = {"metric": metric, "value": float(value)}
    if step is not None:
        measured["step"] = int(step)
    return measured


def seed_row(metric: str, value: float, seed: int, step: int | None = None) -> Row:
    """A row of one of several seeds that were measured at once; six decimals."""
    return {**row(metric, round(float(value), 6), step), "seed": int(seed)}


def seed_rows(columns: Mapping[str, Sequence[float]], seeds: Sequence[int], step: int | None = None) -> list[Row]:
    """A row for each metric and seed, from one column (S,) a metric."""
    return [
        seed_row(name, value, seed, step)
        for name, values in columns.items()
        for seed, value in zip(seeds, values, strict=True)
    ]


def deferred(package: str, module: str, name: str) -> Callable[[Any, Any, JobContext], list[Row]]:
    """The experiment `name` of `package.module`, imported at its first call: listing experiments loads no library."""

    def experiment(settings: Any, seeds: Any, context: JobContext) -> list[Row]:
        return getattr(import_once(f"{package}.{module}"), name)(settings, seeds, context)

    return experiment


FORMAT = 1
RUNNER_KEYS = ("threads",)  # of a cell: what the runner itself reads
_FULL = ("No space left on device", "os error 28", "Disk quota exceeded", "file write failed")  # safetensors, torch
COLUMNS = ("metric", "value", "seed", "step", "timing")


@dataclass(frozen=True)
class Experiment:
    """A function from settings and seed to measured rows, with what the runner must know about it.

    `function(settings, seed, context)` returns a list of `Row`; `settings` is an instance of the model of that name,
    made of a profile's cell.  With `seeds_at_once` there is one job per
    combination of settings: the function gets the `range` of all seeds in place of one seed; a row then carries its
    `"seed"`, or none if it sums up all of them.  Raise `version` when a change of the function should make finished
    jobs run again.
    """

    function: Callable[[Any, Any, JobContext], list[Row]]
    description: str
    settings: type[Settings]
    version: int = 1
    seeds_at_once: bool = False

    def parse(self, cell: dict[str, Any], where: str) -> Settings:
        """The typed settings of a profile's cell, without those that are the runner's; as `Settings.parse`."""
        return self.settings.parse({key: value for key, value in cell.items() if key not in RUNNER_KEYS}, where)


@dataclass
class JobContext:
    """What a running job may use besides its settings and seed: a progress bar and a directory of its own."""

    path: Path
    _watch: Stopwatch = field(default_factory=Stopwatch, repr=False)
    _training: dict[str, float] = field(default_factory=dict, repr=False)
    _written: dict[str, float] = field(default_factory=dict, repr=False)  # when last, by what was said

    @property
    def directory(self) -> Path:
        """This job's directory for logs and scratch files; made on first use and kept afterwards."""
        self.path.mkdir(parents=True, exist_ok=True)
        return self.path

    def progress(self, fraction: float) -> None:
        """Tell the parent process how much of this job is done, from 0 to 1; at most two small writes a second."""
        self._watch.note(fraction)
        self._write("fraction", 0.5)

    def training(self, said: Mapping[str, float]) -> None:
        """Take in what a training run of this job says (see `shared.live`); at most one small write a second."""
        self._training.update(said)
        self._write("training", 1.0)

    def _write(self, what: str, every: float) -> None:
        now = time.monotonic()
        if now - self._written.get(what, -math.inf) >= every:
            self._written[what] = now
            target = self.path.with_name(self.path.name + PROGRESS)
            write_atomic(target, self._watch.read(self._training).as_text(), durable=False)


@dataclass(frozen=True)
class Job:
    """The smallest piece of work that is stored: its key is a digest of all that may change its result."""

    experiment: str
    version: int
    settings: dict[str, Any]
    label: str  # the settings that vary, as the measurements name them
    seeds: range
    seeds_at_once: bool

    @property
    def key(self) -> str:
        """First 16 hex digits of the SHA-256 of experiment, version, settings (with threads) and seeds."""
        identity = {"experiment": self.experiment, "version": self.version, "settings": self.settings}
        identity["seeds"] = [self.seeds.start, self.seeds.stop]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def stem(self) -> str:
        """Name of this job's files, without their endings."""
        return f"{self.experiment}-{self.key}"

    def __str__(self) -> str:
        seeds = f"seeds {written_range(self.seeds)}" if self.seeds_at_once else f"seed {self.seeds.start}"
        return f"{self.experiment} ({self.label + ', ' if self.label else ''}{seeds})"


@dataclass(frozen=True)
class Origin:
    """Where a job's result comes from, stored with it."""

    commit: str | None
    dirty: bool
    fingerprint: str  # digest of the source files
    machine: str


@dataclass(frozen=True)
class Outcome:
    """What a worker reports: `done`, `failed` (others go on) or `stop` (nothing else would work either)."""

    status: str
    message: str = ""


def write_atomic(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Replace `path` by `content` (text as UTF-8) so that no reader, crash or kill ever meets half of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_job(path: Path, job: Job) -> dict[str, Any] | None:
    """The content of a finished job's file; None where there is no file; ValueError where it is not this job's."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    # A round trip through JSON, so that settings compare as they were stored.
    same = isinstance(content, dict) and (
        content.get("format") == FORMAT
        and content.get("experiment") == job.experiment
        and content.get("settings") == json.loads(json.dumps(job.settings))
        and content.get("seeds") == [job.seeds.start, job.seeds.stop]
    )
    if not same:
        raise ValueError("not the result of this job")
    rows = content["rows"]
    if len({len(rows[column]) for column in COLUMNS}) != 1:
        raise ValueError("columns of different lengths")
    return content


def check_rows(rows: Any, job: Job) -> dict[str, list[Any]]:
    """The rows a function returned, as columns; ValueError says which row breaks which rule."""
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{job.experiment} must return a list of at least one row, not {type(rows).__name__}")
    columns: dict[str, list[Any]] = {column: [] for column in COLUMNS}
    seen = set()
    for row in rows:
        unknown = set(row) - set(COLUMNS)
        if unknown or not {"metric", "value"} <= set(row) or not isinstance(row["metric"], str):
            raise ValueError(f"a row needs a text 'metric' and a 'value', and may have {COLUMNS[2:]}: {row}")
        if not job.seeds_at_once and row.get("seed", job.seeds.start) != job.seeds.start:
            raise ValueError(f"a row with seed {row['seed']} in the job of seed {job.seeds.start}")
        seed = row.get("seed") if job.seeds_at_once else job.seeds.start
        if seed is not None and seed not in job.seeds:
            raise ValueError(f"a row's 'seed' must be one of {job.seeds}: {row}")
        step = None if row.get("step") is None else int(row["step"])
        identity = (row["metric"], None if seed is None else int(seed), step, bool(row.get("timing", False)))
        if identity in seen:
            raise ValueError(f"two rows with the same metric, seed and step: {row}")
        seen.add(identity)
        for column, value in zip(COLUMNS, (identity[0], float(row["value"]), *identity[1:])):
            columns[column].append(value)
    return columns


def seed_everything(seed: int, threads: int) -> None:
    """Seed python's, numpy's and torch's global generators, and undo global torch settings of an earlier job."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    prepare_torch(seed, threads)


def run_job(
    job: Job, paper_directory: Path, jobs_directory: Path, origin: Origin, tracking: Tracking | None, parent: int | None
) -> Outcome:
    """Run one job in this process and store its result; never raises an ordinary exception.

    `tracking`: where its curves go besides, if anywhere.  `parent`: process id of the scheduler, after whose death this
    process ends at once; None on another machine.
    """
    if parent is not None:
        die_with_parent(parent)
    error_file = jobs_directory / f"{job.stem}.error.txt"
    try:
        jobs_directory.mkdir(parents=True, exist_ok=True)
        error_file.unlink(missing_ok=True)
        with _output_to(jobs_directory / f"{job.stem}.log"):
            content = _measure(job, paper_directory, jobs_directory, origin, tracking)
        write_atomic(jobs_directory / f"{job.stem}.json", json.dumps(content))
        for folder in [*(jobs_directory / job.stem).rglob(CHECKPOINTS)]:  # by which a killed job goes on
            shutil.rmtree(folder, ignore_errors=True)
        return Outcome("done")
    except ReplicationError as error:
        return Outcome("stop", str(error))
    except Exception as error:
        if disk_is_full(error):
            return Outcome("stop", _full(job, jobs_directory))
        file = error.filename if isinstance(error, OSError) else None
        if file and Path(str(file)).is_relative_to(jobs_directory):
            return Outcome("stop", f"Cannot write to {jobs_directory}: {error.strerror}.")
        return _failure(error_file, error)
    finally:
        release_freed_memory()
        (jobs_directory / f"{job.stem}{PROGRESS}").unlink(missing_ok=True)


def disk_is_full(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that a disk is full: what writes checkpoints raises many types."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(words in str(error) for words in _FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def _full(job: Job, jobs_directory: Path) -> str:
    free = shutil.disk_usage(jobs_directory).free / 1e9
    return (
        f"the disk is full: no space left on device for {jobs_directory} ({free:.1f} GB free), in the middle of {job}. "
        "Free some space (replicate estimate says what a profile takes), then run the same command: finished jobs are "
        "kept, and a job that saves checkpoints goes on from its last complete one."
    )


def die_with_parent(parent: int) -> None:
    """End this process as soon as its parent is gone, however the parent died; safe to call for every job."""
    if os.getppid() != parent:
        os._exit(1)
    if getattr(die_with_parent, "watching", None) == os.getpid():
        return
    die_with_parent.watching = os.getpid()  # type: ignore[attr-defined]
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent answers it

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _measure(
    job: Job, paper_directory: Path, jobs_directory: Path, origin: Origin, tracking: Tracking | None
) -> dict[str, Any]:
    experiment: Experiment = import_from(paper_directory, "experiments").EXPERIMENTS[job.experiment]
    context = JobContext(jobs_directory / job.stem)
    context.progress(0.0)
    keep_freed_memory()
    with tracked(tracking, run_facts(job, origin)) as run, live.heard_by(context.training):
        # After the backend has started, which may draw random numbers.
        seed_everything(job.seeds.start, job.settings["threads"])
        settings = experiment.parse(job.settings, str(job))
        start = time.perf_counter()
        rows = experiment.function(settings, job.seeds if job.seeds_at_once else job.seeds.start, context)
        seconds = time.perf_counter() - start
        columns = check_rows(rows, job)
        if run is not None:
            run.measured(columns)
    return {
        "format": FORMAT,
        "experiment": job.experiment,
        "version": job.version,
        "settings": job.settings,
        "seeds": [job.seeds.start, job.seeds.stop],
        "seconds": seconds,
        "peak_memory_bytes": _peak_memory(),
        **origin.__dict__,
        "rows": columns,
    }


def run_facts(job: Job, origin: Origin) -> RunFacts:
    """What a tracked run of a job is called: experiment, settings and seed; tags with seed, method and commit."""
    seeds = f"seeds-{written_range(job.seeds)}" if job.seeds_at_once else f"seed-{job.seeds.start}"
    method = job.settings.get("method")
    commit = (origin.commit or "no-commit")[:12] + ("+" if origin.dirty else "")
    tags = [job.experiment, seeds, *([f"method-{method}"] if method else []), f"commit-{commit}"]
    name = " ".join(part for part in (job.experiment, job.label.replace(";", " "), seeds) if part)
    return RunFacts(name, job.experiment, tuple(tags), job.settings)


def _peak_memory() -> int:
    """Largest resident size of this process so far; a worker that runs several jobs keeps the largest of them."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _failure(error_file: Path, error: Exception) -> Outcome:
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(OSError):
        write_atomic(error_file, text[-20_000:])
    return Outcome("failed", text.strip().splitlines()[-1])


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Send what this process prints, C libraries included, to `log`: a bar on the terminal stays whole."""
    saved = [os.dup(1), os.dup(2)]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        for number, copy in zip((1, 2), saved):
            os.dup2(copy, number)
            os.close(copy)
        os.close(descriptor)
        if log.stat().st_size == 0:
            log.unlink()
