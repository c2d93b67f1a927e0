"""The parts of a run: a job's key, its rows, its settings, its file, and the forecast of the time left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_replications.shared.harness import jobs
from grpo_replications.shared.harness.job_progress import Stopwatch, read_progress
from grpo_replications.shared.harness.jobs import Job, JobContext, Origin, check_rows, run_job, write_atomic
from grpo_replications.shared.harness.progress import Forecast, duration


def test_keys_depend_on_what_may_change_a_result() -> None:
    job = Job("e", 1, {"lr": 1, "threads": 1}, "lr=1", range(0, 1), False)
    same = replace(job, label="other words", settings={"threads": 1, "lr": 1})
    assert job.key == same.key
    others = [
        replace(job, version=2),
        replace(job, experiment="f"),
        replace(job, settings={"lr": 2, "threads": 1}),
        replace(job, settings={"lr": 1, "threads": 2}),
        replace(job, seeds=range(1, 2)),
        replace(job, seeds=range(0, 2)),
    ]
    assert len({job.key, *(other.key for other in others)}) == 7


ONE_SEED = Job("e", 1, {"threads": 1}, "", range(3, 4), False)
MANY_SEEDS = Job("e", 1, {"threads": 1}, "", range(0, 4), True)


@pytest.mark.parametrize(
    ("rows", "job", "message"),
    [
        ([], ONE_SEED, "at least one row"),
        ({"metric": "m", "value": 1}, ONE_SEED, "at least one row"),
        ([{"metric": "m"}], ONE_SEED, "needs a text 'metric' and a 'value'"),
        ([{"metric": "m", "value": 1, "sead": 0}], ONE_SEED, "needs a text"),
        ([{"metric": "m", "value": 1, "seed": 0}], ONE_SEED, "seed 0 in the job of seed 3"),
        ([{"metric": "m", "value": 1, "seed": 9}], MANY_SEEDS, "'seed' must be one of"),
        ([{"metric": "m", "value": 1}] * 2, ONE_SEED, "two rows with the same metric"),
    ],
)
def test_rows_are_checked(rows: list[dict[str, object]], job: Job, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_rows(rows, job)


def test_rows_become_columns() -> None:
    columns = check_rows(
        [{"metric": "m", "value": 2, "step": 5}, {"metric": "t", "value": 1, "timing": True}], ONE_SEED
    )
    assert columns == {
        "metric": ["m", "t"],
        "value": [2.0, 1.0],
        "seed": [3, 3],
        "step": [5, None],
        "timing": [False, True],
    }


def test_a_row_without_a_seed_stands_for_all_of_a_job_of_many() -> None:
    assert check_rows([{"metric": "m", "value": 2}], MANY_SEEDS)["seed"] == [None]


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_progress_is_written_now_and_then(tmp_path: Path) -> None:
    context, path = JobContext(tmp_path / "job"), tmp_path / "job.progress"
    context.progress(0.25)
    context.progress(0.5)  # too soon after the first
    assert read_progress(path).fraction == 0.25
    context.training({"step": 3, "steps": 6, "reward": float("nan"), "silent": 0.5})  # said on its own, and at once
    context.training({"step": 4})
    said = read_progress(path)
    assert said.fraction == 0.5 and said.training == {"step": 3, "steps": 6, "silent": 0.5}
    path.write_text("0.2500")
    assert read_progress(path) is None, "not in our words"
    assert not (tmp_path / "job").exists() and context.directory.is_dir()


def test_the_time_left_of_a_job_that_went_on_is_of_its_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watch = Stopwatch()
    assert watch.read({}).remaining is None
    now[0] = 110.0
    watch.note(0.8)  # from a checkpoint
    now[0] = 120.0
    watch.note(0.9)
    assert watch.read({}).remaining == pytest.approx(10.0)
    now[0] = 124.0
    assert watch.read({}).remaining == pytest.approx(6.0) and watch.read({}).elapsed == 24.0


def test_checkpoints_go_when_a_job_is_done_and_stay_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(job: Job, *_: object) -> dict[str, object]:
        (tmp_path / job.stem / "0" / jobs.CHECKPOINTS / "checkpoint-5").mkdir(parents=True, exist_ok=True)
        (tmp_path / job.stem / "0" / "groups.jsonl").touch()
        if failing:
            raise ValueError("no")
        return {}

    monkeypatch.setattr(jobs, "_measure", measure)
    for failing, left in ((True, 1), (False, 0)):
        outcome = run_job(ONE_SEED, tmp_path, tmp_path, Origin(None, False, "", ""), None, None)
        assert outcome.status == ("failed" if failing else "done")
        assert len(list(tmp_path.rglob("checkpoint-5"))) == left
    assert (tmp_path / ONE_SEED.stem / "0" / "groups.jsonl").exists()


def test_the_forecast_learns_the_pace() -> None:
    forecast = Forecast({"first": 10.0, "second": 30.0})
    assert forecast.remaining("first", 0.0, 0.0) == 40.0
    assert forecast.remaining("first", 0.5, 10.0) == pytest.approx(10 + 60)  # twice as slow as foreseen
    forecast.finish("first", 20.0)
    assert forecast.remaining("second", 0.0, 0.0) == pytest.approx(60)
    assert forecast.remaining("second", 0.5, 15.0) == pytest.approx(15)
    assert [duration(seconds) for seconds in (8, 240, 7500)] == ["8 s", "4 min", "2 h 05 min"]
