"""A worker process that grades answers and can be killed: the only place where math-verify runs.

math-verify stops itself with SIGALRM, which works in a main thread only, disarms other alarms and does not cover every
step. Here the time limit is kept by the parent, from any thread: a worker that does not answer in time is killed and
replaced, and its answer counts as wrong. The worker also limits its own memory and processor time, so that it dies by
itself if its parent was killed.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from shared.errors import ReplicationError
from shared.grading.answers import UngradableGold, same_answer

logger = logging.getLogger(__name__)

START_SECONDS = 120.0  # for the imports of a new worker, apart from any grading limit
MEMORY_BYTES = 4 * 1024**3  # address space of the worker
_ROOT = Path(__file__).resolve().parents[2]
_MAIN = "import sys; sys.path[0] = sys.argv[1]; from shared.grading.verifier import serve; serve(float(sys.argv[2]))"


class UngradableGoldError(ReplicationError, ValueError):
    """A reference answer that cannot be read or does not grade itself as correct; it must not become a reward."""


class Verifier:
    """Grades (answer, gold) pairs in one child process, at most `seconds` for each pair. Safe to share by threads.

    The process starts at the first call. Counters: `timeouts` pairs that ran out of time, `starts` processes started.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds = seconds
        self.timeouts = 0
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None
        self._replies: queue.Queue[str | None] = queue.Queue()
        self._owner = 0
        self._lock = threading.RLock()
        self._sound: set[str] = set()  # golds that have graded themselves

    def grade(self, answer: str, gold: str, seconds: float | None = None) -> bool:
        """Whether the answer equals the gold answer; False when the worker ran out of time or memory.

        Raises UngradableGoldError for a gold that does not grade itself as correct, be it for want of time.
        """
        limit = self.seconds if seconds is None else seconds
        with self._lock:
            reply = self._ask({"answer": answer, "gold": gold}, limit)
        if reply is not None and "ungradable" in reply:
            raise UngradableGoldError(reply["ungradable"])
        if reply is not None and "error" not in reply:
            self._sound.add(gold)
            return bool(reply["same"])
        # The answer's fault, or the gold's? A limit shorter than the full one tells nothing about a gold.
        if gold not in self._sound and limit >= self.seconds:
            self.check_gold(gold)
        return False

    def grade_batch(self, pairs: Sequence[tuple[str, str]], seconds: float) -> list[bool]:
        """Grade many (answer, gold) pairs within `seconds` together; what the time does not reach counts as wrong.

        Equal pairs are graded once, and short answers first, so that a few hostile ones do not starve the others.
        """
        deadline = time.monotonic() + seconds
        verdicts: dict[tuple[str, str], bool] = {}
        distinct = sorted(set(pairs), key=lambda pair: (len(pair[0]), pair))
        for done, pair in enumerate(distinct):
            left = deadline - time.monotonic()
            if left <= 0:
                logger.warning("%d of %d answers were not graded within %.1f s and count as wrong",
                               len(distinct) - done, len(distinct), seconds)  # fmt: skip
                break
            verdicts[pair] = self.grade(*pair, seconds=min(self.seconds, left))
        return [verdicts.get(pair, False) for pair in pairs]

    def check_gold(self, gold: str) -> None:
        """Raise UngradableGoldError unless the gold answer can be read and grades itself as correct in time."""
        with self._lock:
            reply = self._ask({"answer": gold, "gold": gold}, self.seconds)
        if reply is None or not reply.get("same"):
            reason = "it took too long" if reply is None else reply.get("ungradable", "it does not equal itself")
            raise UngradableGoldError(f"the gold answer {gold[:200]!r} cannot be used for grading: {reason}")
        self._sound.add(gold)

    def close(self) -> None:
        """Kill the worker, if there is one; the next call starts another."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def _ask(self, request: dict[str, str], seconds: float) -> dict[str, Any] | None:
        """One request and its reply; None after a kill (time) or a crash (memory)."""
        self._ensure_started()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            reply = self._replies.get(timeout=max(seconds, 0.0))
        except (queue.Empty, OSError):
            reply = None
        if reply is None:
            self.timeouts += 1
            self.close()
            return None
        return json.loads(reply)

    def _ensure_started(self) -> None:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return
        if self._owner == os.getpid():
            self.close()
        self._process, self._owner, self._replies = None, os.getpid(), queue.Queue()
        self.starts += 1
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(_ROOT), str(self.seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
        )  # fmt: skip
        threading.Thread(target=_read, args=(self._process.stdout, self._replies), daemon=True).start()
        try:
            ready = self._replies.get(timeout=START_SECONDS)
        except queue.Empty:
            ready = None
        if ready is None:
            self.close()
            raise ReplicationError(
                "The grading process did not start. Is math-verify installed in this environment? "
                "Try: python -c 'import math_verify'"
            )


def _read(stream: IO[str], replies: queue.Queue[str | None]) -> None:
    """Pass each line on; None marks the end of the process."""
    try:
        for line in stream:
            replies.put(line)
    except ValueError:  # closed by the parent
        pass
    replies.put(None)


def serve(seconds: float) -> None:
    """Main loop of the worker: one JSON request a line on stdin, one JSON reply a line on what was stdout."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the libraries print must not be read as a reply
    logging.disable(logging.CRITICAL)
    _limit_memory()
    same_answer("1", "1")  # imports and grammar tables, before the clock runs
    same_answer(r"\frac{1}{2}", "x")
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        _limit_processor_time(seconds)
        request = json.loads(line)
        try:
            reply: dict[str, Any] = {"same": same_answer(request["answer"], request["gold"])}
        except UngradableGold as error:
            reply = {"ungradable": str(error)}
        except MemoryError:
            os._exit(1)  # the heap is in an unknown state
        except Exception as error:  # a parser's failure on strange input is a wrong answer, never a crash
            reply = {"same": False, "error": type(error).__name__}
        print(json.dumps(reply), file=replies, flush=True)


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, ValueError, OSError):  # no such limits on this system: the parent's clock remains
        pass


def _limit_processor_time(seconds: float) -> None:
    """Let the kernel end this process when one request uses far more processor time than its limit."""
    try:
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime + 2 * seconds) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    except (ImportError, ValueError, OSError):
        pass


_shared: Verifier | None = None
_shared_lock = threading.Lock()


def shared_verifier() -> Verifier:
    """The verifier that all reward functions of this process use; its worker ends with the process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Verifier()
            atexit.register(_shared.close)
        return _shared
