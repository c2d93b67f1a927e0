"""What is checked in the first minute of a run: models, commits, data, gold answers, overlap, disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from grpo_replications.replications import preflight, rehearsal_data
from grpo_replications.replications.__main__ import main
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.models.vllm_engine import vllm_problem
from grpo_replications.shared.sources import DATA

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside this clone")


def paper(name: str = "lambda_grpo") -> Paper:
    return Paper.load(ROOT / "replications" / name)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with every data set of a paper and a file in place of every model, while the hub is silent."""
    directory = tmp_path / "own"
    monkeypatch.setattr(rehearsal_data, "make_stand_in", lambda name, path, *_: (
        path.mkdir(parents=True), (path / "model.safetensors").touch()
    ))  # fmt: skip
    needs = preflight.needs_of(paper(), paper().profile("paper"))
    rehearsal_data.make_stand_ins(needs, directory, lambda problems: problems // 10)
    monkeypatch.setenv(DATA, str(directory))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    return directory


def examine(tmp_path: Path, only: str, name: str = "lambda_grpo", whole: bool = False) -> preflight.Findings:
    chosen = paper(name).profile("paper").with_overrides(only)
    return preflight.examine(paper(name), chosen, tmp_path / "results", whole)


def test_everything_that_a_profile_loads_is_found_and_noted(own: Path, tmp_path: Path) -> None:
    (own / "AIME24.jsonl").open("a").write(json.dumps({"problem": "Odd?", "answer": r"\frac{1}{"}) + "\n")
    first = json.loads((own / "open-rs.jsonl").read_text().splitlines()[2])
    (own / "AMC23.jsonl").open("a").write(json.dumps({"question": first["problem"], "answer": 1.0}) + "\n")
    found = examine(tmp_path, "table2")
    assert not found.problems and {one.pinned for one in found.sources} == {"local"}
    assert [one.kind for one in found.sources].count("model") == 2 and all(one.identity for one in found.sources)
    assert [(one["name"], len(one["unusable"])) for one in found.data][:2] == [("knoveleng/open-rs", 0), ("AIME24", 1)]
    bad = found.data[1]["unusable"][0]
    assert (bad["row"], bad["gold"]) == (3, r"\frac{1}{") and "cannot be read" in bad["reason"]
    shared = {one["test"]: (one["exact"], one["examples"]) for one in found.overlaps}
    assert len(shared) == 5 and [name for name, (exact, _) in shared.items() if exact] == ["AMC23"]
    assert shared["AMC23"][0] == 1 and shared["AMC23"][1][0]["training_row"] == 2


def test_ar_loptis_training_folder_holds_the_evaluation_puzzles(own: Path) -> None:
    needs, found = preflight.Needs(puzzles={"K-and-K/knights-and-knaves": [3]}), preflight.Findings()
    rehearsal_data.make_stand_ins(needs, own, round)
    preflight._puzzle_data("K-and-K/knights-and-knaves", [3], needs, found)
    ours, folder = found.overlaps
    assert not found.problems and (ours["tested"], ours["exact"], ours["renamed"]) == (100, 0, 0)
    assert "AR-Lopti" in folder["training"]
    assert (folder["exact"], folder["renamed"], folder["trained"]) == (100, 100, 1000)


def test_a_benchmark_that_was_cut_off_is_refused_by_name_and_line(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = own / "Minerva.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:5]) + "\n" + lines[5][:20])
    assert main(["check", "lambda-grpo", "--data", "--only", "table2"]) == 1
    out = capsys.readouterr().out
    assert (
        f"Minerva: {path} could not be read as a jsonl file (line 6 is no JSON" in out and "was the file cut off" in out
    )
    assert "AIME24 has 30 problems, and " in out and "it ends after line 3. Was it cut off?" in out
    assert main(["run", "lambda-grpo", "--profile", "paper", "--only", "table2", "--results", str(tmp_path / "r")]) == 2
    said, otherwise = capsys.readouterr().err, "set use_vllm = false to sample with transformers"
    assert "Nothing was started" in said and not (tmp_path / "r").exists()
    assert (vllm_problem("table2: use_vllm = true", otherwise) or "") in said


class Hub:
    """A hub that knows some models."""

    def repo_info(self, name: str, repo_type: str, revision: str | None, **_: Any) -> Any:
        if "Llama" in name:
            raise refused(GatedRepoError)
        if "absent" in name:
            raise refused(RepositoryNotFoundError)
        file = SimpleNamespace(rfilename="model.safetensors", size=10**15 if "huge" in name else 5)
        return SimpleNamespace(sha=revision or "c0ffee", siblings=[file])

    def auth_check(self, name: str, repo_type: str) -> None:
        if "terms" in name:
            raise refused(GatedRepoError)


def refused(kind: type) -> Exception:
    return kind("refused", response=SimpleNamespace(headers={}, request=None, status_code=403))


def test_models_on_the_hub(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_replications.replications.preflight_sources import find_model

    shutil.rmtree(own / "models")
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert (find_model("a/b", None).identity, find_model("a/b", None).pinned) == ("c0ffee", "not pinned")
    assert (find_model("a/b", "5eed").identity, find_model("a/b", "5eed").pinned) == ("5eed", "pinned")
    for name in ("meta-llama/Llama-3.2-1B-Instruct", "a/terms"):
        assert f"{name} is gated. Ask for access on https://huggingface.co/{name}" in find_model(name, None).problem
        assert "`hf auth login`" in find_model(name, None).problem
    assert "is not on the hub, or this account cannot see it" in find_model("a/absent", None).problem
    found = examine(tmp_path, "table2")
    assert len(found.problems) == 1 and "is gated" in found.problems[0]
    assert found.as_json()["not_pinned"] == [
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "meta-llama/Llama-3.2-1B-Instruct",
    ]


def test_a_silent_hub_is_one_message(own: Path, tmp_path: Path) -> None:
    shutil.rmtree(own / "models")
    (own / "open-rs.jsonl").unlink()
    (problem,) = examine(tmp_path, "table2").problems
    assert all(
        name in problem for name in ("Distill-Qwen-1.5B, the model meta-llama", "the data set knoveleng/open-rs")
    )
    assert "--data-dir" in problem and "hf download" in problem


def test_data_that_changed_since_jobs_ran_and_a_small_disk_stop_a_run(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "results"
    (directory / "jobs").mkdir(parents=True)
    (directory / "jobs" / "table2-0123456789abcdef.json").touch()
    kept = examine(tmp_path, "table2").as_json()
    (directory / preflight.PREFLIGHT).write_text(json.dumps(kept))
    assert not examine(tmp_path, "table2").problems
    (own / "AIME24.jsonl").open("a").write(json.dumps({"problem": "New?", "answer": "1"}) + "\n")
    (problem,) = examine(tmp_path, "table2").problems
    assert "aime_2024 is not what finished jobs were made with" in problem and "Pin it" in problem
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**8))
    assert (
        "GB at" in examine(tmp_path, "table2").problems[-1]
        and "0.1 GB are free" in examine(tmp_path, "table2").problems[-1]
    )


@needs_data
def test_the_real_benchmarks_are_whole_and_their_golds_usable_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = preflight.Needs(benchmarks=["AIME24", "AMC23", "MATH-500", "OlympiadBench", "KK-3", "KK-5", "KK-7"])
    monkeypatch.setenv(DATA, str(SHARED))
    monkeypatch.setattr("grpo_replications.shared.tasks.math.unusable_golds", lambda golds: dict.fromkeys(
        [gold for gold in golds if gold == "$t(0,4]$"], "two brackets that do not match"
    ))  # fmt: skip
    found = preflight.Findings()
    tests = [preflight._test(entry, needs, found, True) for entry in needs.benchmarks]
    assert not found.problems and [len(one) for one in tests] == [30, 40, 500, 675, 100, 100, 100]
    assert [(one["name"], bad["row"]) for one in found.data for bad in one["unusable"]] == [("OlympiadBench", 96)]


def test_a_run_of_another_profile_is_not_checked(tmp_path: Path) -> None:
    preflight.before_run(paper(), "smoke", tmp_path, None, None)
    assert not list(tmp_path.iterdir())
