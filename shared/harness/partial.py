"""What an unfinished run has measured so far, as results that can be judged, without touching those on disk."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.assembly import Making, assemble
from grpo_replications.shared.harness.jobs import Origin
from grpo_replications.shared.harness.measurements import MEASUREMENTS, TIMINGS
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.records import RECORD
from grpo_replications.shared.harness.run_status import RunStatus, read_runs
from grpo_replications.shared.words import counted


@dataclass(frozen=True)
class Unfinished:
    """How far it is: `experiments`, name -> (jobs done, jobs); `running`: whether a process goes on with it."""

    experiments: dict[str, tuple[int, int]]
    running: bool
    command: str

    def __str__(self) -> str:
        done, jobs = (sum(pair[side] for pair in self.experiments.values()) for side in (0, 1))
        missing = [
            f"{name} {total - had} of {counted(total, 'job')}"
            for name, (had, total) in self.experiments.items()
            if had < total
        ]
        text = f"Unfinished{' and running' if self.running else ''}: judged from {done} of {jobs} jobs; "
        text += f"missing: {', '.join(missing) or 'nothing, but the run has not been brought together'}."
        return text if self.running or not self.command else f"{text} It goes on by: {self.command}"


def is_unfinished(directory: Path) -> bool:
    """Whether `directory`, `.../<paper>/<profile>`, holds jobs of a run that has not written its measurements."""
    runs = read_runs(directory)
    if runs:
        return any(run.unfinished or run.part for run in runs) and _has_jobs(directory)
    return not (directory / MEASUREMENTS).exists() and _has_jobs(directory)


@contextmanager
def results_so_far(paper: Paper, profile: str, results: Path) -> Iterator[tuple[Path, Unfinished | None]]:
    """A directory of results to judge: `results`, or one for the block with what an unfinished run has measured.

    Finished jobs of other settings than the profile's do not count; ReplicationError where there is nothing else.
    """
    directory = results / paper.name / profile
    if not is_unfinished(directory):
        yield results, None
        return
    with tempfile.TemporaryDirectory(prefix="replicate-") as scratch:
        copy = Path(scratch) / paper.name / profile
        copy.mkdir(parents=True)
        for name in (RECORD, MEASUREMENTS, TIMINGS):
            if (directory / name).exists():
                shutil.copy(directory / name, copy / name)
        (copy / "jobs").symlink_to((directory / "jobs").resolve(), target_is_directory=True)
        missing = _assemble(paper, profile, copy, read_runs(directory))
        if missing is None and not (directory / MEASUREMENTS).exists():
            raise ReplicationError(
                f"{paper.slug}, {profile}: no job of the profile's present settings is done; nothing can be judged yet."
            )
        yield (results if missing is None else Path(scratch)), missing


def _assemble(paper: Paper, name: str, directory: Path, runs: list[RunStatus]) -> Unfinished | None:
    """Bring together in `directory` what is done; None where nothing is."""
    profile = paper.profile(name)
    only, seeds = (runs[0].only, runs[0].seeds) if runs else (None, None)
    selected = profile.with_overrides(only, seeds)
    whole = replace(selected, plans={**profile.plans, **selected.plans})
    # The record of the copy is read for its criteria only: nobody keeps what it says of source and command.
    making = Making(runs[0].command if runs else "", "", "")
    silent = Console(file=io.StringIO())
    record = assemble(paper, whole, set(selected.plans), directory, Origin(None, False, "", ""), making, silent)
    experiments = {
        experiment: (entry["jobs_finished"], entry["jobs"])
        for experiment, entry in record["experiments"].items()
        if experiment in selected.plans
    }
    if not any(entry["jobs_finished"] for entry in record["experiments"].values()):
        return None
    return Unfinished(experiments, any(run.running for run in runs), making.command)


def _has_jobs(directory: Path) -> bool:
    return any(not path.name.startswith(".") for path in (directory / "jobs").glob("*.json"))
