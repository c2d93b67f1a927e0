"""Runs on a Ray cluster: what jobs ask for, what comes back, and what a lost worker costs."""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness import cluster
from grpo_replications.shared.harness.cluster import GIB, Needs, check_ray, needs_of, unmet
from grpo_replications.shared.harness.cluster_job import MARK, Request, answer
from grpo_replications.shared.harness.executors import Place
from grpo_replications.shared.harness.jobs import Job, Origin
from grpo_replications.shared.harness.measurements import MEASUREMENTS
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.provenance import package_versions
from grpo_replications.shared.harness.runs import Options, Result, run_profile
from grpo_replications.shared.settings import Settings

JOB = Job("e", 1, {"threads": 1, "save_every": 2}, "", range(1), False)


class Training(Settings):
    model: str | None = None
    use_vllm: bool = False
    processes: int = 1


@pytest.mark.parametrize(
    ("settings", "requires", "gpus"),
    [
        (Training(), "hub", 0),  # a table of logits needs none, in any profile
        (Training(model="tiny-random"), None, 0),
        (Training(model="a/b"), "hub", 1),
        (Training(model="a/b", processes=8), "gpu", 8),
        (Training(model="a/b", use_vllm=True), None, 1),
    ],
)
def test_a_job_asks_for_what_its_settings_need(settings: Settings, requires: str | None, gpus: int) -> None:
    assert needs_of(settings, 4, requires, 1.5) == Needs(4, gpus, int(1.5 * GIB))


def test_a_job_that_fits_no_node_is_named_with_what_is_missing() -> None:
    nodes = [{"CPU": 8.0, "GPU": 0.0}, {"CPU": 2.0, "GPU": 1.0}, {"CPU": 8.0}]
    assert unmet([(JOB, Needs(8)), (JOB, Needs(2, 1))], nodes) is None
    problem = unmet([(JOB, Needs(2)), (JOB, Needs(4, 1))], nodes)
    assert problem is not None and "e (seed 0) needs 4 CPUs, 1 GPU on one node" in problem
    assert "2 with 8 CPUs, 0 GPUs; 1 with 2 CPUs, 1 GPU" in problem
    assert unmet([(JOB, Needs(1, 0, GIB))], [{"CPU": 8, "memory": GIB / 2}]) is not None
    assert unmet([(JOB, Needs(1))], []) is not None


@pytest.mark.parametrize("mark", [None, "of another run"])
def test_a_job_with_checkpoints_needs_a_directory_that_its_node_sees(tmp_path: Path, mark: str | None) -> None:
    if mark is not None:
        (tmp_path / MARK).write_text(mark)
    origin = Origin(None, False, "", "")
    outcome = answer(Request(JOB, "paper", origin, None, package_versions(), tmp_path, "of this run"), tmp_path)
    assert outcome.status == "stop" and "save_every" in outcome.message and str(tmp_path) in outcome.message


def test_a_job_with_checkpoints_runs_in_the_directory_of_jobs(toy: Path, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / MARK).write_text("of this run")
    job = Job("draw", 1, {"threads": 1, "scale": 2.0}, "", range(1), False)
    request = Request(job, str(toy), Origin(None, False, "", ""), None, package_versions(), jobs, "of this run")
    assert answer(request, tmp_path).status == "done"
    assert json.loads((jobs / f"{job.stem}.json").read_text())["machine"], "the node's, not the driver's"


def test_a_node_with_other_packages_is_refused(tmp_path: Path) -> None:
    versions = {**package_versions(), "torch": "0.1"}
    outcome = answer(Request(JOB, "paper", Origin(None, False, "", ""), None, versions, None, ""), tmp_path)
    assert outcome.status == "stop" and "(not 0.1)" in outcome.message


def test_what_cannot_be_used_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReplicationError, match="local, ray"):
        Place("slurm").check()
    with pytest.raises(ReplicationError, match="add --executor ray"):
        Place("local", "host:6379").check()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ReplicationError, match=r'pip install "grpo-replications\[cluster\]"'):
        check_ray()


KILL = """
    victims = {("a", 1): os.getppid(), ("b", 1): os.getpid()}  # the Ray worker; the job's own process
    died = HERE / f"died-{settings.kind}-{seed}"
    if (HERE / "kill").exists() and (settings.kind, seed) in victims and (settings.kind == "b" or not died.exists()):
        died.touch()
        os.kill(victims[settings.kind, seed], signal.SIGKILL)
        time.sleep(100)
"""


@pytest.fixture
def ray_of_two() -> Iterator[None]:
    """A Ray cluster on this machine with two worker processes."""
    ray = pytest.importorskip("ray", reason='ray is not installed: pip install "grpo-replications[cluster]"')
    for left in (2, 1, 0):
        try:
            ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            break
        except Exception:  # a busy machine may not start Ray's processes within the 30 s that it gives them
            ray.shutdown()
            if not left:
                raise
    yield
    ray.shutdown()


def run(toy: Path, results: Path, printed: io.StringIO, profile: str = "quick", **options: object) -> Result:
    chosen = Options(**{"only": "draw", "seeds": 2, "command": "replicate run toy-paper", **options})
    console = Console(file=printed, width=200)
    return run_profile(Paper.load(toy), profile, results, toy.parents[1], console, chosen)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_of_two")
def test_lost_workers_cost_only_time(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One Ray worker is killed once, the process of another job every time; the same command ends what is left."""
    monkeypatch.setattr(cluster, "ATTEMPTS", 2)
    code = (toy / "experiments.py").read_text()
    code = code.replace("HERE = Path(__file__).parent", f"HERE = Path({str(toy)!r})")  # not the copy that Ray carries
    (toy / "experiments.py").write_text(code.replace("    delay =", KILL + "    delay ="))
    here, there, printed = tmp_path / "here" / "toy_paper", tmp_path / "there" / "toy_paper", io.StringIO()
    (toy / "kill").touch()
    ((job, message),) = run(toy, there.parent, printed, executor="ray").failures
    assert {path.name for path in toy.glob("died-*")} == {"died-a-1", "died-b-1"}
    assert str(job) == "draw (kind=b, seed 1)" and "lost 2 times" in message and "signal 9" in message
    assert printed.getvalue().count("it is tried again (2 of 2)") == 2
    kept = {path: path.stat().st_mtime_ns for path in there.glob("quick/jobs/*.json")}
    assert len(kept) == 3, "finished jobs are written while others are lost"
    (toy / "kill").unlink()
    assert run(toy, there.parent, printed, executor="ray").failures == []
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())

    assert run(toy, here.parent, printed, workers=1).failures == []
    assert (here / "quick" / MEASUREMENTS).read_bytes() == (there / "quick" / MEASUREMENTS).read_bytes()
    files = [{path.name for path in directory.glob("quick/jobs/*")} - {".lock"} for directory in (here, there)]
    assert files[0] == files[1], "results, what they printed, the criteria"
    records = [json.loads((directory / "quick" / "record.json").read_text()) for directory in (here, there)]
    assert records[1]["executor"] == "ray" and records[0]["experiments"].keys() == records[1]["experiments"].keys()


def test_a_head_node_that_is_gone_ends_the_run_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:  # bound and never listening: a connection is refused
        listening.bind(("127.0.0.1", 0))
        monkeypatch.setattr(cluster, "CHECK_SECONDS", 0.0)
        connected = object.__new__(cluster.Cluster)
        connected._head = f"127.0.0.1:{listening.getsockname()[1]}"
        connected._head_missed, connected._checked = 0, 0.0
        for _ in range(cluster.HEAD_CHECKS - 1):
            connected._watch([(JOB, Needs(1))])
        with pytest.raises(ReplicationError, match=r"head node .* is gone.*repeat the same command"):
            connected._watch([(JOB, Needs(1))])
