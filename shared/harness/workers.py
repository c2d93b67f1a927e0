"""Jobs -> worker processes that outlive a job but never their parent.

Importing torch and trl takes seconds, so workers are kept from job to job and from experiment to experiment.  Jobs run
in processes of their own even one at a time: the number of threads is then set before anything is loaded, and a job's
result cannot depend on how many run beside it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from joblib.externals.loky import get_reusable_executor

from grpo_replications.shared.harness.job_progress import ENDING, read_progress
from grpo_replications.shared.harness.jobs import Job, Origin, Outcome, run_job
from grpo_replications.shared.tracking import Tracking

POLL_SECONDS = 0.5
IDLE_SECONDS = 600
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_pools: list[Any] = []  # the pool in use, for stop_workers
DIED = "its process exited without an error message; most often the system ran out of memory (try --workers 1)"


def run_jobs(
    jobs: list[Job],
    paper_directory: Path,
    jobs_directory: Path,
    origin: Origin,
    tracking: Tracking | None,
    workers: int,
    tick: Callable[[list[Job]], None],
) -> Iterator[tuple[Job, Outcome]]:
    """Run jobs in `workers` processes and yield each with its outcome, in the order of completion.

    `tick` is called about twice a second with the jobs that are not finished.  A process that dies takes no other job
    with it: the jobs that were running are tried once more, each alone.
    """
    arguments = (paper_directory, jobs_directory, origin, tracking)
    if not jobs:
        return
    threads = jobs[0].settings["threads"]
    left, suspects = list(jobs), []
    while left or suspects:
        alone = not left
        broken = False
        for job, outcome in _run_batch([suspects.pop(0)] if alone else list(left), arguments, workers, threads, tick):
            if outcome is not None:
                yield job, outcome
            elif alone:
                yield job, Outcome("failed", DIED)
            broken = broken or outcome is None
            if outcome is not None and not alone:
                left.remove(job)
        if broken and not alone:
            suspects += [job for job in left if progress_file(jobs_directory, job).exists()] or left[:workers]
            left = [job for job in left if job not in suspects]
            for job in suspects:
                progress_file(jobs_directory, job).unlink(missing_ok=True)


def stop_workers() -> None:
    """Kill the worker processes, whatever they are doing."""
    # The pool's own thread may stumble over workers that vanish; its traceback would only hide our message.
    hook, threading.excepthook = threading.excepthook, lambda _: None
    while _pools:
        with contextlib.suppress(Exception):
            _pools.pop().shutdown(wait=True, kill_workers=True)
    threading.excepthook = hook


def inside_jobs(jobs: list[Job], jobs_directory: Path) -> float:
    """How many jobs' worth of work the running ones among `jobs` have reported."""
    total = 0.0
    for job in jobs:
        said = read_progress(progress_file(jobs_directory, job))
        total += said.fraction if said is not None else 0.0
    return total


def progress_file(jobs_directory: Path, job: Job) -> Path:
    """Where a running job says how much of it is done."""
    return jobs_directory / f"{job.stem}{ENDING}"


def job_environment(threads: int) -> dict[str, str]:
    """Variables of a job's process, which decide the number of threads before any library is loaded."""
    limits = {name: str(threads) for name in THREAD_VARIABLES}
    return {**limits, "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg"}


def _run_batch(
    jobs: list[Job],
    arguments: tuple[Path, Path, Origin, Tracking | None],
    workers: int,
    threads: int,
    tick: Callable[[list[Job]], None],
) -> Iterator[tuple[Job, Outcome | None]]:
    """Like `run_jobs`; after the pool broke, every unfinished job comes with None."""
    # The pool replaces a worker that holds much memory after a job, which is what we want, and warns about it.
    warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given to the executor")
    # Workers kept from an earlier run know the variables of their own start: others make new workers.
    ours = {name: value for name, value in os.environ.items() if name.startswith("REPLICATE_")}
    environment = {**ours, **job_environment(threads)}
    pool = get_reusable_executor(max_workers=workers, timeout=IDLE_SECONDS, env=environment)
    _pools[:] = [pool]
    waiting: dict[Future[Outcome], Job] = {}
    try:
        for job in jobs:
            waiting[pool.submit(run_job, job, *arguments, os.getpid())] = job
    except BrokenProcessPool:
        pass  # the futures submitted so far say so themselves
    submitted = {job.key for job in waiting.values()}
    last_tick = time.monotonic()
    while waiting:
        done, _ = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            job = waiting.pop(future)
            try:
                yield job, future.result()
            except BrokenProcessPool:
                yield job, None
        if time.monotonic() - last_tick >= POLL_SECONDS:
            last_tick = time.monotonic()
            tick(list(waiting.values()))
    for job in jobs:
        if job.key not in submitted:
            yield job, None
