"""The real command on the smoke profile: everything it writes, and the same bytes however it was interrupted."""

from __future__ import annotations

import bz2
import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_replications.shared.harness.measurements import MEASUREMENTS, TIMINGS, load_measurements
from grpo_replications.shared.harness.papers import Paper

ROOT = Path(__file__).parents[2]
PAPER = Paper.load(ROOT / "replications" / "lambda_grpo")
PROFILE = PAPER.profile("smoke")
EXPERIMENT, JOBS_BEFORE_THE_KILL = "table1-tabular", 3  # of twelve jobs


class Results:
    """A results directory and the command that fills it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.profile = directory / "lambda_grpo" / "smoke"

    def start(self, *options: str, paper: str = "lambda-grpo") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "replications", "run", paper, "--profile", "smoke", *options]
        environment = {**os.environ, "REPLICATE_RESULTS": str(self.directory)}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, start_new_session=True, **streams)

    def run(self, *options: str) -> str:
        process = self.start(*options)
        printed, _ = process.communicate(timeout=600)
        assert process.returncode == 0, printed
        return printed

    @property
    def measurements(self) -> bytes:
        return (self.profile / MEASUREMENTS).read_bytes()

    def rows(self, of: str) -> list[str]:
        """Measurements of the experiments whose names start with `of`, as the file has them."""
        return [line for line in bz2.decompress(self.measurements).decode().splitlines() if line.startswith(of)]

    def jobs(self) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (self.profile / "jobs").glob("*.json")}


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def group_is_gone(leader: int) -> bool:
    """Whether no process of a session is left but those that have ended and wait to be collected."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3]) == leader:
            return False
    return True


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The smoke profile, run once without a disturbance."""
    results = Results(tmp_path_factory.mktemp("finished"))
    results.run()
    return results


@pytest.mark.slow
def test_the_command_leaves_everything_it_promises(finished: Results) -> None:
    for name in ("record.json", MEASUREMENTS, TIMINGS, "verdicts.csv"):
        assert (finished.profile / name).stat().st_size > 0, name
    for name in ("REPORT.md", "index.html", "numbers.csv", "numbers.tex"):
        assert (finished.directory / name).stat().st_size > 0, name
    drawn = {path.name for path in (finished.profile / "figures").iterdir()}
    pictures = {name.removesuffix(".png") for name in drawn if name.endswith(".png")}
    assert pictures and pictures <= set(PAPER.figures)
    assert drawn >= {f"{name}.{kind}" for name in pictures for kind in ("png", "pdf")}

    record = json.loads((finished.profile / "record.json").read_text())
    assert record["complete"] and record["command"] == "replicate run lambda-grpo --profile smoke"
    for name, plan in PROFILE.plans.items():
        kept = record["experiments"][name]
        assert kept["settings"] == json.loads(json.dumps(plan.cells)) and kept["jobs"] == kept["jobs_finished"]
    report = (finished.directory / "REPORT.md").read_text()
    assert PAPER.facts.title in report
    with (finished.profile / "verdicts.csv").open(newline="") as file:
        verdicts = {row["id"]: row["verdict"] for row in csv.DictReader(file)}
    assert list(verdicts) == [check.id for check in PAPER.checks]


@pytest.mark.slow
def test_what_is_measured_is_complete_and_makes_sense(finished: Results) -> None:
    frame = load_measurements(finished.profile / MEASUREMENTS)
    timed = load_measurements(finished.profile / TIMINGS)
    assert set(frame["experiment"]) | set(timed["experiment"]) == set(PROFILE.plans)
    assert set(timed["experiment"]) == {"overhead", "weights-cost"} and (timed["value"] > 0).all()
    assert all(math.isfinite(value) for value in frame["value"])
    theorem = frame[frame["experiment"] == "theorem"]
    errors = theorem[theorem["metric"].isin(["value_error", "gradient_error"])]
    assert len(errors) == 4 and errors["value"].max() < 1e-10
    for name in ("table1-tabular", "table1-lm", "table1-best"):
        share = frame[(frame["experiment"] == name) & (frame["metric"] == "target_frequency")]
        assert share["value"].between(0, 1).all() and share["value"].nunique() > 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_killed_in_the_middle_and_repeated_in_another_place_gives_the_same_bytes(
    finished: Results, tmp_path: Path
) -> None:
    killed = Results(tmp_path)
    part = ("--only", EXPERIMENT, "--measure-only")  # a training that is killed: test_checkpoints, test_rehearsal
    process = killed.start(*part)
    wait_for(lambda: len(killed.jobs()) >= JOBS_BEFORE_THE_KILL, 300)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: group_is_gone(process.pid), 30)
    kept = killed.jobs()
    ours = [name for name in finished.jobs() if name.startswith(EXPERIMENT)]
    assert len(kept) < len(ours) and not (killed.profile / MEASUREMENTS).exists()
    killed.run(*part)
    assert kept.items() <= killed.jobs().items(), "finished jobs must not be repeated"
    assert killed.rows(EXPERIMENT) and killed.rows(EXPERIMENT) == finished.rows(EXPERIMENT)
