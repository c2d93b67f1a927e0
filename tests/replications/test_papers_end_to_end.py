"""The real command on the smoke profile of each further paper: what it writes, and the same bytes when run again.

Kills, interruptions and resumption in another place are tested with the first paper (test_lambda_end_to_end).
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
from pathlib import Path

import pytest

from grpo_replications.shared.harness.measurements import MEASUREMENTS, load_measurements
from grpo_replications.shared.harness.papers import Paper
from tests.replications.test_lambda_end_to_end import ROOT, Results

FIRST = "lambda_grpo"  # has a test of its own
FURTHER = sorted(
    path.parent.name for path in (ROOT / "replications").glob("*/claims.toml") if path.parent.name != FIRST
)

REPEATED = {
    "grpo_sg": ("training-small-lr",),
    "sigma_identity": ("dynamic-sampling",),
}
"""The experiment that is run a second time: one that trains and samples. Else, the first."""

NOT_IN_MINIATURE = {
    "identifiability",
    "sensitivity",
    "sharpness-bound",
    "training",
    "training-small",
    "open-test-gradients",
    "real-gradients-small",
    "relabelling",
}
"""Experiments that fit over more prompts than `smoke` has, or lack settings there that claims read."""


class PaperResults(Results):
    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory)
        self.paper = Paper.load(ROOT / "replications" / name)
        self.profile = directory / self.paper.name / "smoke"

    def start(self, *options: str) -> subprocess.Popen[str]:
        return super().start(*options, paper=self.paper.slug)


@pytest.fixture(scope="module", params=FURTHER)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PaperResults:
    """The smoke profile of one paper, run once."""
    results = PaperResults(tmp_path_factory.mktemp("finished"), request.param)
    results.run()
    return results


@pytest.mark.slow
def test_the_command_leaves_everything_it_promises(finished: PaperResults) -> None:
    drawn = {path.name for path in (finished.profile / "figures").iterdir()}
    pictures = {name.removesuffix(".png") for name in drawn if name.endswith(".png")}
    assert pictures and pictures <= set(finished.paper.figures)
    assert drawn >= {f"{name}.{kind}" for name in pictures for kind in ("png", "pdf")}
    record = json.loads((finished.profile / "record.json").read_text())
    assert record["complete"]
    for name, plan in finished.paper.profile("smoke").plans.items():
        kept = record["experiments"][name]
        assert kept["settings"] == json.loads(json.dumps(plan.cells)) and kept["jobs"] == kept["jobs_finished"]
    assert finished.paper.facts.title in (finished.directory / "REPORT.md").read_text()
    with (finished.profile / "verdicts.csv").open(newline="") as file:
        verdicts = {row["id"]: row["verdict"] for row in csv.DictReader(file)}
    assert list(verdicts) == [check.id for check in finished.paper.checks]


@pytest.mark.slow
def test_every_experiment_has_finite_measurements(finished: PaperResults) -> None:
    frame = load_measurements(finished.profile / MEASUREMENTS)
    assert set(frame["experiment"]) == set(finished.paper.profile("smoke").plans)
    assert all(math.isfinite(value) for value in frame["value"])


@pytest.mark.slow
def test_every_metric_that_a_check_reads_is_measured(finished: PaperResults) -> None:
    frame = load_measurements(finished.profile / MEASUREMENTS)
    measured = set(zip(frame["experiment"], frame["metric"], strict=True))
    ran = set(frame["experiment"]) - NOT_IN_MINIATURE
    missing = {
        (check.experiment, check.metric)
        for check in finished.paper.checks
        if check.experiment in ran and not check.not_run_reason
    } - measured
    assert not missing


@pytest.mark.slow
def test_fresh_runs_again_and_finds_the_same(finished: PaperResults) -> None:
    before = finished.measurements
    first = next(iter(finished.paper.profile("smoke").plans))
    for name in REPEATED.get(finished.paper.name, (first,)):
        jobs = finished.jobs()
        drawn = {path: path.stat().st_mtime_ns for path in (finished.profile / "figures").iterdir()}
        finished.run("--fresh", "--only", name, "--measure-only")
        again = {job for job, stamp in finished.jobs().items() if stamp != jobs.get(job)}
        assert again and all(job.startswith(name) for job in again)
        assert finished.measurements == before
        assert {path: path.stat().st_mtime_ns for path in (finished.profile / "figures").iterdir()} == drawn
