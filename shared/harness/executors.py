"""Where the jobs of a run are executed: processes of this machine, or the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.cluster import Cluster, check_ray, needs_of
from grpo_replications.shared.harness.jobs import Job, Origin, Outcome
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.profiles import Profile
from grpo_replications.shared.harness.workers import run_jobs, stop_workers
from grpo_replications.shared.tracking import Tracking

EXECUTORS = ("local", "ray")

Tick = Callable[[list[Job]], None]
Execute = Callable[[list[Job], Tick], Iterator[tuple[Job, Outcome]]]
"""Runs jobs of one experiment and yields each with its outcome as it ends; see `workers.run_jobs`."""


@dataclass(frozen=True)
class Place:
    """An executor by name; `address` of a Ray cluster; `workers` side by side, None: as the profile or cluster says."""

    executor: str = "local"
    address: str | None = None
    workers: int | None = None

    def check(self) -> None:
        """Make sure that the chosen executor can be used."""
        if self.executor not in EXECUTORS:
            raise ReplicationError(f"--executor must be one of {', '.join(EXECUTORS)}, not '{self.executor}'.")
        if self.executor == "ray":
            check_ray()
        elif self.address is not None:
            raise ReplicationError("--address is that of a Ray cluster; add --executor ray.")


@contextmanager
def executor(
    place: Place,
    paper: Paper,
    profile: Profile,
    pending: Mapping[str, list[Job]],
    jobs_directory: Path,
    origin: Origin,
    tracking: Tracking | None,
    peaks: Mapping[str, float],
    say: Callable[[str], None],
) -> Iterator[Execute]:
    """What runs the pending jobs; workers that still run are stopped when the block is left by an exception.

    `peaks`: experiment -> largest memory of a job in an earlier record (GiB), where there is one. On a cluster,
    ReplicationError before the first job where no node has what a job needs. `say` prints a line.
    """
    if place.executor == "local":

        def here(jobs: list[Job], tick: Tick) -> Iterator[tuple[Job, Outcome]]:
            workers = profile.plans[jobs[0].experiment].workers if jobs else 1
            return run_jobs(jobs, paper.directory, jobs_directory, origin, tracking, workers, tick)

        try:
            yield here
        except BaseException:
            stop_workers()
            raise
        return
    if not any(pending.values()):
        yield lambda jobs, tick: iter(())
        return
    needs, checkpointed = {}, set()
    for name, jobs in pending.items():
        for job in jobs:
            settings = paper.experiment(name).parse(job.settings, str(job))
            needs[job.key] = needs_of(settings, job.settings["threads"], profile.requires, peaks.get(name, 0.0))
            if getattr(settings, "save_every", 0):
                checkpointed.add(job.key)
    cluster = Cluster(place.address, paper.directory, say)
    try:
        cluster.check([(job, needs[job.key]) for jobs in pending.values() for job in jobs])
        yield lambda jobs, tick: cluster.run(
            jobs, needs, checkpointed, jobs_directory, origin, tracking, place.workers, tick
        )
    finally:
        cluster.close()
