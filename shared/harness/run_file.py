"""What a run says of itself in its directory of jobs, for `replicate status` in another shell.

`.run` (JSON) is written once: what it runs, where and since when.  `.alive` is replaced every few seconds while it
runs, and once more when it ends.  A part of a run has files of its own, `.run-3-of-8`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import Job, write_atomic
from grpo_replications.shared.harness.parts import Part

RUN, ALIVE = ".run", ".alive"
RUNNING, FINISHED, FAILED, INTERRUPTED, STOPPED = "running", "finished", "failed", "interrupted", "stopped"
BEAT_SECONDS = 2.0


class RunFile:
    """The two files of a run, kept up to date within a `with` block; they stay when it ends.

    `request`: what was asked for (command, executor, only, seeds), as `run_status` reads it.
    """

    def __init__(
        self,
        directory: Path,
        part: Part | None,
        jobs: Mapping[str, list[Job]],
        started: str,
        request: Mapping[str, Any],
    ) -> None:
        suffix = part.suffix if part else ""
        self.run, self.alive = directory / f"{RUN}{suffix}", directory / f"{ALIVE}{suffix}"
        self.facts = {
            "part": str(part) if part else None,
            **request,
            "started": started,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "process_started": process_started(os.getpid()),
            "jobs": [[job.stem, str(job)] for list_ in jobs.values() for job in list_],
        }
        self.failed: dict[str, str] = {}
        self._last = 0.0
        # The whole follows upon its parts, a part upon an earlier whole, and a new division upon another one.
        if part is not None:
            _forget(directory / RUN)
        for stale in directory.glob(f"{RUN}-*-of-*"):
            if part is None or not stale.name.endswith(f"-of-{part.of}"):
                _forget(stale)

    def __enter__(self) -> RunFile:
        self._say(RUNNING)
        write_atomic(self.run, json.dumps(self.facts))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state, message = (FAILED if self.failed else FINISHED), ""
        if isinstance(error, KeyboardInterrupt):
            state = INTERRUPTED
        elif error is not None:
            state, message = STOPPED, str(error) if isinstance(error, ReplicationError) else repr(error)
        with contextlib.suppress(OSError):  # a full disk has been said already
            self._say(state, message=message)

    def beat(self, experiment: str, remaining: float) -> None:
        """The run goes on: its experiment, and the seconds that are left in all; at most one write every 2 s."""
        if time.monotonic() - self._last >= BEAT_SECONDS:
            self._say(RUNNING, experiment=experiment, remaining=round(remaining, 1))

    def fail(self, job: Job, message: str) -> None:
        """A job has failed."""
        self.failed[job.stem] = message

    def _say(self, state: str, **more: Any) -> None:
        self._last = time.monotonic()
        said = {"state": state, "failed": self.failed, **more}
        write_atomic(self.alive, json.dumps(said), durable=False)


def _forget(run: Path) -> None:
    run.unlink(missing_ok=True)
    run.with_name(run.name.replace(RUN, ALIVE, 1)).unlink(missing_ok=True)


def process_started(process: int) -> str | None:
    """When a process of this machine was started, in the system's own words; None where there is none.

    A number that the system has given to another process meanwhile is told by it, on Linux.
    """
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # it is there, and another user's
    return "unknown"
