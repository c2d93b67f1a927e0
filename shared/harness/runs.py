"""Experiments x settings x seeds -> measurements on disk: parallel, resumable, atomic, with their origin.

Killing a run at any moment and repeating the command finishes it without redoing a finished job, and gives the same
`measurements.csv.bz2` as an undisturbed run.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.assembly import Making, assemble, jobs_of, now, write_patch
from grpo_replications.shared.harness.criteria import keep_criteria
from grpo_replications.shared.harness.executors import Place, executor
from grpo_replications.shared.harness.jobs import Experiment, Job, JobContext, Origin, Row, read_job, write_atomic
from grpo_replications.shared.harness.paper_checks import definition_problems
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.parts import Part, sole_writer
from grpo_replications.shared.harness.profiles import Profile
from grpo_replications.shared.harness.progress import Forecast, RunProgress, duration
from grpo_replications.shared.harness.provenance import git_state, gpus, origin
from grpo_replications.shared.harness.records import read_record
from grpo_replications.shared.harness.run_file import RunFile
from grpo_replications.shared.harness.workers import inside_jobs, progress_file
from grpo_replications.shared.tracking import DIRECTORY as TRACKED
from grpo_replications.shared.tracking import Tracking, check_backend, where_it_goes

__all__ = ["Experiment", "JobContext", "Options", "Result", "Row", "jobs_of", "run_profile"]

# No space, over quota, read-only, not permitted, or something else of that name in the way.
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST}


@dataclass(frozen=True)
class Options:
    """What the command line may change about a profile, and how it is run."""

    only: str | None = None
    seeds: int | str | None = None
    workers: int | None = None
    fresh: bool = False
    executor: str = "local"
    address: str | None = None  # of a Ray cluster
    part: Part | None = None  # of the jobs: nothing but this share of them is run, and nothing is written of the whole
    command: str = ""  # as typed, for the record
    track: str = "none"  # what follows the curves of running jobs, a name of `shared.tracking.BACKENDS`
    timed_by: Path | None = None  # results of the same profile elsewhere, whose record says how long it takes


@dataclass
class Result:
    """How a run ended: where its files are, how many jobs it had, and every failed job with its error."""

    directory: Path
    jobs: int = 0
    failures: list[tuple[Job, str]] = field(default_factory=list)


def run_profile(paper: Paper, name: str, results: Path, root: Path, console: Console, options: Options) -> Result:
    """Run what is missing of a profile, then write its measurements, timings and record under `results`.

    With `options.part` its share of the jobs is run and nothing else written: a run of the whole does that afterwards.
    `root` is the checkout whose commit and source go into the record.  First the whole paper is checked, every profile
    of it.  A job that fails does not stop the others; a job that raises `ReplicationError` does.  Ctrl-C raises
    KeyboardInterrupt after the workers are gone.
    """
    Place(options.executor, options.address).check()
    check_backend(options.track)
    profile = paper.profile(name)
    problems = definition_problems(paper.directory)
    if problems:
        raise ReplicationError("\n".join(problems))
    selected = profile.with_overrides(options.only, options.seeds, options.workers)
    jobs = {plan.experiment: jobs_of(plan, paper.experiment(plan.experiment)) for plan in selected.plans.values()}
    if profile.requires == "gpu" and options.executor == "local" and not gpus():
        raise ReplicationError(
            f"Profile '{name}' needs a GPU and torch finds none here; try --profile quick, or run it on a machine "
            "with one."
        )
    part = options.part
    if part is not None and options.fresh:
        raise ReplicationError("--fresh would forget the jobs of other parts, too; --part goes without it.")
    own = part.of_jobs(jobs) if part else jobs
    directory = results / paper.name / name
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    with _writable(directory, part), sole_writer(directory / "jobs", part, say):
        git = git_state(root, paper.directory)
        source = origin(root, paper.directory, git)
        if options.fresh:
            _remove_jobs(directory / "jobs", list(jobs))
        pending = {name: _pending(list_, directory / "jobs", console) for name, list_ in own.items()}
        _check(paper, name, pending)
        _announce(paper, profile, own, pending, console)
        started = now()
        finished = {name: _finished(jobs[name], directory / "jobs") for name, to_do in pending.items() if to_do}
        keep_criteria(paper.checks, name, directory / "jobs", finished, started)
        request = {key: getattr(options, key) for key in ("command", "executor", "only", "seeds")}
        with RunFile(directory / "jobs", part, own, started, request) as run_file:
            failures = _execute(paper, selected, own, pending, directory, source, console, options, run_file)
            if part is None:
                write_patch(directory, git.diff)
                whole = replace(selected, plans={**profile.plans, **selected.plans})
                making = Making(options.command, options.executor, started, tuple(str(job) for job, _ in failures))
                assemble(paper, whole, set(selected.plans), directory, source, making, console)
    return Result(directory, sum(map(len, own.values())), failures)


def _check(paper: Paper, profile: str, pending: dict[str, list[Job]]) -> None:
    """Let the libraries look at the settings of what is to run: a wrong method must not fail hours later."""
    for name, jobs in pending.items():
        experiment = paper.experiment(name)
        for cell in {json.dumps(job.settings): job.settings for job in jobs}.values():
            where = paper.where(profile, name)
            try:
                experiment.parse(cell, where).check()
            except ReplicationError as error:
                raise ReplicationError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from error


def _execute(
    paper: Paper,
    profile: Profile,
    jobs: dict[str, list[Job]],
    pending: dict[str, list[Job]],
    directory: Path,
    source: Origin,
    console: Console,
    options: Options,
    run_file: RunFile,
) -> list[tuple[Job, str]]:
    failures = []
    jobs_directory = directory / "jobs"
    tracking = None
    if options.track != "none":
        tracking = Tracking(options.track, directory / TRACKED, (paper.slug, profile.name))
        console.print(where_it_goes(tracking), markup=False, highlight=False, soft_wrap=True)
    forecast = Forecast(_expected_seconds(profile, jobs, pending, directory, options.timed_by))
    place = Place(options.executor, options.address, options.workers)
    earlier = _earlier(directory, options.timed_by)
    peaks = {name: entry.get("peak_memory_gib", 0.0) for name, entry in earlier.items()}
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    with (
        executor(place, paper, profile, pending, jobs_directory, source, tracking, peaks, say) as execute,
        RunProgress(console, forecast) as progress,
    ):
        for name, to_do in pending.items():
            done = len(jobs[name]) - len(to_do)
            progress.begin(name, len(jobs[name]), done)
            finished = [done]

            def tick(unfinished: list[Job], finished: list[int] = finished) -> None:
                progress.update(finished[0], inside_jobs(unfinished, jobs_directory))
                run_file.beat(progress.name, progress.left)

            for job, outcome in execute(to_do, tick):
                if outcome.status == "stop":
                    raise ReplicationError(f"{job.experiment}: {outcome.message}")
                if outcome.status == "failed":
                    failures.append((job, outcome.message))
                    run_file.fail(job, outcome.message)
                    console.print(f"{job} failed: {outcome.message}", style="red", markup=False, soft_wrap=True)
                    continue
                finished[0] += 1
            progress.end(finished[0])
    return failures


def _pending(jobs: list[Job], directory: Path, console: Console) -> list[Job]:
    """Jobs without a usable file."""
    pending = []
    for job in jobs:
        try:
            if read_job(directory / f"{job.stem}.json", job) is None:
                pending.append(job)
        except (ValueError, KeyError, TypeError) as error:
            console.print(f"{job.stem}.json is damaged ({error}); its job runs again.", markup=False, soft_wrap=True)
            (directory / f"{job.stem}.json").unlink()
            pending.append(job)
        progress_file(directory, job).unlink(missing_ok=True)  # left by a run that was killed
    return pending


def _finished(jobs: list[Job], directory: Path) -> int:
    """How many jobs have a file, whichever part did them."""
    return sum((directory / f"{job.stem}.json").exists() for job in jobs)


def _earlier(*directories: Path | None) -> dict[str, Any]:
    """What earlier records say of each experiment; the first of the directories whose record knows one counts."""
    record: dict[str, Any] = {}
    for directory in directories:
        record = {**(read_record(directory).get("experiments", {}) if directory else {}), **record}
    return record


def _expected_seconds(
    profile: Profile, jobs: dict[str, list[Job]], pending: dict[str, list[Job]], *directories: Path | None
) -> dict[str, float]:
    """Seconds that the missing jobs of each experiment took last time, or an even share of the budget.

    The first of `directories` whose record knows an experiment says how long it took.
    """
    record = _earlier(*directories)
    share = 60 * (profile.budget_minutes or 10) / max(len(jobs), 1)
    expected = {}
    for name, list_ in jobs.items():
        earlier = record.get(name, {})
        known = earlier.get("job_seconds", 0) and earlier.get("jobs_finished", 0)
        per_job = earlier["job_seconds"] / earlier["jobs_finished"] / profile.plans[name].workers if known else 0
        expected[name] = (per_job or share / len(list_)) * len(pending[name])
    return expected


def _announce(
    paper: Paper, profile: Profile, jobs: dict[str, list[Job]], pending: dict[str, list[Job]], console: Console
) -> None:
    total, to_do = sum(map(len, jobs.values())), sum(map(len, pending.values()))
    arxiv = f" (arXiv:{paper.facts.arxiv})" if paper.facts.arxiv else ""
    console.print(f"[bold]{paper.facts.title}[/bold]{arxiv}", highlight=False)
    console.print(f"Profile {profile.name}: {profile.description}", markup=False, highlight=False)
    console.print(f"Experiments: {', '.join(jobs)}", highlight=False)
    budget = (
        f"; the whole profile takes up to {duration(60 * profile.budget_minutes)}" if profile.budget_minutes else ""
    )
    console.print(f"{to_do} of {total} jobs to do, {total - to_do} already done{budget}.", highlight=False)


def _remove_jobs(directory: Path, experiments: list[str]) -> None:
    for path in directory.glob("*"):
        name = re.match(r"(.+)-[0-9a-f]{16}(\..+)?$", path.name)
        if name and name[1] in experiments:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def _writable(directory: Path, part: Part | None) -> Iterator[None]:
    try:
        (directory / "jobs").mkdir(parents=True, exist_ok=True)
        probe = directory / "jobs" / f".probe{part.suffix if part else ''}"
        write_atomic(probe, "")
        probe.unlink()
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise ReplicationError(
            f"Cannot write to {directory}: {error.strerror or error}. Free some space, or set REPLICATE_RESULTS to "
            "another directory; finished jobs are kept."
        ) from error
