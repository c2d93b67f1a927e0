"""All finished jobs of a profile, whichever run did them -> measurements, timings and the record of their origin."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from grpo_replications.shared.harness.criteria import read_kept
from grpo_replications.shared.harness.jobs import Experiment, Job, Origin, read_job, write_atomic
from grpo_replications.shared.harness.measurements import (
    MEASUREMENTS,
    TIMINGS,
    tidy,
    with_kept_rows,
    write_measurements,
)
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.preflight import in_record
from grpo_replications.shared.harness.profiles import Plan, Profile
from grpo_replications.shared.harness.provenance import machine, package_versions
from grpo_replications.shared.harness.records import PATCH, RECORD, read_record
from grpo_replications.shared.harness.seed_ranges import written_range


@dataclass(frozen=True)
class Making:
    """How the present run came about, for the record: its command, executor, start and jobs that failed."""

    command: str
    executor: str
    started: str
    failed: tuple[str, ...] = ()


def jobs_of(plan: Plan, experiment: Experiment) -> list[Job]:
    """The jobs of one experiment: one per cell and seed, or one per cell where seeds run at once."""
    jobs = []
    for position, cell in enumerate(plan.cells):
        every = plan.seeds_of(position)
        seeds = [every] if experiment.seeds_at_once else [range(seed, seed + 1) for seed in every]
        jobs += [
            Job(plan.experiment, experiment.version, cell, plan.label(cell), chosen, experiment.seeds_at_once)
            for chosen in seeds
        ]
    return jobs


def assemble(
    paper: Paper,
    profile: Profile,
    selected: set[str],
    directory: Path,
    source: Origin,
    making: Making,
    console: Console,
) -> dict[str, Any]:
    """Write measurements, timings and record from the finished jobs in `directory`; return the record's own part.

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
        "failed_jobs": list(making.failed),
        "experiments": experiments,
        **in_record(directory),
    }
    _write_record(directory / RECORD, record, source, making)
    return record


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
        "seeds": written_range(range(plan.first_seed, plan.first_seed + plan.seeds)),
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


def _write_record(path: Path, record: dict[str, Any], source: Origin, making: Making) -> None:
    """Write the record, unless the one on disk already describes the same results."""
    earlier = read_record(path.parent)
    if {key: earlier.get(key) for key in record} == json.loads(json.dumps(record)):
        return
    patch = path.parent / PATCH
    full = {
        **record,
        "command": making.command,
        "commit": source.commit,
        "uncommitted_changes": source.dirty,
        "diff_sha256": hashlib.sha256(patch.read_bytes()).hexdigest() if patch.exists() else None,
        "source_fingerprint": source.fingerprint,
        "started": making.started,
        "finished": now(),
        "executor": making.executor,
        "machine": machine(),
        "packages": package_versions(),
    }
    write_atomic(path, json.dumps(full, indent=1) + "\n")


def _read(directory: Path, job: Job) -> dict[str, Any] | None:
    try:
        return read_job(directory / "jobs" / f"{job.stem}.json", job)
    except (ValueError, KeyError, TypeError):
        return None  # reported as damaged where it was to be run; not selected, it counts as absent


def write_patch(directory: Path, diff: str) -> None:
    """Keep what differed from the commit, or nothing where nothing did."""
    if diff:
        write_atomic(directory / PATCH, diff)
    else:
        (directory / PATCH).unlink(missing_ok=True)


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
