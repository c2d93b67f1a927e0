"""`replicate status`: what it says of runs that go on, have ended, were killed, or run elsewhere."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_replications.replications.__main__ import main
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.job_progress import JobProgress
from grpo_replications.shared.harness.jobs import Job, JobContext
from grpo_replications.shared.harness.parts import Part
from grpo_replications.shared.harness.run_file import RunFile
from grpo_replications.shared.harness.run_status import RunStatus, read_runs
from grpo_replications.shared.saved_runs import RUN_FILE

JOBS = [Job("draw", 1, {"threads": 1, "kind": kind}, f"kind={kind}", range(1), False) for kind in "abcde"]
REQUEST = {"command": "replicate run toy-paper", "executor": "local", "only": None, "seeds": None}
Status = Callable[..., str]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    jobs = tmp_path / "results" / "toy_paper" / "quick" / "jobs"
    jobs.mkdir(parents=True)
    return jobs


@pytest.fixture
def status(directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Status:
    monkeypatch.setenv("COLUMNS", "60")  # lines are as long as they are

    def ask(*arguments: str) -> str:
        assert main(["status", "--results", str(directory.parents[2]), *arguments]) == 0
        return capsys.readouterr().out

    return ask


def begun(directory: Path, part: Part | None = None) -> RunFile:
    """A run with one job done, one failed, one at step 12 of 40, one without a step, one that waits."""
    run = RunFile(directory, part, {"draw": JOBS}, "2026-01-01T00:00:00+00:00", REQUEST)
    run.__enter__()
    (directory / f"{JOBS[0].stem}.json").write_text("{}")
    run.fail(JOBS[1], "ValueError: no")
    training = JobContext(directory / JOBS[2].stem)
    training.progress(0.0)
    training.training({"step": 12, "steps": 40, "reward": 0.456, "silent": 0.25, "tokens_per_second": 1310.4})
    JobContext(directory / JOBS[3].stem).progress(0.5)
    run._last = 0.0
    run.beat("draw", 3600.0)
    return run


def only_run(directory: Path) -> RunStatus:
    (run,) = read_runs(directory.parent)
    return run


def test_a_run_that_goes_on_has_a_line_for_every_running_job(directory: Path, status: Status) -> None:
    begun(directory)
    for ending in (".error.txt", ".log"):
        (directory / f"{JOBS[1].stem}{ending}").write_text("Traceback")
    lines = status("toy-paper").splitlines()
    assert f"process {os.getpid()} on this machine), about 60 min left" in lines[0]
    assert lines[1:] == [
        "  1 of 5 jobs done, 2 running, 1 failed, 1 waiting",
        "  draw (kind=c, seed 0)  0 %, step 12 of 40, reward 0.456, silent 25 %, 1,310 tokens/s, for 0 s",
        "  draw (kind=d, seed 0)  50 %, for 0 s, 0 s left",
        "  draw (kind=b, seed 0)  failed: ValueError: no",
        f"    see {directory / JOBS[1].stem}.error.txt",
        f"    see {directory / JOBS[1].stem}.log",
    ]
    (found,) = json.loads(status("--json"))
    assert found["record"] is None and found["runs"][0]["counts"] == {
        "done": 1,
        "running": 2,
        "failed": 1,
        "waiting": 1,
    }
    assert found["runs"][0]["jobs"][2]["progress"]["training"]["silent"] == 0.25


def test_a_killed_run_is_told_from_one_that_goes_on(directory: Path, status: Status) -> None:
    begun(directory)
    checkpoint = directory / JOBS[2].stem / "0" / "checkpoints" / "checkpoint-10"
    checkpoint.mkdir(parents=True)
    (checkpoint / RUN_FILE).write_text("{}")
    facts = json.loads((directory / ".run").read_text())
    (directory / ".run").write_text(json.dumps({**facts, "process_started": "an earlier process of that number"}))
    printed = status()
    assert "toy-paper, quick: killed: no process of it is alive" in printed and "3 waiting" in printed
    assert "draw (kind=c, seed 0)  was running: 0 %, step 12 of 40" in printed and "; goes on from step 10\n" in printed
    assert "It goes on by the same command: replicate run toy-paper" in printed

    (directory / ".run").write_text(json.dumps({**facts, "host": "elsewhere"}))
    assert "on elsewhere, last sign of life 0 s ago" in status()
    long_ago = time.time() - 3600
    os.utime(directory / ".alive", (long_ago, long_ago))
    assert JobProgress(0.5, 10.0, 30.0).after(20.0) == JobProgress(0.5, 30.0, 10.0), "as time goes by"
    assert "killed: no sign of life for 60 min" in status()


@pytest.mark.parametrize(
    ("error", "state", "said"),
    [
        (None, "failed", "finished, some jobs failed (0 s ago); no process of it is running"),
        (KeyboardInterrupt(), "interrupted", "It goes on by the same command"),
        (ReplicationError("The hub is gone."), "stopped", "stopped: The hub is gone."),
    ],
)
def test_how_a_run_ended(directory: Path, status: Status, error: BaseException | None, state: str, said: str) -> None:
    run = begun(directory)
    run.__exit__(type(error) if error else None, error, None)
    assert only_run(directory).state == state and said in status()
    assert only_run(directory).unfinished == (error is not None)


def test_parts_have_their_own_lines_until_the_whole_follows(directory: Path, status: Status) -> None:
    begun(directory)
    for number in (1, 2):
        begun(directory, Part(number, 2))
    assert [run.part for run in read_runs(directory.parent)] == ["part 1 of 2", "part 2 of 2"]
    assert "toy-paper, quick, part 2 of 2: running" in status()
    begun(directory)
    assert only_run(directory).part is None


def test_results_without_a_run_are_told_by_their_record(directory: Path, status: Status) -> None:
    entries = {"draw": {"jobs": 6, "jobs_finished": 5}}
    record = {"experiments": entries, "finished": "2026-01-01", "complete": False}
    (directory.parent / "record.json").write_text(json.dumps(record))
    assert status() == (
        "toy-paper, quick: results of 2026-01-01, 5 of 6 jobs (a part of the profile); no run is going on\n"
    )
    (directory / ".run").write_text("{half a fi")
    assert "5 of 6 jobs" in status(), "what is damaged is no run"


def test_nothing_to_tell_is_one_line(status: Status, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "toy-paper", "--profile", "full", "--results", "nowhere"]) == 2
    assert "No run of toy-paper in profile full has been under" in capsys.readouterr().err
