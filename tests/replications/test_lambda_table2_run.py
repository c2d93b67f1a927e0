"""Table 2's experiment: trained or not, measured on every benchmark, in one process or under `accelerate launch`."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from grpo_replications.replications.lambda_grpo import table2
from grpo_replications.replications.lambda_grpo.settings import Table2Settings
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.harness.profiles import load_profiles
from grpo_replications.shared.models import catalog
from grpo_replications.shared.statistics.estimates import Estimate
from grpo_replications.shared.tasks.math import benchmark_source
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.launching import SETTINGS_FILES
from tests.shared.models import fake_vllm

ROOT = Path(__file__).parents[2]
BENCHMARKS = ("AIME24", "AMC23")
SETTINGS = {
    "model": "tiny-random",
    "method": "base",
    "steps": 1,
    "prompts_per_step": 2,
    "group_size": 4,
    "max_new_tokens": 6,
    "precision": "float32",
    "validation_size": 2,
    "eval_every": 1,
    "eval_batch_size": 4,
    "eval_max_new_tokens": 3,
    "eval_samples": 2,
    "eval_temperature": 0.9,
    "processes": 1,
}

KINDS = ("accuracy", "low", "high", "problems")
METRICS = [*(f"{kind}/{name}" for name in BENCHMARKS for kind in KINDS), "accuracy/mean"]


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small file of mathematics problems, for training and as a benchmark."""
    path = tmp_path_factory.mktemp("data") / "problems.jsonl"
    path.write_text("\n".join(json.dumps({"problem": f"{i} + {i}?", "answer": str(2 * i)}) for i in range(6)))
    return str(path)


def table2_settings(problems: str, **changes: Any) -> Table2Settings:
    return Table2Settings(
        **{**SETTINGS, "dataset": problems, "benchmarks": [f"{name}={problems}" for name in BENCHMARKS], **changes}
    )


@pytest.mark.parametrize("method", ["base", "lambda-grpo"])
def test_table2_measures_every_benchmark_as_its_settings_say(
    method: str, problems: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpo_replications.shared.models import evaluation

    seen: list[dict[str, Any]] = []
    real = evaluation.evaluate_benchmark

    def spy(model: Any, tokenizer: Any, problems: Any, rewards: Any, **options: Any) -> Any:
        seen.append({**options, "problems": len(problems)})
        return real(model, tokenizer, problems, rewards, **options)

    monkeypatch.setattr(evaluation, "evaluate_benchmark", spy)
    settings = table2_settings(problems, method=method)
    rows = table2.train_and_measure(settings, 3, tmp_path, None)
    looks = [(row["metric"], row.get("step")) for row in rows[: -len(METRICS)]]
    trained = [("held_out_accuracy", 0), ("held_out_accuracy", 1), ("best_step", None)]
    assert looks == (trained if method != "base" else [])
    rows = rows[-len(METRICS) :]
    assert [row["metric"] for row in rows] == METRICS
    values = {row["metric"]: row["value"] for row in rows}
    assert values["accuracy/mean"] == pytest.approx((values["accuracy/AIME24"] + values["accuracy/AMC23"]) / 2)
    assert values["problems/AIME24"] == values["problems/AMC23"] == 6
    assert values["low/AIME24"] <= values["accuracy/AIME24"] <= values["high/AIME24"]
    expected = {"max_new_tokens": 3, "batch_size": 4, "samples": 2, "temperature": 0.9, "seed": 3, "divided": True}
    benchmarks = [one for one in seen if one["problems"] == 6]
    assert benchmarks == 2 * [{**expected, "precision": "float32", "engine": None, "problems": 6}]
    held_out = {"max_new_tokens": 6, "batch_size": 4, "precision": "float32", "problems": 2}
    assert [one for one in seen if one["problems"] != 6] == (2 * [held_out] if method != "base" else [])
    assert (tmp_path / "groups.jsonl").exists() == (method != "base")
    if method != "base":
        groups = list(read_group_log(tmp_path / "groups.jsonl"))
        assert len(groups) == 2 and all("weights" in group for group in groups)


def test_table2_by_vllm_has_the_rows_of_transformers(
    problems: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = fake_vllm.install(monkeypatch)
    greedy = {"eval_samples": 1, "eval_temperature": 0.0}
    own, by_vllm = (
        table2.table2(table2_settings(problems, **greedy, eval_engine=engine), 0, JobContext(tmp_path / engine))
        for engine in ("transformers", "vllm")
    )
    assert own == by_vllm and [row["metric"] for row in own[-len(METRICS) :]] == METRICS
    assert len(engines) == 1 and not engines[0].directory.exists()
    with pytest.raises(ReplicationError, match="decodes in one process"):
        table2.table2(table2_settings(problems, processes=2, eval_engine="vllm"), 0, JobContext(tmp_path / "two"))


def test_table2_measures_after_training_and_the_base_row_without(
    problems: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpo_replications.shared.grading import rewards
    from grpo_replications.shared.models import evaluation

    measured: dict[str, torch.Tensor] = {}
    verdict = type("V", (), {"estimate": Estimate(0.5, 0.4, 0.6, 2), "correct": torch.zeros(1)})

    def look(model: Any, *_: Any, **__: Any) -> Any:
        measured[method] = model.get_input_embeddings().weight.detach().clone()
        return verdict

    monkeypatch.setattr(evaluation, "evaluate_benchmark", look)
    monkeypatch.setattr(rewards, "accuracy_reward", lambda completions, **_: [hash_of(c) for c in completions])
    for method in ("base", "grpo", "lambda-grpo"):
        table2.train_and_measure(table2_settings(problems, method=method, lr=1e-2), 0, tmp_path / method, None)
    start = catalog.load("tiny-random")[0].get_input_embeddings().weight
    assert torch.equal(measured["base"], start)
    assert not torch.equal(measured["grpo"], start) and not torch.equal(measured["lambda-grpo"], start)


def hash_of(completion: Any) -> float:
    return sum(map(ord, str(completion))) % 17 / 17


def test_the_home_of_a_benchmark_can_be_given() -> None:
    assert benchmark_source("AIME24") == ("AIME24", None)
    assert benchmark_source("AIME24=/data/a=b.jsonl") == ("AIME24", "/data/a=b.jsonl")


@pytest.mark.slow
def test_table2_in_two_processes(problems: str, tmp_path: Path) -> None:
    settings = table2_settings(
        problems, method="lambda-grpo", processes=2, steps=2, eval_samples=1, eval_temperature=0.0, eval_every=2
    )
    rows = table2.table2(settings, 1, JobContext(tmp_path / "job"))
    looks = [(row["metric"], row.get("step")) for row in rows[: -len(METRICS)]]
    assert looks == [("held_out_accuracy", 0), ("held_out_accuracy", 2), ("best_step", None)]
    assert [row["metric"] for row in rows[-len(METRICS) :]] == METRICS
    groups = list(read_group_log(tmp_path / "job" / "groups.jsonl"))
    assert [group["step"] for group in groups] == [1, 1, 2, 2]
    assert all(len(group["completion_ids"]) == 4 and "weights" in group for group in groups)


def test_the_weights_that_solved_most_held_out_problems_are_measured(
    problems: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies, weights = iter([0.9, 0.2, 0.8, 0.8, 0.1]), []

    def held_out(policy: Any, *_: Any) -> float:
        weights.append(policy.get_input_embeddings().weight.detach().clone())
        return next(accuracies)

    def benchmarks(model: Any, *_: Any) -> dict[str, Estimate]:
        weights.append(model.get_input_embeddings().weight.detach().clone())
        return dict.fromkeys(BENCHMARKS, Estimate(0.5, 0.4, 0.6, 2))

    monkeypatch.setattr(table2, "_held_out_accuracy", held_out)
    monkeypatch.setattr("grpo_replications.shared.models.evaluation.benchmark_estimates", benchmarks)
    monkeypatch.setattr("grpo_replications.shared.grading.rewards.accuracy_reward", lambda completions, **_: [
        hash_of(completion) for completion in completions
    ])  # fmt: skip
    settings = table2_settings(problems, method="grpo", steps=4, lr=1e-2)
    rows = table2.train_and_measure(settings, 0, tmp_path, None)
    assert next(row["value"] for row in rows if row["metric"] == "best_step") == 2
    assert torch.equal(weights[-1], weights[2]) and not torch.equal(weights[2], weights[4])


def test_the_launch_files_have_the_precision_of_the_papers_profile() -> None:
    cells = load_profiles(ROOT / "replications/lambda_grpo/profiles.toml")["paper"].plans["table2"].cells
    assert {cell.get("precision", Table2Settings.defaults()["precision"]) for cell in cells} == {"bfloat16"}
    assert {yaml.safe_load(path.read_text())["mixed_precision"] for path in SETTINGS_FILES.values()} == {"bf16"}


@pytest.mark.parametrize("launch", ["ddp", "fsdp2", "deepspeed-zero3"])
def test_the_launched_command_follows_the_settings(
    launch: str, problems: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def end(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(table2.subprocess, "run", end)
    monkeypatch.setattr(table2, "check_machine", lambda *_: None)
    settings = table2_settings(problems, processes=4, launch=launch, precision="bfloat16")
    with pytest.raises(ReplicationError, match="with 4 processes ended"):
        table2.table2(settings, 0, JobContext(tmp_path / "job"))
    options = dict(itertools.pairwise(asked[0]))
    assert options["--config_file"] == str(SETTINGS_FILES[launch])
    assert (options["--num_processes"], options["--mixed_precision"]) == ("4", "bf16")
    written = json.loads((tmp_path / "job" / "request.json").read_text())["settings"]
    assert Table2Settings(**written) == settings


def test_a_launch_that_cannot_work_is_refused_before_anything_starts(problems: str, tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match="do not divide into processes = 3"):
        table2_settings(problems, method="grpo", processes=3).check()
    if not torch.cuda.is_available():
        with pytest.raises(ReplicationError, match="accelerate would leave it out"):
            table2.table2(table2_settings(problems, processes=2, launch="fsdp2"), 0, JobContext(tmp_path / "job"))


def test_divided_processes_look_through_a_whole_copy(
    problems: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, weights = [], []

    def held_out(policy: Any, *_: Any) -> float:
        looked.append(policy)
        weights.append(policy.get_input_embeddings().weight.detach().clone())
        return float(len(looked) == 2)

    monkeypatch.setattr(table2, "_held_out_accuracy", held_out)

    def reward(completions: list[Any], **_: Any) -> list[float]:
        return [hash_of(completion) for completion in completions]

    settings = table2_settings(problems, method="grpo", steps=2, lr=1e-2, launch="fsdp2")
    model, tokenizer = catalog.load("tiny-random")
    trained, rows = table2._trained(settings, 0, tmp_path, model, tokenizer, reward, None)
    assert all(one is trained and one is not model for one in looked) and len(looked) == 3
    assert not torch.equal(weights[1], weights[2]), "the copy follows the policy"
    assert torch.equal(trained.get_input_embeddings().weight, weights[1]), "and has its best weights at the end"
    assert rows[-1] == {"metric": "best_step", "value": 1}


def test_a_launch_that_fails_is_quoted(problems: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], dict[str, Any]]] = []

    def fail(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append((command, options))
        return subprocess.CompletedProcess(command, 3, "", "CUDA error: invalid device ordinal")

    monkeypatch.setattr("grpo_replications.replications.lambda_grpo.table2.subprocess.run", fail)
    message = r"`accelerate launch` with 2 processes ended with code 3:\nCUDA error: invalid.*\nSet `processes`"
    with pytest.raises(ReplicationError, match=message):
        table2.table2(table2_settings(problems, processes=2), 0, JobContext(tmp_path / "job"))
    command, options = asked[0]
    assert command[command.index("--num_processes") + 1] == "2"
    assert str(ROOT) in options["env"]["PYTHONPATH"].split(os.pathsep)
    assert (options["env"].get("ACCELERATE_USE_CPU") == "true") == (not torch.cuda.is_available())


def test_an_answer_of_an_earlier_launch_is_not_taken_for_this_one(
    problems: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "rows.json").write_text("[]")
    done = subprocess.CompletedProcess([], 0, "", "nothing was written")
    monkeypatch.setattr("grpo_replications.replications.lambda_grpo.table2.subprocess.run", lambda *_, **__: done)
    with pytest.raises(ReplicationError, match="nothing was written"):
        table2.table2(table2_settings(problems, processes=2), 0, JobContext(tmp_path / "job"))


def test_launched_processes_end_with_the_job_that_asked_for_them() -> None:
    job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    script = (
        "import sys, time; from replications.lambda_grpo.table2 import _end_with\n"
        "_end_with(int(sys.argv[1])); print('watching', flush=True); time.sleep(100)"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", script, str(job.pid)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout.readline() == "watching\n" and started.poll() is None
        job.kill()
        job.wait()
        assert started.wait(timeout=30) == 1
    finally:
        job.kill()
        started.kill()
        started.wait()
