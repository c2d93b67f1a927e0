"""What a Ray worker does for one job: unpack the source, run the job in a process of its own, hand back its files.

Ray sends these functions by value, to nodes where the suite may not be installed: nothing but Python's own library is
imported here.  The job itself is run by `cluster_job`, from the source that was sent.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POLL_SECONDS, PROGRESS_SECONDS = 0.2, 1.0  # from one look at the process to the next; between two messages
CHECKPOINTS = "checkpoints"  # folders that stay behind, as in `jobs.CHECKPOINTS`
ENTRY = "from grpo_replications.shared.harness.cluster_job import main; main()"


def run_task(
    archive: bytes, request: bytes, stem: str, environment: dict[str, str], shared: str | None
) -> Iterator[dict[str, Any]]:
    """Run a job; yield `{"progress": text of its file}` now and then, and its end at last.

    The end is `{"code", "node", "error", "outcome", "files"}`.

    `archive`: a zip of the source; `request`: what `cluster_job` reads; `stem`: the name of the job's files; `shared`:
    the directory of jobs where the job runs in it, else None, and `files` holds all that it wrote, by path below the
    directory of results. `code` is the exit status of the job's process, below 0 where a signal ended it;
    `outcome` what it pickled, None where it got no further than an error.
    """
    base = Path(tempfile.mkdtemp(prefix="grpo-replications-"))
    process = None
    try:
        source, results = base / "source", base / "results"
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            packed.extractall(source)
        (results / "jobs").mkdir(parents=True)
        (base / "request").write_bytes(request)
        with open(base / "error", "wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", ENTRY, str(base), str(os.getpid())],
                env={**os.environ, **environment, "PYTHONPATH": str(source)},
                cwd=base,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        progress = (Path(shared) if shared else results / "jobs") / f"{stem}.progress"
        sent, said = time.monotonic(), ""
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            if time.monotonic() - sent < PROGRESS_SECONDS:
                continue
            with contextlib.suppress(OSError):
                text = progress.read_text()
                if text != said:
                    sent, said = time.monotonic(), text
                    yield {"progress": text}
        error = (base / "error").read_text(errors="replace").strip()[-2000:]
        files = {
            path.relative_to(results).as_posix(): path.read_bytes()
            for path in sorted(results.rglob("*"))
            if path.is_file() and path.suffix not in (".progress", ".tmp") and CHECKPOINTS not in path.parts
        }
        outcome = base / "outcome"
        yield {
            "code": process.returncode,
            "node": socket.gethostname(),
            "error": error,
            "outcome": outcome.read_bytes() if outcome.exists() else None,
            "files": files,
        }
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        shutil.rmtree(base, ignore_errors=True)
