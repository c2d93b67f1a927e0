"""Whole runs of a toy paper: resumption after every kind of death, reproducible seeds, honest records."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.measurements import MEASUREMENTS, TIMINGS, load_measurements
from grpo_replications.shared.harness.outcomes import evaluate_profile
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.partial import results_so_far
from grpo_replications.shared.harness.parts import Part
from grpo_replications.shared.harness.run_status import read_runs
from grpo_replications.shared.harness.runs import Options, Result, run_profile
from grpo_replications.shared.harness.workers import stop_workers
from grpo_replications.shared.saved_runs import FOLDER, RUN_FILE

ROOT = Path(__file__).resolve().parents[3]
Calls = Callable[[], list[str]]


def text(path: Path) -> str:
    return bz2.decompress(path.read_bytes()).decode()


class Runner:
    """Runs the toy paper in this process (its jobs in workers) and keeps what was printed."""

    def __init__(self, toy: Path, results: Path) -> None:
        self.toy, self.results, self.printed = toy, results, ""
        self.root = toy.parents[1]  # no checkout: nobody else changes its source meanwhile

    def __call__(self, profile: str = "smoke", terminal: bool = False, **options: object) -> Result:
        stream = io.StringIO()
        console = Console(file=stream, width=200, force_terminal=terminal)
        chosen = Options(**{"workers": 1, "command": "replicate run toy-paper", **options})
        try:
            return run_profile(Paper.load(self.toy), profile, self.results, self.root, console, chosen)
        finally:
            self.printed = stream.getvalue()

    def file(self, name: str, profile: str = "smoke") -> Path:
        return self.results / "toy_paper" / profile / name

    def jobs(self, profile: str = "smoke") -> list[Path]:
        return sorted(self.file("jobs", profile).glob("*.json"))


@pytest.fixture
def run(toy: Path, tmp_path: Path) -> Runner:
    return Runner(toy, tmp_path / "results")


@pytest.fixture(scope="module", autouse=True)
def _no_workers_left() -> Iterator[None]:
    yield
    stop_workers()


def test_a_run_writes_everything_and_a_second_one_does_nothing(run: Runner, calls: Calls) -> None:
    assert run("quick", workers=None).failures == []
    assert len(calls()) == 10
    assert "10 of 10 jobs to do, 0 already done" in run.printed and "60 s" in run.printed
    before = {path.name: path.read_bytes() for path in run.file("", "quick").iterdir() if path.is_file()}
    assert set(before) >= {"record.json", MEASUREMENTS, TIMINGS}
    run("quick", workers=None)
    assert len(calls()) == 10
    assert "0 of 10 jobs to do, 10 already done" in run.printed
    assert {path.name: path.read_bytes() for path in run.file("", "quick").iterdir() if path.is_file()} == before


def test_measurements_are_tidy_and_timings_are_apart(run: Runner) -> None:
    run("quick")
    lines = text(run.file(MEASUREMENTS, "quick")).splitlines()
    assert lines[0] == "experiment,settings,seed,step,metric,value"
    assert "seconds" not in text(run.file(MEASUREMENTS, "quick"))
    assert text(run.file(TIMINGS, "quick")).count("seconds") == 6
    frame = load_measurements(run.file(MEASUREMENTS, "quick"))
    assert list(dict.fromkeys(frame["experiment"])) == ["draw", "batch"]
    batch = frame[frame["experiment"] == "batch"]
    assert set(batch["lr"]) == {0.5, 1.0} and set(batch["step"]) == {0, 10} and set(batch["seed"]) == set(range(8))
    assert frame[frame["experiment"] == "draw"]["lr"].isna().all()
    keys = batch[["settings", "metric", "step", "seed"]].values.tolist()
    assert keys == sorted(keys)


def test_the_record_says_what_ran(run: Runner) -> None:
    run("quick")
    record = json.loads(run.file("record.json", "quick").read_text())
    draw = record["experiments"]["draw"]
    assert record["command"] == "replicate run toy-paper" and record["complete"]
    assert draw["settings"] == [{"threads": 1, "scale": 2.0, "kind": kind} for kind in "ab"]
    assert (draw["seeds"], draw["jobs"], draw["jobs_finished"]) == ("0-2", 6, 6)
    assert draw["defaults"] == {"kind": "a"}
    assert draw["peak_memory_gib"] > 0 and draw["job_seconds"] > 0
    assert record["machine"]["cores"] >= 1 and "torch" in record["packages"]
    assert record["started"] <= record["finished"]
    assert not record["uncommitted_changes"] and record["diff_sha256"] is None  # the root is no checkout


def test_the_record_of_new_source_has_its_patch(run: Runner, toy: Path) -> None:
    git = ["git", "-C", str(run.root), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", str(run.root)], check=True)
    (run.root / "replications").mkdir()
    (run.root / "replications" / "README.md").write_text("What git knows of the checkout.")
    subprocess.run([*git, "add", "replications"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    run.toy = toy.rename(run.root / "replications" / "toy_paper")
    run()
    record = json.loads(run.file("record.json").read_text())
    patch = run.file("diff.patch").read_bytes()
    assert record["uncommitted_changes"] and record["diff_sha256"] == hashlib.sha256(patch).hexdigest()
    for name in ("claims.toml", "profiles.toml", "experiments.py", "figures.py"):
        assert f"+++ b/replications/toy_paper/{name}".encode() in patch


def test_values_that_are_not_finite_are_said(run: Runner, toy: Path) -> None:
    run()
    assert "not finite" not in run.printed
    code = (toy / "experiments.py").read_text()
    (toy / "experiments.py").write_text(code.replace('"residual", "value": 0.0', '"residual", "value": float("nan")'))
    run(fresh=True)
    assert "draw: 1 values of residual are not finite, first with kind=a" in run.printed


def test_what_a_job_prints_and_keeps_stays_with_the_job(run: Runner) -> None:
    run("quick")
    assert "words on the terminal" not in run.printed
    assert all("words" in path.read_text() for path in run.file("jobs", "quick").glob("draw-*.log"))
    assert len(list(run.file("jobs", "quick").glob("batch-*/log.txt"))) == 4
    assert not list(run.file("jobs", "quick").glob("*.progress"))


def test_a_seed_decides_everything_and_processes_and_parts_decide_nothing(run: Runner, tmp_path: Path) -> None:
    (run.toy / "torch").touch()
    run("quick", workers=1)
    by_parts = Runner(run.toy, tmp_path / "again")
    for number in (2, 1):
        assert by_parts("quick", workers=2, part=Part(number, 2)).jobs == 5
        assert not by_parts.file(MEASUREMENTS, "quick").exists()
    criteria = json.loads(by_parts.file("jobs/.criteria", "quick").read_text())
    assert {one["jobs_before"] for kept in criteria.values() for one in kept} == {0}, "kept before the first job of all"
    by_parts("quick", workers=2)
    assert "0 of 10 jobs to do, 10 already done" in by_parts.printed
    name = MEASUREMENTS
    assert run.file(name, "quick").read_bytes() == by_parts.file(name, "quick").read_bytes()
    frame = load_measurements(run.file(name, "quick"))
    draws = frame[frame["metric"].isin(["py", "np", "torch"]) & (frame["kind"] == "a")]
    assert draws["value"].nunique() == 9  # three seeds, three generators
    assert set(frame.loc[frame["metric"].isin(["threads", "omp"]), "value"]) == {1}


def test_threads_are_set_and_are_part_of_the_key(run: Runner, calls: Calls) -> None:
    (run.toy / "torch").touch()
    run()
    profiles = (run.toy / "profiles.toml").read_text()
    (run.toy / "profiles.toml").write_text(profiles.replace("[smoke.draw]", "[smoke.draw]\nthreads = 2"))
    run()
    assert len(calls()) == 2
    frame = load_measurements(run.file(MEASUREMENTS))
    assert set(frame.loc[frame["metric"].isin(["threads", "omp"]), "value"]) == {2}


def test_a_changed_setting_is_a_new_job_and_a_changed_version_too(run: Runner, calls: Calls) -> None:
    run()
    profiles = (run.toy / "profiles.toml").read_text()
    (run.toy / "profiles.toml").write_text(profiles.replace("scale = 2.0", "scale = 3.0"))
    run()
    assert len(calls()) == 2
    code = (run.toy / "experiments.py").read_text()
    (run.toy / "experiments.py").write_text(code.replace("three generators", "three generators again"))
    run()
    assert len(calls()) == 2 and "1 of 1 results come from an earlier version of the source" in run.printed
    assert json.loads(run.file("record.json").read_text())["experiments"]["draw"]["jobs_from_other_source"] == 1
    (run.toy / "experiments.py").write_text(code.replace('three generators"', 'three generators", version=2'))
    run()
    assert len(calls()) == 3 and "earlier version" not in run.printed


def test_fresh_forgets_only_what_it_runs(run: Runner, calls: Calls) -> None:
    run("quick")
    before = run.file(MEASUREMENTS, "quick").read_bytes()
    run("quick", fresh=True, only="draw")
    assert len(calls()) == 16 and calls().count("batch 0.5 new") == 1
    assert run.file(MEASUREMENTS, "quick").read_bytes() == before


def test_only_runs_what_it_names_and_keeps_what_is_on_disk(run: Runner, calls: Calls) -> None:
    run("quick", only="bat")
    assert len(calls()) == 4
    assert set(load_measurements(run.file(MEASUREMENTS, "quick"))["experiment"]) == {"batch"}
    assert not json.loads(run.file("record.json", "quick").read_text())["complete"]
    run("quick", only="draw")
    assert set(load_measurements(run.file(MEASUREMENTS, "quick"))["experiment"]) == {"draw", "batch"}
    with pytest.raises(ReplicationError, match="'nothing' or starts with it; it has: draw, batch"):
        run("quick", only="nothing")


def test_only_keeps_committed_rows_where_a_fresh_clone_has_no_jobs(run: Runner) -> None:
    run("quick")
    before = run.file(MEASUREMENTS, "quick").read_bytes()
    shutil.rmtree(run.file("jobs", "quick"))
    run("quick", only="batch")
    assert "Kept as they are in quick: draw." in run.printed
    assert run.file(MEASUREMENTS, "quick").read_bytes() == before
    record = json.loads(run.file("record.json", "quick").read_text())
    assert record["complete"] and record["experiments"]["draw"]["jobs_finished"] == 6

    profiles = run.toy / "profiles.toml"
    profiles.write_text(profiles.read_text().replace("scale = 2.0", "scale = 3.0"))
    run("quick", only="batch")
    rows = load_measurements(run.file(MEASUREMENTS, "quick"))
    assert set(rows["experiment"]) == {"batch"}, "rows of other settings than the profile's must not stay"


def test_seeds_changes_only_the_number_of_seeds(run: Runner, calls: Calls) -> None:
    run(seeds=2)
    short = text(run.file(MEASUREMENTS))
    assert calls() == ["draw a 0", "draw a 1"]
    run(seeds=3)
    assert len(calls()) == 3  # the first two are the same jobs
    assert set(short.splitlines()) < set(text(run.file(MEASUREMENTS)).splitlines())
    with pytest.raises(ReplicationError, match="a number of seeds of at least 1"):
        run(seeds=0)


def test_a_damaged_file_is_made_again(run: Runner, calls: Calls) -> None:
    run(seeds=3)
    before = run.file(MEASUREMENTS).read_bytes()
    first, second, third = run.jobs()
    first.write_text(first.read_text()[:100])
    second.write_text("{}")
    third.write_bytes(b"\xff\x00")
    run(seeds=3)
    assert run.printed.count("is damaged") == 3
    assert len(calls()) == 6
    assert run.file(MEASUREMENTS).read_bytes() == before


def test_a_failing_job_stops_nothing_else(run: Runner, toy: Path, calls: Calls) -> None:
    (toy / "fail").touch()
    result = run(seeds=3)
    assert [str(job) for job, _ in result.failures] == ["draw (kind=a, seed 1)"]
    assert "seed 1 is broken" in run.printed
    (error,) = run.file("jobs").glob("*.error.txt")
    assert "RuntimeError: seed 1 is broken" in error.read_text() and "Traceback" in error.read_text()
    assert set(load_measurements(run.file(MEASUREMENTS))["seed"]) == {0, 2}
    assert not json.loads(run.file("record.json").read_text())["complete"]
    (toy / "fail").unlink()
    assert run(seeds=3).failures == []
    assert calls().count("draw a 0") == 1
    assert not list(run.file("jobs").glob("*.error.txt"))


def test_a_process_that_dies_costs_only_its_own_job(run: Runner, toy: Path) -> None:
    (toy / "die").touch()
    result = run("quick", only="draw", workers=2)
    assert [str(job) for job, _ in result.failures] == ["draw (kind=a, seed 1)"]
    assert "ran out of memory" in result.failures[0][1]
    assert len(run.jobs("quick")) == 5


def test_an_expected_error_in_a_job_stops_the_run(run: Runner, toy: Path) -> None:
    (toy / "stop").touch()
    with pytest.raises(ReplicationError, match="draw: The hub cannot be reached"):
        run("quick")


def test_a_profile_that_needs_a_gpu_says_so(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_replications.shared.harness.runs.gpus", list)
    with pytest.raises(ReplicationError, match="needs a GPU"):
        run("gpu")


def test_an_unwritable_results_directory_is_one_message(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReplicationError, match=r"Cannot write to .*REPLICATE_RESULTS"):
        Runner(toy, tmp_path / "file")()


def test_a_full_disk_is_one_message(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("grpo_replications.shared.harness.assembly.write_measurements", full)
    with pytest.raises(ReplicationError, match="No space left on device"):
        run()


def test_two_runs_of_one_profile_do_not_mix(run: Runner) -> None:
    from filelock import FileLock

    run.file("jobs").mkdir(parents=True)
    with FileLock(run.file("jobs") / ".lock"), pytest.raises(ReplicationError, match="Another run"):
        run()


def test_bars_on_a_terminal(run: Runner) -> None:
    run(terminal=True, seeds=2)
    assert "2/2" in run.printed and "━" in run.printed


def start(toy: Path, results: Path, *options: str) -> subprocess.Popen[str]:
    # A background job of a shell ignores Ctrl-C, and so would its children.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "import sys; from pathlib import Path; from replications.__main__ import main; papers = Path(sys.argv[1])\n"
    code += "if __name__ == '__main__': sys.exit(main(sys.argv[2:], papers=papers))"
    request = ["run", toy.name, "--profile", "quick", "--only", "draw", *options]
    command = [sys.executable, "-c", code, str(toy.parent), *request]
    environment = {**os.environ, "REPLICATE_RESULTS": str(results)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, start_new_session=True, **streams)


def wait_for(condition: Callable[[], bool], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_killed_at_any_moment_and_repeated_gives_the_same_bytes(run: Runner, toy: Path, calls: Calls) -> None:
    (toy / "delay").write_text("0.4")
    killed = Runner(toy, run.results.parent / "killed")
    process = start(toy, killed.results)
    wait_for(lambda: len(killed.jobs("quick")) >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    workers = {int(line.rsplit(" ", 1)[1]) for line in (toy / "calls.txt").read_text().splitlines()}
    wait_for(lambda: not any(map(alive, workers)))
    kept = {path: path.stat().st_mtime_ns for path in killed.jobs("quick")}
    assert not killed.file(MEASUREMENTS, "quick").exists()
    time.sleep(0.6)
    assert {path: path.stat().st_mtime_ns for path in killed.jobs("quick")} == kept, "an orphan went on"
    (said,) = read_runs(killed.file("", "quick"))
    assert (said.state, said.count("done")) == ("killed", len(kept))
    judged_so_far(killed, len(kept))
    before = len(calls())
    (toy / "delay").unlink()
    process = start(toy, killed.results)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert len(calls()) - before == 6 - len(kept)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in kept.items())
    run("quick", only="draw")
    name = MEASUREMENTS
    assert killed.file(name, "quick").read_bytes() == run.file(name, "quick").read_bytes()
    assert [one.state for one in read_runs(killed.file("", "quick"))] == ["finished"]
    with results_so_far(Paper.load(toy), "quick", killed.results) as (place, missing):
        assert place == killed.results and missing is None


def judged_so_far(run: Runner, done: int) -> None:
    """An unfinished run is judged from what is done, says what is missing, and nothing of it is written."""
    paper = Paper.load(run.toy)
    with results_so_far(paper, "quick", run.results) as (place, missing):
        assert missing is not None and missing.experiments == {"draw": (done, 6)} and not missing.running
        assert f"judged from {done} of 6 jobs; missing: draw {6 - done} of 6 jobs. It goes on by: " in str(missing)
        verdicts = {one.check.id: one for one in evaluate_profile(paper, "quick", place / "toy_paper" / "quick")}
    assert verdicts["toy-paper/identity"].verdict == "reproduced"
    assert verdicts["toy-paper/identity"].criterion_newer == "no"
    assert verdicts["toy-paper/direction"].reason == "batch has not been run"
    assert not run.file(MEASUREMENTS, "quick").exists() and not run.file("record.json", "quick").exists()


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [
        (signal.SIGINT, 130, "Run the same command to resume"),
        (signal.SIGTERM, 143, "goes on from step 7"),
    ],
)
def test_what_is_finished_or_saved_is_kept(sent: int, code: int, said: str, run: Runner, toy: Path) -> None:
    """Ctrl-C and SIGTERM reach every process of the group, as a terminal and a queue of jobs send them."""
    (toy / "delay").write_text("0.5")
    experiments = (toy / "experiments.py").read_text()
    saves = f"""
    saved = context.directory / "{FOLDER}" / "checkpoint-7"
    saved.mkdir(parents=True, exist_ok=True)
    (saved / "{RUN_FILE}").write_text("{{}}")
    delay = float"""
    (toy / "experiments.py").write_text(experiments.replace("\n    delay = float", saves))
    process = start(toy, run.results, "--workers", "1")
    wait_for(lambda: len(run.jobs("quick")) >= 1 and any(run.file("jobs", "quick").glob(f"*/{FOLDER}/*/{RUN_FILE}")))
    os.killpg(process.pid, sent)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    assert said in output and "Traceback" not in output
    if sent == signal.SIGTERM:
        assert "The same command goes on: replicate run toy_paper --profile quick" in output
    assert 1 <= len(run.jobs("quick")) < 6 and all(json.loads(path.read_text()) for path in run.jobs("quick"))
    (now,) = read_runs(run.file("", "quick"))
    assert now.state == "interrupted" and [job.saved for job in now.of("waiting") if job.progress] == [7]


def test_an_experiment_that_is_not_registered_is_named(run: Runner, toy: Path) -> None:
    code = (toy / "experiments.py").read_text()
    (toy / "experiments.py").write_text(code.replace('"draw": Experiment', '"drew": Experiment'))
    with pytest.raises(ReplicationError, match=r"'draw' that toy_paper/experiments.py does not register.*drew, batch"):
        run()


def test_profiles_that_do_not_exist_are_answered_with_those_that_do(run: Runner) -> None:
    with pytest.raises(ReplicationError, match="no profile 'quik'; its profiles are: quick, smoke, full, gpu"):
        run("quik")
