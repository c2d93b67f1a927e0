"""Experiments x settings x seeds -> measurements on disk: parallel, resumable, atomic, with their origin.

Killing a run at any moment and repeating the command finishes it without redoing a finished job, and gives the same
`measurements.csv.bz2` as an undisturbed run.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from rich.console import Console

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.criteria import keep_criteria, read_kept
from grpo_replications.shared.harness.jobs import Experiment, Job, JobContext, Origin, Row, read_job, write_atomic
from grpo_replications.shared.harness.measurements import (
    MEASUREMENTS,
    TIMINGS,
    tidy,
    with_kept_rows,
    write_measurements,
)
from grpo_replications.shared.harness.paper_checks import definition_problems
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.preflight import in_record
from grpo_replications.shared.harness.profiles import Plan, Profile
from grpo_replications.shared.harness.progress import Forecast, RunProgress, duration
from grpo_replications.shared.harness.provenance import git_state, gpus, machine, origin, package_versions
from grpo_replications.shared.harness.workers import check_executor, inside_jobs, run_jobs, stop_workers
from grpo_replications.shared.tracking import DIRECTORY as TRACKED
from grpo_replications.shared.tracking import Tracking, check_backend, where_it_goes

__all__ = ["Experiment", "JobContext", "Options", "Result", "Row", "jobs_of", "run_profile"]

# No space, over quota, read-only, not permitted, or something else of that name in the way.
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST}
RECORD, PATCH = "record.json", "diff.patch"


@dataclass(frozen=True)
class Options:
    """What the command line may change about a profile, and how it is run."""

    only: str | None = None
    seeds: int | None = None
    workers: int | None = None
    fresh: bool = False
    executor: str = "local"
    command: str = ""  # as typed, for the record
    track: str = "none"  # what follows the curves of running jobs, a name of `shared.tracking.BACKENDS`
    timed_by: Path | None = None  # results of the same profile elsewhere, whose record says how long it takes


@dataclass
class Result:
    """How a run ended: where its files are, and every failed job with its error."""

    directory: Path
    failures: list[tuple[Job, str]] = field(default_factory=list)


def jobs_of(plan: Plan, experiment: Experiment) -> list[Job]:
    """The jobs of one experiment: one per cell and seed, or one per cell where seeds run at once."""
    jobs = []
    for position, cell in enumerate(plan.cells):
        count = plan.seeds_of(position)
        seeds = [range(count)] if experiment.seeds_at_once else [range(seed, seed + 1) for seed in range(count)]
        jobs += [
            Job(plan.experiment, experiment.version, cell, plan.label(cell), chosen, experiment.seeds_at_once)
            for chosen in seeds
        ]
    return jobs


def run_profile(paper: Paper, name: str, results: Path, root: Path, console: Console, options: Options) -> Result:
    """Run what is missing of a profile, then write its measurements, timings and record under `results`.

    `root` is the checkout whose commit and source go into the record.  First the whole paper is checked, every profile
    of it.  A job that fails does not stop the others; a job that raises `ReplicationError` does.  Ctrl-C raises
    KeyboardInterrupt after the workers are gone.
    """
    check_executor(options.executor)
    check_backend(options.track)
    profile = paper.profile(name)
    problems = definition_problems(paper.directory)
    if problems:
        raise ReplicationError("\n".join(problems))
    selected = profile.with_overrides(options.only, options.seeds, options.workers)
    jobs = {plan.experiment: jobs_of(plan, paper.experiment(plan.experiment)) for plan in selected.plans.values()}
    if profile.requires == "gpu" and not gpus():
        raise ReplicationError(
            f"Profile '{name}' needs a GPU and torch finds none here; try --profile quick, or run it on a machine "
            "with one."
        )
    directory = results / paper.name / name
    with _writable(directory), _locked(directory):
        git = git_state(root, paper.directory)
        source = origin(root, paper.directory, git)
        if options.fresh:
            _remove_jobs(directory / "jobs", list(jobs))
        pending = {name: _pending(list_, directory / "jobs", console) for name, list_ in jobs.items()}
        _check(paper, name, pending)
        _announce(paper, profile, jobs, pending, console)
        started = _now()
        finished = {name: len(jobs[name]) - len(to_do) for name, to_do in pending.items() if to_do}
        keep_criteria(paper.checks, name, directory / "jobs", finished, started)
        failures = _execute(paper, selected, jobs, pending, directory, source, console, options)
        everything = {**profile.plans, **selected.plans}
        _write_patch(directory, git.diff)
        whole = replace(selected, plans=everything)
        _assemble(paper, whole, set(selected.plans), directory, source, console, started, options, failures)
    return Result(directory, failures)


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
) -> list[tuple[Job, str]]:
    failures = []
    jobs_directory = directory / "jobs"
    tracking = None
    if options.track != "none":
        tracking = Tracking(options.track, directory / TRACKED, (paper.slug, profile.name))
        console.print(where_it_goes(tracking), markup=False, highlight=False, soft_wrap=True)
    forecast = Forecast(_expected_seconds(profile, jobs, pending, directory, options.timed_by))
    try:
        with RunProgress(console, forecast) as progress:
            for name, to_do in pending.items():
                plan = profile.plans[name]
                done = len(jobs[name]) - len(to_do)
                progress.begin(name, len(jobs[name]), done)
                finished = [done]

                def tick(unfinished: list[Job], finished: list[int] = finished) -> None:
                    progress.update(finished[0], inside_jobs(unfinished, jobs_directory))

                arguments = (to_do, paper.directory, jobs_directory, source, tracking, plan.workers, options.executor)
                for job, outcome in run_jobs(*arguments, tick):
                    if outcome.status == "stop":
                        raise ReplicationError(f"{job.experiment}: {outcome.message}")
                    if outcome.status == "failed":
                        failures.append((job, outcome.message))
                        console.print(f"{job} failed: {outcome.message}", style="red", markup=False, soft_wrap=True)
                        continue
                    finished[0] += 1
                progress.end(finished[0])
    except BaseException:
        stop_workers()
        raise
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
        (directory / f"{job.stem}.progress").unlink(missing_ok=True)  # left by a run that was killed
    return pending


def _assemble(
    paper: Paper,
    profile: Profile,
    selected: set[str],
    directory: Path,
    source: Origin,
    console: Console,
    started: str,
    options: Options,
    failures: list[tuple[Job, str]],
) -> None:
    """All finished jobs of the profile, whichever run did them -> measurements, timings, record.

    An experiment that was not selected and has no jobs on disk (a fresh clone has none) keeps the rows and the record
    that are there, as long as its settings are still those of the profile.
    """
    finished: list[tuple[Job, dict[str, Any]]] = []
    experiments, kept = {}, []
    earlier = read_record(directory).get("experiments", {})
    criteria = read_kept(directory / "jobs")
    for plan in profile.plans.values():
        jobs = jobs_of(plan, paper.experiment(plan.experiment))
        contents = [(job, _read(directory, job)) for job in jobs]
        own = [(job, content) for job, content in contents if content is not None]
        before = earlier.get(plan.experiment, {})
        same = before.get("settings") == json.loads(json.dumps(list(plan.cells)))
        if not own and same and before.get("jobs_finished") and plan.experiment not in selected:
            kept.append(plan.experiment)
            experiments[plan.experiment] = before
            continue
        finished += own
        experiments[plan.experiment] = _experiment_record(
            plan, len(jobs), [content for _, content in own], source, paper.experiment(plan.experiment)
        )
        if plan.experiment in criteria:
            experiments[plan.experiment]["criteria"] = criteria[plan.experiment]
    frames = tidy(finished)
    _warn_of_values(frames[0], console)
    for frame, name in zip(frames, (MEASUREMENTS, TIMINGS), strict=True):
        write_measurements(with_kept_rows(frame, directory / name, kept, list(experiments)), directory / name)
    if kept:
        console.print(f"Kept as they are in {directory.name}: {', '.join(kept)}.", highlight=False)
    for name, entry in experiments.items():
        if entry["jobs_from_other_source"]:
            console.print(
                f"{name}: {entry['jobs_from_other_source']} of {entry['jobs_finished']} results come from an earlier "
                "version of the source; --fresh runs them again.",
                style="yellow",
                soft_wrap=True,
            )
    record = {
        "paper": paper.slug,
        "profile": profile.name,
        "complete": all(entry["jobs_finished"] == entry["jobs"] for entry in experiments.values()),
        "failed_jobs": [str(job) for job, _ in failures],
        "experiments": experiments,
        **in_record(directory),
    }
    _write_record(directory / RECORD, record, started, source, options)


def _warn_of_values(frame: pd.DataFrame, console: Console) -> None:
    """Say which metrics have values that are no finite numbers: a division by zero must not wait for a verdict."""
    odd = frame[~np.isfinite(frame["value"])]
    for (experiment, metric), rows in odd.groupby(["experiment", "metric"]):
        console.print(
            f"{experiment}: {len(rows)} values of {metric} are not finite, first with "
            f"{rows['settings'].iloc[0] or 'its only settings'}; no check can be judged from them.",
            style="yellow",
            soft_wrap=True,
            markup=False,
        )


def _experiment_record(
    plan: Plan, jobs: int, contents: list[dict[str, Any]], source: Origin, experiment: Experiment
) -> dict[str, Any]:
    commits = Counter((content["commit"] or "unknown") + ("+" if content["dirty"] else "") for content in contents)
    return {
        "seeds": f"0-{plan.seeds - 1}" if plan.seeds > 1 else "0",
        "seeds_per_cell": list(plan.cell_seeds) or None,
        "workers": plan.workers,
        "varying": list(plan.varying),
        "settings": list(plan.cells),
        "defaults": experiment.settings.defaults(),  # of settings that the profile leaves out
        "jobs": jobs,
        "jobs_finished": len(contents),
        "jobs_from_other_source": sum(content["fingerprint"] != source.fingerprint for content in contents),
        "job_seconds": round(sum(content["seconds"] for content in contents), 3),
        "peak_memory_gib": round(max((content["peak_memory_bytes"] for content in contents), default=0) / 2**30, 2),
        "commits": dict(sorted(commits.items())),  # a + stands for uncommitted changes
        "machines": sorted({content["machine"] for content in contents}),
    }


def _write_record(path: Path, record: dict[str, Any], started: str, source: Origin, options: Options) -> None:
    """Write the record, unless the one on disk already describes the same results."""
    earlier = read_record(path.parent)
    if {key: earlier.get(key) for key in record} == json.loads(json.dumps(record)):
        return
    patch = path.parent / PATCH
    full = {
        **record,
        "command": options.command,
        "commit": source.commit,
        "uncommitted_changes": source.dirty,
        "diff_sha256": hashlib.sha256(patch.read_bytes()).hexdigest() if patch.exists() else None,
        "source_fingerprint": source.fingerprint,
        "started": started,
        "finished": _now(),
        "executor": options.executor,
        "machine": machine(),
        "packages": package_versions(),
    }
    write_atomic(path, json.dumps(full, indent=1) + "\n")


def read_record(directory: Path) -> dict[str, Any]:
    """The record of a profile's results; empty where there is none or it is damaged."""
    try:
        record = json.loads((directory / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _read(directory: Path, job: Job) -> dict[str, Any] | None:
    try:
        return read_job(directory / "jobs" / f"{job.stem}.json", job)
    except (ValueError, KeyError, TypeError):
        return None  # reported as damaged where it was to be run; not selected, it counts as absent


def _expected_seconds(
    profile: Profile, jobs: dict[str, list[Job]], pending: dict[str, list[Job]], *directories: Path | None
) -> dict[str, float]:
    """Seconds that the missing jobs of each experiment took last time, or an even share of the budget.

    The first of `directories` whose record knows an experiment says how long it took.
    """
    record: dict[str, Any] = {}
    for directory in directories:
        record = {**(read_record(directory).get("experiments", {}) if directory else {}), **record}
    share = 60 * (profile.budget_minutes or 10) / len(jobs)
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


def _write_patch(directory: Path, diff: str) -> None:
    if diff:
        write_atomic(directory / PATCH, diff)
    else:
        (directory / PATCH).unlink(missing_ok=True)


@contextmanager
def _writable(directory: Path) -> Iterator[None]:
    try:
        (directory / "jobs").mkdir(parents=True, exist_ok=True)
        write_atomic(directory / "jobs" / ".probe", "")
        (directory / "jobs" / ".probe").unlink()
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise ReplicationError(
            f"Cannot write to {directory}: {error.strerror or error}. Free some space, or set REPLICATE_RESULTS to "
            "another directory; finished jobs are kept."
        ) from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    lock = FileLock(directory / "jobs" / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ReplicationError(f"Another run is writing to {directory}; wait for it or end it.") from None
    try:
        yield
    finally:
        lock.release()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
