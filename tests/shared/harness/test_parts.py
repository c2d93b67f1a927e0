"""Parts of a run: every job in exactly one of them, and locks against mistakes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness import parts
from grpo_replications.shared.harness.jobs import Job
from grpo_replications.shared.harness.parts import Part, sole_writer

JOBS = {name: [Job(name, 1, {"threads": 1}, "", range(s, s + 1), False) for s in range(5)] for name in ("a", "b")}


@pytest.mark.parametrize("of", [1, 3, 10, 12])
def test_every_job_is_in_exactly_one_part(of: int) -> None:
    shares = [Part(number, of).of_jobs(JOBS) for number in range(1, of + 1)]
    keys = sorted(job.key for share in shares for jobs in share.values() for job in jobs)
    assert keys == sorted(job.key for jobs in JOBS.values() for job in jobs)
    sizes = [sum(map(len, share.values())) for share in shares]
    assert max(sizes) - min(sizes) <= 1 and all(jobs for share in shares for jobs in share.values())


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2", "1/2/3", ""])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ReplicationError, match="as in 3/8"):
        Part.parse(text)


def test_locks_keep_the_whole_and_other_divisions_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SECONDS_TO_WAIT", 0.01)

    def refused(part: Part | None) -> bool:
        try:
            with sole_writer(tmp_path, part, pytest.fail):
                return False
        except ReplicationError as error:
            return "is writing to" in str(error)

    with sole_writer(tmp_path, Part(1, 2), pytest.fail):
        assert [refused(part) for part in (Part(1, 2), Part(2, 2), Part(2, 3), None)] == [True, False, True, True]
    with sole_writer(tmp_path, None, pytest.fail):
        assert refused(None) and refused(Part(1, 2))
    assert not refused(None)


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def lockless(*_: object, **__: object) -> Iterator[None]:
        raise OSError(errno.ENOLCK, "No locks available")
        yield

    monkeypatch.setattr(parts, "FileLock", lockless)
    said: list[str] = []
    with sole_writer(tmp_path, Part(1, 2), said.append):
        assert len(said) == 1 and "has no locks" in said[0]
