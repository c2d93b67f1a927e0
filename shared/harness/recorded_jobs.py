"""The record of a profile's results -> the jobs behind them with what each took, and a random draw of some."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.assembly import jobs_of
from grpo_replications.shared.harness.jobs import Job
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.profiles import Plan, Profile
from grpo_replications.shared.harness.progress import duration
from grpo_replications.shared.harness.seed_ranges import read_range
from grpo_replications.shared.words import counted, without_marks

SIXTEEN_BITS = "bfloat16"


@dataclass(frozen=True)
class RecordedJob:
    """A job with the seconds that it took by the record: the experiment's, shared out by seeds."""

    job: Job
    seconds: float


@dataclass(frozen=True)
class LeftOut:
    """An experiment, or some of its jobs, that cannot be drawn, and why."""

    experiment: str
    jobs: int
    reason: str


@dataclass(frozen=True)
class Candidates:
    """What may be drawn, by experiment, and what may not; `jobs`: how many there are in all."""

    drawable: dict[str, list[RecordedJob]]
    left_out: tuple[LeftOut, ...]
    jobs: int

    @property
    def experiments(self) -> int:
        """Experiments with or without a job that may be drawn."""
        return len(set(self.drawable) | {one.experiment for one in self.left_out})


def recorded_profile(paper: Paper, profile: str, record: Mapping[str, Any]) -> Profile:
    """The profile as it was when its results were measured: seeds, cells and what varied, from the record."""
    plans = {}
    try:
        for name, entry in record["experiments"].items():
            seeds = read_range(entry["seeds"])
            plans[name] = Plan(
                name,
                len(seeds),
                entry["workers"],
                tuple(entry["settings"]),
                tuple(entry["varying"]),
                tuple(entry["seeds_per_cell"] or ()),
                seeds.start,
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReplicationError(
            f"The record of {paper.slug}, {profile} does not say what was measured ({error!r}); run the profile again."
        ) from None
    return replace(paper.profile(profile), plans=plans)


def candidates(
    paper: Paper,
    recorded: Profile,
    record: Mapping[str, Any],
    rows: pd.DataFrame,
    slow: bool = False,
) -> Candidates:
    """Which of the recorded jobs can be measured again and compared.

    `rows`: the measurements, as `read_rows` gives them.  Not drawn are jobs without such rows, and those whose settings
    or seeds the profile has no more.  `slow`: this processor has no instructions for bfloat16: what
    jobs in it take here is unknown (a processor of the same name may have them), so they are not drawn either.
    """
    current = paper.profile(recorded.name).plans
    measured = set(rows[["experiment", "settings", "seed"]].drop_duplicates().itertuples(index=False, name=None))
    labels = {(experiment, settings) for experiment, settings, _ in measured}
    drawable: dict[str, list[RecordedJob]] = {}
    left_out = []
    total = 0
    for name, plan in recorded.plans.items():
        entry = record["experiments"][name]
        total += entry["jobs_finished"]
        if name not in current:
            left_out.append(LeftOut(name, entry["jobs"], f"{recorded.name} has no such experiment any more"))
            continue
        experiment = paper.experiment(name)
        known = {_identity(job) for job in jobs_of(current[name], experiment)}
        jobs = jobs_of(plan, experiment)
        each = entry["job_seconds"] / max(sum(len(job.seeds) for job in jobs), 1)
        reasons: dict[str, int] = {}
        for job in jobs:
            key = (name, job.label) if job.seeds_at_once else (name, job.label, job.seeds.start)
            if _identity(job) not in known:
                why = "its settings or seeds are no longer those of the profile"
            elif key not in (labels if job.seeds_at_once else measured):
                why = "nothing but times is kept of it"
            elif slow and precision_of(job, entry) == SIXTEEN_BITS:
                machines = without_marks(" and ".join(entry["machines"]))
                took = f"{duration(each * len(job.seeds))} a job by the record, on {machines}"
                why = f"{SIXTEEN_BITS}, for which this processor has no instructions: {took}"
            else:
                drawable.setdefault(name, []).append(RecordedJob(job, each * len(job.seeds)))
                continue
            reasons[why] = reasons.get(why, 0) + 1
        left_out += [LeftOut(name, number, why) for why, number in reasons.items()]
    return Candidates(drawable, tuple(left_out), total)


def draw(
    drawable: Mapping[str, Sequence[RecordedJob]], number: int, budget: float, seed: int
) -> tuple[list[RecordedJob], list[LeftOut]]:
    """At most `number` jobs whose recorded seconds add up to at most `budget`, and the experiments without one.

    First one job of every experiment, the cheapest experiment first, as far as number and budget go; then any jobs of
    any experiment that still fit.  The same arguments give the same draw.  In order of the experiments' cost.
    """
    cost = {name: sum(one.seconds for one in jobs) / len(jobs) for name, jobs in drawable.items()}
    names = sorted(cost, key=lambda name: (cost[name], name))
    shuffled = {name: random.Random(f"{seed} {name}").sample(drawable[name], len(drawable[name])) for name in names}
    drawn: list[RecordedJob] = []
    without = []

    def fits(one: RecordedJob) -> bool:
        return len(drawn) < number and sum(other.seconds for other in drawn) + one.seconds <= budget

    for name in names:
        first = next((one for one in shuffled[name] if fits(one)), None)
        if first is not None:
            drawn.append(first)
        elif len(drawn) >= number:
            without.append(LeftOut(name, len(drawable[name]), f"dearer than the {counted(number, 'job')} drawn"))
        else:
            without.append(LeftOut(name, len(drawable[name]), f"about {duration(cost[name])} a job"))
    rest = [one for name in names for one in shuffled[name] if one not in drawn]
    for one in random.Random(f"{seed}").sample(rest, len(rest)):
        if fits(one):
            drawn.append(one)
    return sorted(drawn, key=lambda one: names.index(one.job.experiment)), without


def precision_of(job: Job, entry: Mapping[str, Any]) -> str | None:
    """The precision of a job, as written or by default at the time; None where it has no such setting."""
    return job.settings.get("precision", entry.get("defaults", {}).get("precision"))


def _identity(job: Job) -> tuple[str, int, int]:
    """What a job measures: its settings, with those of the runner, and its seeds; not the version of the code."""
    return json.dumps(job.settings, sort_keys=True), job.seeds.start, job.seeds.stop
