"""Worker processes that grade answers and can be killed: the only place where math-verify and sympy run.

math-verify stops itself with SIGALRM, which works in a main thread only, disarms other alarms and does not cover every
step; so its limits are off. Pebble's process pool runs each pair in a worker that limits its own processor time and
memory; a worker that exceeds them dies and is replaced, and its pair counts as wrong. The limit is one of processor
time, so that a busy machine does not change a verdict; only a wall clock four times as long, and the budget of a whole
batch, depend on load. Workers start fresh (no fork of the caller's threads and locks, and without running its main
module), and end with the process that started them, however it ends.
"""

from __future__ import annotations

import atexit
import logging
import math
import multiprocessing
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.util import Finalize
from typing import Any

from joblib.externals.loky.backend.context import get_context
from pebble import ProcessExpired, ProcessPool
from pebble.pool.process import interpreter_shutdown

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.grading.maths_answers import UngradableGoldError, same_answer

logger = logging.getLogger(__name__)

START_SECONDS = 120.0  # for the imports of a new worker, apart from any grading limit
WALL_FACTOR = 4.0  # wall clock over processor time
MEMORY_BYTES = 4 * 1024**3  # address space of a worker


class GradingPool:
    """Grades (answer, gold) pairs in `workers` processes, at most `seconds` of processor time for each pair.

    The processes start at the first call; starting takes about two seconds, one pair 5 to 100 ms, and a pair that was
    graded before next to nothing. Safe to share by threads; a forked child starts its own. `timeouts` counts the pairs
    that were stopped.
    """

    def __init__(self, seconds: float = 5.0, workers: int = 1) -> None:
        self.seconds = seconds
        self.workers = workers
        self.timeouts = 0
        self._sound: set[str] = set()  # golds that have graded themselves
        self._reset()
        _instances.add(self)

    def grade(self, answer: str, gold: str) -> bool:
        """Whether the answer equals the gold answer; False when the worker ran out of time or memory.

        Raises UngradableGoldError for a gold that does not grade itself as correct, be it for want of time.
        """
        return self.grade_batch([(answer, gold)], math.inf)[0]

    def grade_batch(self, pairs: Sequence[tuple[str, str]], seconds: float) -> list[bool]:
        """Grade many (answer, gold) pairs within `seconds` together; what the time does not reach counts as wrong.

        Equal pairs are graded once, and short answers first, so that a few hostile ones do not starve the others. The
        start of the workers is not counted. Raises UngradableGoldError as `grade` does.
        """
        if not pairs:
            return []
        self._running()
        end = time.monotonic() + seconds
        waiting = sorted(set(pairs), key=lambda pair: (len(pair[0]), pair), reverse=True)
        verdicts: dict[tuple[str, str], bool] = {}
        running: deque[tuple[tuple[str, str], Any]] = (
            deque()
        )  # no more than there are workers: what waits costs nothing
        while (waiting or running) and time.monotonic() < end:
            while waiting and len(running) < self.workers:
                running.append((waiting[-1], self._submit(waiting.pop())))
            pair, future = running.popleft()
            verdict = self._outcome(pair, future, end)
            if verdict is not None:
                verdicts[pair] = verdict
                self._sound.add(pair[1])
            elif pair[1] not in self._sound and time.monotonic() < end:
                self.check_gold(pair[1])  # was it the answer's fault, or the gold's?
        for _, future in running:
            future.cancel()
        if waiting or running:
            logger.warning(
                "%d answers were not graded within %.1f s and count as wrong", len(waiting) + len(running), seconds
            )
        return [verdicts.get(pair, False) for pair in pairs]

    def check_gold(self, gold: str) -> None:
        """Raise UngradableGoldError unless the gold answer can be read and grades itself as correct in time."""
        if gold in self._sound:
            return
        pair = (gold, gold)
        if not self._outcome(pair, self._submit(pair), math.inf):
            raise UngradableGoldError(f"the gold answer {gold[:200]!r} cannot be used for grading: it took too long")
        self._sound.add(gold)

    def close(self) -> None:
        """Kill the workers, if there are any; the next call starts others."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            _end(pool)

    def _reset(self) -> None:
        self._pool: ProcessPool | None = None
        self._lock = threading.Lock()

    def _running(self) -> ProcessPool:
        """The pool with its workers ready; another one where the last was closed or broke."""
        with self._lock:
            if self._pool is not None and self._pool.active:
                return self._pool
            if multiprocessing.current_process().daemon:
                raise ReplicationError(
                    "Answers are graded in a process of their own, which a daemonic process may not start. Grade in "
                    "the main process, in a thread, or with joblib's default backend."
                )
            self._pool = ProcessPool(
                max_workers=self.workers, initializer=_prepare, initargs=(os.getpid(),), context=get_context("loky")
            )
            # Before a process of multiprocessing or joblib waits for its children, which only wait for more work.
            Finalize(self, _end, (self._pool,), exitpriority=100)
            try:
                self._pool.schedule(os.getpid).result(timeout=START_SECONDS)
            except Exception as error:  # whatever kept it from starting, the remedy is the same
                self._pool.stop()
                raise ReplicationError(
                    f"The grading process did not start ({type(error).__name__}: {error}). Is math-verify installed in "
                    "this environment? Try: python -c 'import math_verify'"
                ) from error
            return self._pool

    def _submit(self, pair: tuple[str, str]) -> Any:
        for _ in range(2):  # a pool that broke while idle shows it only here
            try:
                return self._running().schedule(_grade, args=(*pair, self.seconds), timeout=self.seconds * WALL_FACTOR)
            except RuntimeError:
                self.close()
        raise ReplicationError("The grading process ends as soon as it starts. Try: python -c 'import math_verify'")

    def _outcome(self, pair: tuple[str, str], future: Any, end: float) -> bool | None:
        """The verdict on a pair; None where its worker was stopped, or died, or the time `end` came first."""
        for _ in range(2):
            try:
                return future.result(timeout=None if end == math.inf else max(end - time.monotonic(), 0.0))
            except BrokenProcessPool:  # the worker had died before it took this pair
                self.close()
                future = self._submit(pair)
            except (TimeoutError, ProcessExpired, CancelledError):
                break
        future.cancel()
        self.timeouts += 1
        return None


def _end(pool: ProcessPool) -> None:
    pool.stop()
    pool.join()


_instances: weakref.WeakSet[GradingPool] = weakref.WeakSet()
_shared = None
_shared_lock = threading.Lock()


def shared_pool() -> GradingPool:
    """The pool that all reward functions of this process use; its workers end with the process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = GradingPool()
        return _shared


def _after_fork() -> None:
    """A forked child keeps none of its parent's locks and workers, and does not end them when it exits."""
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in _instances:
        pool._reset()
    atexit.unregister(interpreter_shutdown)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# --- in the worker --------------------------------------------------------------------------------------------------


def _prepare(parent: int) -> None:
    """Imports and grammar tables before any clock runs; limits; a watch on the parent."""
    logging.disable(logging.CRITICAL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _limit("RLIMIT_AS", MEMORY_BYTES)
    same_answer(r"\frac{1}{2}", "x+1")
    same_answer(r"\sqrt{2}", r"\sin x")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _grade(answer: str, gold: str, seconds: float) -> bool:
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit("RLIMIT_CPU", math.ceil(used.ru_utime + used.ru_stime + seconds))
    try:
        return same_answer(answer, gold)
    except UngradableGoldError:
        raise
    except MemoryError:
        os._exit(1)  # the heap is in an unknown state
    except Exception:  # the libraries raise many types on strange input: a wrong answer, never a crash
        return False


def _limit(name: str, value: int) -> None:
    """Lower one of this process's own limits, where the system has it."""
    try:
        import resource

        number = getattr(resource, name)
        resource.setrlimit(number, (value, resource.getrlimit(number)[1]))
    except (ImportError, AttributeError, ValueError, OSError):
        pass  # the parent's clock remains
