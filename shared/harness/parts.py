"""Runs that share a directory of results: the whole of a profile, or its parts side by side on many machines.

A part, `--part 3/8`, has every eighth job of the list from the third on.  Which part has a job depends on nothing but
the list, so parts need no lock to keep out of each other's way; the locks below are for mistakes: the same part twice,
or the whole run beside its parts.  They are advisory locks (`flock`), which some network file systems do not have.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import Job

LOCK = ".lock"
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
SECONDS_TO_WAIT = 2.0  # for a lock that another part holds for a moment only, to look whether the whole run has it


@dataclass(frozen=True)
class Part:
    """Part `number` of `of`, counted from 1."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """`3/8` as it is typed; ReplicationError for anything else."""
        found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ReplicationError(f"--part takes K/N with K from 1 to N, as in 3/8, not '{text}'.")
        return cls(int(found[1]), int(found[2]))

    @property
    def suffix(self) -> str:
        """Of the names of its files: `-3-of-8`."""
        return f"-{self.number}-of-{self.of}"

    def __str__(self) -> str:
        return f"part {self.number} of {self.of}"

    def of_jobs(self, jobs: Mapping[str, list[Job]]) -> dict[str, list[Job]]:
        """Its share of the jobs by experiment, dealt out like cards; experiments of which it has none are left out."""
        everything = [job for list_ in jobs.values() for job in list_]
        own = {job.key for job in everything[self.number - 1 :: self.of]}
        shares = {name: [job for job in list_ if job.key in own] for name, list_ in jobs.items()}
        return {name: share for name, share in shares.items() if share}


@contextmanager
def sole_writer(jobs: Path, part: Part | None, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the locks of a run for the block; ReplicationError where another run has them.

    `say` prints the line that the file system has no locks, where that is so.
    """
    directory = jobs.parent
    busy = ReplicationError(f"Another run is writing to {directory}; wait for it or end it.")
    if part is not None:
        busy = ReplicationError(f"Another run of {part}, or of the whole, is writing to {directory}; wait or end it.")
    with ExitStack() as held:
        try:
            held.enter_context(_lock(jobs / f"{LOCK}{part.suffix if part else ''}"))
            # Whoever comes second sees the first one's lock: each takes its own before it looks at the others'.
            others = [jobs / LOCK] if part else []
            others += [path for path in sorted(jobs.glob(f"{LOCK}-*-of-*")) if not (part and _same(path, part))]
            for other in others:
                with _lock(other):
                    pass
        except Timeout:
            raise busy from None
        except (NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NO_LOCKS:
                raise
            say(f"The file system of {directory} has no locks: see to it that no other run writes there.")
        yield


def _lock(path: Path) -> FileLock:
    return FileLock(path, timeout=SECONDS_TO_WAIT)


def _same(path: Path, part: Part) -> bool:
    """Whether a lock is that of a part of the same division."""
    return path.name.endswith(f"-of-{part.of}")
