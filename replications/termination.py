"""SIGTERM, by which Slurm and other queues take a machine back: a run ends as by Ctrl-C, and says how it goes on.

Only a message and the exit code differ: results appear whole or not at all, whenever a process ends, and of a job with
checkpoints the last complete one is there.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from grpo_replications.replications.places import run_target
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.words import counted

EXIT_CODE = 128 + signal.SIGTERM
LISTED = 20  # jobs that are named; more of them are counted


class Terminated(KeyboardInterrupt):
    """SIGTERM has come; whatever answers Ctrl-C answers it, too."""


@contextmanager
def terminated_by_signal() -> Iterator[None]:
    """A block in which SIGTERM raises `Terminated`, once; further ones do not disturb what ends the run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def answer(*_: Any) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = signal.signal(signal.SIGTERM, answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say_terminated(options: argparse.Namespace) -> None:
    """Say on stderr what a terminated command leaves, and by which command it goes on."""
    console = Console(stderr=True)
    lines = ["Terminated (SIGTERM); finished jobs are kept, and nothing is half written."]
    lines += _unfinished(options)
    lines.append(f"The same command goes on: {options.command}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _unfinished(options: argparse.Namespace) -> Iterator[str]:
    """A line for each job of this process's run that goes on from a checkpoint, and one for those that begin anew."""
    from grpo_replications.replications.rehearsal import ENDING
    from grpo_replications.shared.harness.run_status import WAITING, read_runs

    if not hasattr(options, "update_committed"):  # it was no run
        return
    try:
        profile = options.profile + (ENDING if options.rehearse else "")
        directory = run_target(options) / Path(options.paper).name.replace("-", "_") / profile
    except ReplicationError:
        return
    waiting = [job for run in read_runs(directory) if run.process == os.getpid() for job in run.of(WAITING)]
    saved = [job for job in waiting if job.saved is not None]
    for job in saved[:LISTED]:
        yield f"  {job.name} goes on from step {job.saved}"
    if len(saved) > LISTED:
        yield f"  and {counted(len(saved) - LISTED, 'job')} more from checkpoints of theirs"
    rest = len(waiting) - len(saved)
    if rest:
        yield f"  {counted(rest, 'job')} without a checkpoint yet"
