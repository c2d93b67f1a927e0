"""Mathematics data from local files, and the message when the hub cannot be reached."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.tasks import load_task
from grpo_replications.shared.tasks.math import BENCHMARKS, benchmark, problems_from

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not beside this clone")


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_columns_are_recognized(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.jsonl",
        [
            {"problem": "1+1?", "answer": "2"},
            {"problem": "half of 1?", "answer": "$\\frac{1}{2}$"},
        ],
    )
    rows = problems_from(file)
    assert rows.column_names == ["prompt", "solution", "problem"]
    assert rows[0]["prompt"][1] == {"role": "user", "content": "1+1?"}
    assert "boxed" in rows[0]["prompt"][0]["content"]
    floats = problems_from(write(tmp_path / "b.jsonl", [{"question": "q", "answer": 27.0}]))
    assert floats["solution"][0] == "27"
    lists = problems_from(write(tmp_path / "c.jsonl", [{"question": "q", "final_answer": ["$2n$"]}]))
    assert lists["solution"][0] == "$2n$"
    worked = problems_from(
        write(tmp_path / "d.jsonl", [{"problem": "q", "solution": "so \\boxed{3}, thus \\boxed{4}"}])
    )
    assert worked["solution"][0] == "4"


def test_load_task_from_files(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"problem": f"{i}+1?", "answer": str(i + 1)} for i in range(10)])
    task = load_task("math", dataset=file, validation=file, train_size=4, validation_size=3)
    assert (len(task.train), len(task.validation)) == (4, 3)
    completions = [[{"role": "assistant", "content": f"\\boxed{{{gold}}}"}] for gold in task.train["solution"]]
    assert task.rewards[0](completions=completions, solution=task.train["solution"]) == [1.0] * 4


def test_held_out_problems_are_the_same_for_every_seed_and_never_trained_on(tmp_path: Path) -> None:
    file = str(write(tmp_path / "a.jsonl", [{"problem": f"{i}+1?", "answer": str(i + 1)} for i in range(10)]))
    tasks = [load_task("math", dataset=file, validation="held-out", validation_size=3, seed=seed) for seed in (0, 1)]
    held_out = [set(task.validation["problem"]) for task in tasks]
    assert held_out[0] == held_out[1] and len(held_out[0]) == 3
    for task in tasks:
        assert not held_out[0] & set(task.train["problem"]) and len(task.train) == 7
    with pytest.raises(ReplicationError, match="validation_size"):
        load_task("math", dataset=file, validation="held-out", validation_size=10)


def test_ungradable_answers_are_refused_or_dropped_loudly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "a.jsonl", [{"problem": "a", "answer": "1"}, {"problem": "b", "answer": "\\frac{1}{"}])
    with pytest.raises(ReplicationError, match="Row 1 "):
        problems_from(file)
    with caplog.at_level(logging.WARNING):
        assert len(problems_from(file, ungradable="drop")) == 1
    assert "1 of 2 rows" in caplog.text
    with pytest.raises(ReplicationError, match="refuse"):
        problems_from(file, ungradable="ignore")


@pytest.mark.parametrize("row", [{"text": "a", "answer": "1"}, {"problem": "a"}, {"problem": "a", "solution": "none"}])
def test_missing_columns(tmp_path: Path, row: dict) -> None:
    with pytest.raises(ReplicationError, match=r"column|answer"):
        problems_from(write(tmp_path / "a.jsonl", [row]))


def test_missing_file() -> None:
    with pytest.raises(ReplicationError, match="no file"):
        problems_from("nowhere.jsonl")


def test_unreachable_hub_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr("grpo_replications.shared.tasks.math.load_dataset", unreachable)
    with pytest.raises(ReplicationError, match=r"(?s)knoveleng/open-rs.*hf download.*path"):
        load_task("math")


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, file, ungradable",
    [
        ("AIME24", "aime24.jsonl", 0),
        ("AMC23", "amc23.jsonl", 0),
        ("MATH-500", "math500.parquet", 0),
        ("Minerva", "minerva_math.jsonl", 0),
        ("OlympiadBench", "olympiadbench.jsonl", 1),
    ],
)
def test_published_benchmarks(name: str, file: str, ungradable: int) -> None:
    problems = benchmark(name, str(DATA / file), ungradable="drop")
    assert len(problems) == BENCHMARKS[name].problems - ungradable
