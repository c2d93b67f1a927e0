"""`replicate status`: how far runs are, from another shell."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console

from grpo_replications.replications.places import OWN, add_results_option, chosen_results, own_results
from grpo_replications.replications.run_summary import shown
from grpo_replications.replications.tools import to_json
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.job_progress import JobProgress
from grpo_replications.shared.harness.progress import duration
from grpo_replications.shared.harness.run_file import FAILED, FINISHED, INTERRUPTED, RUNNING, STOPPED
from grpo_replications.shared.harness.run_status import (
    DONE,
    KILLED,
    WAITING,
    JobStatus,
    RecordStatus,
    RunStatus,
    read_records,
    read_runs,
)
from grpo_replications.shared.words import counted

_TEXT = """
Say how far runs are, from another shell: a line for every job that is running (step, mean reward of the last rollout,
share of silent groups, tokens a second, time left), and how many jobs are done, have failed or wait; of those that
failed, the files with the error and with what they printed. Runs that have ended or were killed are told, too. Nothing
is changed.

Exit code: 0 whatever the runs do, 2 where no run has been here.
"""
LISTED = 20  # failed jobs that are named; more of them are counted


def add_command(commands: Any) -> None:
    """Add `status` to the sub-parsers `commands` of a parser."""
    parser = commands.add_parser(
        "status",
        help="say how far runs are, from another shell",
        description=_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paper", metavar="PAPER", nargs="?", help="one paper (default: all)")
    parser.add_argument("--profile", help="one profile (default: all)")
    add_results_option(parser, f"{OWN}/")
    parser.add_argument("--json", action="store_true", help="for programs: every job with its state")
    parser.set_defaults(action=_status)


def _status(options: argparse.Namespace, console: Console) -> int:
    results = chosen_results(options) or own_results()
    paper = None if options.paper is None else Path(options.paper).name.replace("-", "_")
    found = [
        (read_runs(directory), record)
        for directory, record in read_records(results)
        if paper in (None, directory.parent.name) and options.profile in (None, directory.name)
    ]
    if not found:
        of = f" of {options.paper}" if options.paper else ""
        of += f" in profile {options.profile}" if options.profile else ""
        raise ReplicationError(f"No run{of} has been under {results}. Other results are named by --results DIR.")
    if options.json:
        print(to_json([_as_json(runs, record) for runs, record in found]))
        return 0
    for runs, record in found:
        for run in runs:
            _print_run(console, run)
        if record is not None and (not runs or all(run.unfinished for run in runs)):
            _say(console, _of_record(record), style=None if runs else "bold")
    return 0


def _as_json(runs: list[RunStatus], record: RecordStatus | None) -> dict[str, Any]:
    states = (DONE, RUNNING, FAILED, WAITING)
    listed = [{**dataclasses.asdict(run), "counts": {state: run.count(state) for state in states}} for run in runs]
    return {"runs": listed, "record": None if record is None else dataclasses.asdict(record)}


def _print_run(console: Console, run: RunStatus) -> None:
    part = f", {run.part}" if run.part else ""
    _say(console, f"{run.paper}, {run.profile}{part}: {_state(run)}", style="bold")
    counts = [f"{run.count(DONE)} of {counted(len(run.jobs), 'job')} done"]
    counts += [f"{run.count(state)} {state}" for state in (RUNNING, FAILED, WAITING) if run.count(state)]
    _say(console, f"  {', '.join(counts)}")
    running = run.of(RUNNING)
    width = max((len(job.name) for job in running), default=0)
    for job in running:
        _say(console, f"  {job.name:<{width}}  {progress_text(job.progress)}")
    for job in run.of(WAITING):
        if job.progress is not None and not run.running:
            saved = "" if job.saved is None else f"; goes on from step {job.saved}"
            _say(console, f"  {job.name}  was running: {progress_text(job.progress, left=False)}{saved}")
    _print_failed(console, run.of(FAILED))
    if run.state in (KILLED, INTERRUPTED, STOPPED):
        _say(console, f"  Finished jobs are kept. It goes on by the same command: {run.command}")


def _print_failed(console: Console, failed: list[JobStatus]) -> None:
    for job in failed[:LISTED]:
        _say(console, f"  {job.name}  failed: {job.message}")
        for file in job.files:
            _say(console, f"    see {shown(Path(file))}")
    if len(failed) > LISTED:
        _say(console, f"  and {len(failed) - LISTED} more failed")


def _state(run: RunStatus) -> str:
    process = f"process {run.process} on {'this machine' if run.here else run.host}"
    if run.state == RUNNING:
        left = "" if run.remaining is None else f", about {duration(run.remaining)} left"
        sign = "" if run.here else f", last sign of life {duration(run.silent)} ago"
        return f"running since {run.started} ({process}{sign}){left}"
    if run.state == KILLED:
        gone = "no process of it is alive" if run.here else f"no sign of life for {duration(run.silent)}"
        return f"killed: {gone} (it was {process})"
    ended = {
        FINISHED: "finished",
        FAILED: "finished, some jobs failed",
        INTERRUPTED: "interrupted",
        STOPPED: f"stopped: {run.message}",
    }
    return f"{ended[run.state]} ({_ago(run)}); no process of it is running"


def _ago(run: RunStatus) -> str:
    return f"{duration(run.silent)} ago"


def _of_record(record: RecordStatus) -> str:
    """What an earlier, finished run left."""
    whole = "the whole profile" if record.complete else "a part of the profile"
    return (
        f"{record.paper}, {record.profile}: results of {record.finished or 'an unknown time'}, {record.done} of "
        f"{record.jobs} jobs ({whole}); no run is going on"
    )


def progress_text(progress: JobProgress | None, left: bool = True) -> str:
    """`30 %, step 12 of 40, reward 0.45, silent 22 %, 1,310 tokens/s, for 2 min, 4 min left`, as far as known."""
    if progress is None:
        return ""
    said = progress.training
    parts = [f"{100 * progress.fraction:.0f} %"]
    if "step" in said:
        parts.append(f"step {said['step']:.0f} of {said['steps']:.0f}")
    if "reward" in said:
        parts.append(f"reward {said['reward']:.3g}")
    if "silent" in said:
        parts.append(f"silent {100 * said['silent']:.0f} %")
    if "tokens_per_second" in said:
        parts.append(f"{said['tokens_per_second']:,.0f} tokens/s")
    if left:
        parts.append(f"for {duration(progress.elapsed)}")
    if left and progress.remaining is not None:
        parts.append(f"{duration(progress.remaining)} left")
    return ", ".join(parts)


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
