"""Tracking: what a run is called, what is logged, that no result depends on it and that nothing about it is fatal."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grpo_replications.shared import tracking
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import Job, Origin, run_job
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.runs import Options, run_profile
from grpo_replications.shared.tracking import RunFacts, TrackedRun, Tracking, check_backend, tracked, wandb_mode

FACTS = RunFacts("name", "group", ("tag",), {"lr": 1.0})
ORIGIN = Origin("0123456789abcdef", True, "print", "machine")


class Recorder:
    """A backend that remembers."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, int, dict[str, float]]] = []
        self.summary: dict[str, float] = {}
        self.closed = False

    def log(self, section: str, step: int, metrics: Mapping[str, float]) -> None:
        self.logged.append((section, step, dict(metrics)))

    def summarize(self, metrics: Mapping[str, float]) -> None:
        self.summary.update(metrics)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_PROJECT", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def measure(toy: Path, directory: Path, experiment: str = "draw", own: Tracking | None = None) -> dict[str, Any]:
    """The rows of one job of the toy paper, run in this process."""
    settings = {"draw": {"scale": 2.0, "kind": "a"}, "batch": {"lr": 0.5, "method": "new"}}[experiment]
    label = ";".join(f"{key}={value}" for key, value in list(settings.items())[-1:])
    job = Job(experiment, 1, {"threads": 1, **settings}, label, range(2), experiment == "batch")
    assert run_job(job, toy, directory, ORIGIN, own, None).status == "done"
    rows = json.loads((directory / f"{job.stem}.json").read_text())["rows"]
    kept = [index for index, timing in enumerate(rows["timing"]) if not timing]
    return {name: [column[index] for index in kept] for name, column in rows.items()}


@pytest.mark.parametrize("experiment", ["draw", "batch"])
def test_a_job_is_one_run_named_by_what_it_is(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: str
) -> None:
    seen: list[RunFacts] = []
    recorder = Recorder()
    monkeypatch.setitem(tracking._WRITERS, "wandb", lambda _, facts: seen.append(facts) or recorder)
    rows = measure(toy, tmp_path / "tracked", experiment, Tracking("wandb", tmp_path))
    assert rows == measure(toy, tmp_path / "plain", experiment)
    assert recorder.closed and tracking.current() is None
    if experiment == "draw":
        assert seen[0].name == "draw kind=a seed-0"
        assert seen[0].tags == ("draw", "seed-0", "commit-0123456789ab+")
        assert recorder.summary["residual"] == 0.0 and not recorder.logged
    else:  # seeds at once: means over them, step by step
        assert seen[0].name == "batch method=new seeds-0-1" and "method-new" in seen[0].tags
        assert [(section, step) for section, step, _ in recorder.logged] == [("measured", 0), ("measured", 10)]
        expected = sum(v for v, step in zip(rows["value"], rows["step"]) if step == 10) / 2
        assert recorder.logged[1][2]["score"] == pytest.approx(expected)


def test_a_backend_that_fails_is_left_alone(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> Recorder:
        raise OSError("disk full")

    monkeypatch.setitem(tracking._WRITERS, "wandb", broken)
    assert measure(toy, tmp_path / "a", own=Tracking("wandb", tmp_path)) == measure(toy, tmp_path / "b")

    class Half(Recorder):
        log = broken

    capsys.readouterr()
    run = TrackedRun(Half)
    run.log("train", 1, {"loss": 1.0})
    run.log("train", 2, {"loss": 1.0})
    run.close()
    assert capsys.readouterr().err.count("Tracking stopped: OSError: disk full") == 1


def test_training_runs_of_a_job_have_sections_of_their_own() -> None:
    recorder = Recorder()
    run = TrackedRun(lambda: recorder)
    assert [run.section("train"), run.section("train")] == ["train", "train-2"]
    run.log("train", 1, {"loss": 0.5, "word": "x", "odd": float("nan"), "yes": True})
    assert recorder.logged == [("train", 1, {"loss": 0.5})]


def test_wrong_and_absent_backends_are_refused_before_anything_runs(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ReplicationError, match="one of none, wandb, tensorboard, not 'mlflow'"):
        options = Options(track="mlflow")
        run_profile(Paper.load(toy), "smoke", tmp_path / "results", toy, Console(quiet=True), options)
    assert not (tmp_path / "results").exists()
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ReplicationError, match="pip install tensorboard"):
        check_backend("tensorboard")
    check_backend("none")


def test_wandb_is_offline_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Tracking("wandb", tmp_path / "curves")
    assert wandb_mode() == "offline" and "wandb has no key here" in tracking.where_it_goes(own)
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert wandb_mode() == "online" and "secret" not in tracking.where_it_goes(own)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode() == "disabled"


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("wandb"), reason="wandb is not installed")
def test_wandb_keeps_a_run_offline_and_changes_no_row(toy: Path, tmp_path: Path) -> None:
    own = Tracking("wandb", tmp_path / "curves", ("toy-paper", "smoke"))
    assert measure(toy, tmp_path / "a", own=own) == measure(toy, tmp_path / "b")
    assert list((tmp_path / "curves" / "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="tensorboard is not installed")
def test_tensorboard_holds_the_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracked(Tracking("tensorboard", tmp_path), FACTS) as run:
        run.log("train", 3, {"loss": 0.25})
    events = EventAccumulator(str(tmp_path / "name")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("train/loss")] == [(3, 0.25)]
