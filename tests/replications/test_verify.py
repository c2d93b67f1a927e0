"""`replicate verify` on the toy paper: the same, a value altered, a setting gone, too little time, a stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_replications.replications import places
from grpo_replications.replications.__main__ import main
from grpo_replications.shared.harness import executors, measuring_again
from grpo_replications.shared.harness.jobs import Job, Origin, Outcome, run_job
from grpo_replications.shared.harness.measurements import MEASUREMENTS, read_rows, write_measurements
from grpo_replications.shared.harness.workers import stop_workers

Run = Callable[..., tuple[int, str]]
MARKS = "<!-- generated:findings-toy-paper -->\n<!-- /generated:findings-toy-paper -->\n"


def here(jobs: list[Job], paper: Path, directory: Path, origin: Origin, *_: object) -> Iterator[tuple[Job, Outcome]]:
    """`run_jobs` without processes of its own, which take seconds to start."""
    for job in jobs:
        yield job, run_job(job, paper, directory, origin, None, None)


@pytest.fixture(scope="module", autouse=True)
def _no_workers_left() -> Iterator[None]:
    yield
    stop_workers()


@pytest.fixture
def replicate(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in a checkout of its own, whose committed results are those of the toy's quick profile."""
    (tmp_path / "replications").mkdir()
    (tmp_path / "pyproject.toml").touch()
    (toy / "README.md").write_text(MARKS)
    monkeypatch.delenv(places.VARIABLE, raising=False)
    monkeypatch.setattr(places, "ROOT", tmp_path)
    monkeypatch.setattr("grpo_replications.replications.__main__.ROOT", tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        code = main(arguments, papers=toy.parent)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    with monkeypatch.context() as patch:
        patch.setattr(executors, "run_jobs", here)
        assert run("run", "toy-paper", "--update-committed", "--measure-only")[0] == 0
    assert run("verdicts", "toy-paper")[0] == 0
    return run


def alter(directory: Path, position: int, factor: float) -> None:
    rows = read_rows(directory / MEASUREMENTS)
    rows.loc[position, "value"] *= factor
    write_measurements(rows, directory / MEASUREMENTS)


def test_from_the_same_numbers_to_a_changed_one(
    replicate: Run, toy: Path, calls: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results" / "toy_paper" / "quick"
    ran = len(calls())

    # Interrupted after two jobs, the same command measures the rest and no job twice; the next one all of them.
    def interrupted(*arguments: object) -> Iterator[tuple[Job, Outcome]]:
        for job, outcome in here(*arguments):
            if len(calls()) - ran > 2:
                raise KeyboardInterrupt
            yield job, outcome

    with monkeypatch.context() as patch:
        patch.setattr(measuring_again, "run_jobs", interrupted)
        assert replicate("verify", "toy-paper")[0] == 130
    code, printed = replicate("verify", "toy-paper", "--update-committed")
    assert code == 0, printed
    assert "10 of 10 jobs of 2 experiments measured again from an unknown commit" in printed
    assert "10 identical, none different" in printed and "left out" not in printed
    assert len(calls()) - ran == len(set(calls()[ran:])) == 10
    assert not list((tmp_path / "results-mine" / "verify").iterdir())

    # What is kept is told on the pages, until the measurements are replaced.
    kept = json.loads((results / "verification.json").read_text())
    assert {check["outcome"] for check in kept["checks"]} == {"identical"} and kept["seed"] == 0
    assert replicate("report")[0] == 0
    line = "10 of 10 jobs of 2 experiments, from an unknown commit"
    for page in (tmp_path / "results" / "REPORT.md", tmp_path / "results" / "index.html", toy / "README.md"):
        assert f"Measured again: {line}" in page.read_text(), page
    record = json.loads((results / "record.json").read_text())
    record["experiments"]["batch"]["job_seconds"] += 1
    (results / "record.json").write_text(json.dumps(record))
    replicate("report")
    report = (tmp_path / "results" / "REPORT.md").read_text()
    assert "since then measured anew, so that this says nothing of it: `batch`." in report

    # A rounding in the ninth digit is one; a value that is another is named, and nothing else is.
    rows = read_rows(results / MEASUREMENTS)
    position = int(rows.index[(rows["metric"] == "score") & (rows["value"].abs() > 1)][0])
    alter(results, position, 1 + 1e-8)
    code, printed = replicate("verify", "toy-paper", "--only", "batch", "--json")
    found = json.loads(printed)
    assert code == 0 and [one["outcome"] for one in found["checks"]].count("within rounding") == 1
    alter(results, position, 1.25)
    code, printed = replicate("verify", "toy-paper", "--only", "batch")
    row = rows.loc[position]
    assert (
        code == 1
        and "4 of 4 jobs of 1 experiment" in printed
        and "3 identical, 1 different: `batch` (1 job, relative difference up to 0.2)" in printed
    )
    (told,) = [line for line in printed.splitlines() if line.startswith("different")]
    assert f"batch ({row['settings']}, seeds 0-7): 1 of 16 values differ, by at most 0.2 of its size; score, " in told
    assert f"seed {row['seed']}, step {int(row['step'])}: committed {1.25 * row['value']:.4g}"[:40] in told

    # Settings that the profile has no more, and an experiment that the time does not allow, are said and no error.
    profiles = toy / "profiles.toml"
    text = profiles.read_text()
    profiles.write_text(text.replace('kind = ["a", "b"]', 'kind = ["a"]'))
    record["experiments"]["batch"]["job_seconds"] = 4 * 3600
    (results / "record.json").write_text(json.dumps(record))
    code, printed = replicate("verify", "toy-paper", "--budget", "5")
    assert code == 0 and "3 of 10 jobs of 2 experiments" in printed and "none different" in printed
    assert "1 experiment was left out: `batch` (about 60 min a job)" in printed
    assert "3 jobs of `draw` (its settings or seeds are no longer those of the profile)" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "full"], "has no results"),
        (["--only", "x"], "No experiment of profile 'quick' is called 'x'"),
        (["--jobs", "0"], "--jobs must be more than 0"),
        (["--update-committed", "--only", "batch"], "goes without --only"),
    ],
)
def test_wrong_requests_are_answered_in_one_line(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    results = tmp_path / "results" / "toy_paper" / "quick"
    results.mkdir(parents=True)
    (results / "record.json").write_text('{"experiments": {}}')
    places_ = [] if "--update-committed" in arguments else ["--results", str(tmp_path / "results")]
    assert main(["verify", "toy-paper", *arguments, *places_], papers=toy.parent) == 2
    assert message in capsys.readouterr().err
