"""Benchmarks of puzzles beside those of mathematics: each with its own reward, and none with other puzzles in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.sources import DATA
from grpo_replications.shared.tasks.benchmarks import load_benchmarks

SHARED = Path(__file__).parents[4] / "shared" / "data"
OTHER = {"knight": "knave", "knave": "knight"}
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside this clone")


@needs_data
def test_puzzles_by_number_of_people_are_graded_by_their_own_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA, str(SHARED))
    loaded = load_benchmarks(["KK-3", "KK-5", "KK-7", "AIME24"])
    assert [len(one.problems) for one in loaded.values()] == [100, 100, 100, 30]
    for name in ("KK-3", "KK-5", "KK-7"):
        rows = loaded[name].problems
        gold = [f"<think></think><answer>{answer}</answer>" for answer in rows["answer"]]
        wrong = [re.sub(r"knight|knave", lambda role: OTHER[role[0]], text, count=1) for text in gold]
        columns = {"names": rows["names"], "roles": rows["roles"]}
        assert loaded[name].reward(completions=gold, **columns) == [1.0] * 100
        assert loaded[name].reward(completions=wrong, **columns) == [0.0] * 100
    aime = loaded["AIME24"]
    boxes = [f"\\boxed{{{gold}}}" for gold in aime.problems["solution"]]
    assert aime.reward(completions=boxes, solution=aime.problems["solution"]) == [1.0] * 30
    with pytest.raises(ReplicationError, match="does not hold puzzles of 5 people alone, which KK-5 asks for"):
        load_benchmarks([f"KK-5={SHARED / 'kk' / '3ppl_test.parquet'}"])
