"""The process of one job on a node of a cluster, which `cluster_task` starts with the arguments BASE and PARENT.

It reads BASE/request, runs the job with its results below BASE, or in the shared directory of jobs where the request
names one, and writes BASE/outcome.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_replications.shared.harness.jobs import Job, Origin, Outcome, die_with_parent, run_job, write_atomic
from grpo_replications.shared.harness.provenance import cpu_model, package_versions
from grpo_replications.shared.tracking import Tracking


@dataclass(frozen=True)
class Request:
    """A job with all that its process must know; paths below the source are relative to it."""

    job: Job
    paper: str
    origin: Origin
    tracking: Tracking | None
    versions: dict[str, str]  # of the packages on the driver
    shared: Path | None  # the driver's directory of jobs, where the job must run in it
    mark: str  # what the shared directory holds in MARK


MARK = ".cluster"
"""A file in the driver's directory of jobs, by which a node knows that it sees the same directory."""


def answer(request: Request, base: Path) -> Outcome:
    """Run the job, or say why this node must not."""
    own = package_versions()
    other = [
        f"{name} {own.get(name, 'missing')} (not {version})"
        for name, version in request.versions.items()
        if own.get(name) != version
    ]
    if other:
        return Outcome(
            "stop",
            f"a node of the Ray cluster has other packages than this machine: {', '.join(other)}. Results could "
            "differ; install the versions of constraints.txt on every node.",
        )
    directory, tracking = base / "results" / "jobs", request.tracking
    if request.shared is not None:
        if not _same(request.shared, request.mark):
            return Outcome(
                "stop",
                f"{request.job} saves checkpoints (save_every), and a node of the Ray cluster does not see "
                f"{request.shared}, where they must be found after a loss. Put the results on a file system that all "
                "nodes share (--results DIR), or set save_every = 0.",
            )
        directory = request.shared
    elif tracking is not None:
        tracking = replace(tracking, directory=base / "results" / tracking.directory.name)
    origin = replace(request.origin, machine=cpu_model())
    return run_job(request.job, base / "source" / request.paper, directory, origin, tracking, None)


def _same(directory: Path, mark: str) -> bool:
    try:
        return (directory / MARK).read_text() == mark
    except OSError:
        return False


def main() -> None:
    """Read the request, run the job, write its outcome."""
    base, parent = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    request = pickle.loads((base / "request").read_bytes())
    write_atomic(base / "outcome", pickle.dumps(answer(request, base)), durable=False)
