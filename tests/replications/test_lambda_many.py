"""Experiments on many transformers: rows that mean what they say, arms that are what they are called."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grpo_replications.replications.lambda_grpo.many_sums import many_sums
from grpo_replications.replications.lambda_grpo.many_table1 import many_table1, many_table1_trl
from grpo_replications.replications.lambda_grpo.settings import (
    ManySumsSettings,
    ManyTable1Settings,
    ManyTable1TrlSettings,
)
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from tests.synthetic.test_digit_sums import RUN, START

TREE = {
    "n": 1,
    "r_neg": -1.0,
    "depth": 3,
    "method": "lambda-grpo",
    "lr": 1e-2,
    "optimizer": "adam",
    "max_grad_norm": 0.0,
    "group_size": 8,
    "steps": 12,
    "last": 4,
    "curve_every": 4,
    "width": 16,
    "inner": 32,
}
SUMS = {**START, **RUN, "reward": "right", "method": "grpo", "lr": 1e-3, "threshold": 0.5, "curves": True}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def context(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobContext:
    monkeypatch.setenv("REPLICATE_CACHE", str(cache))
    return JobContext(tmp_path / "job")


def tree(**changes: Any) -> ManyTable1Settings:
    return ManyTable1Settings.model_validate({**TREE, **changes})


def through_trl(**changes: Any) -> ManyTable1TrlSettings:
    kept = {name: value for name, value in TREE.items() if name != "curve_every"}
    return ManyTable1TrlSettings.model_validate({**kept, **changes})


def sums(**changes: Any) -> ManySumsSettings:
    return ManySumsSettings.model_validate({**SUMS, **changes})


def values(rows: list[Row], metric: str, seed: int) -> list[Any]:
    return [row["value"] for row in rows if row["metric"] == metric and row["seed"] == seed]


def test_rows_of_table1(context: JobContext) -> None:
    rows = many_table1(tree(), range(3), context)
    counts = Counter(row["metric"] for row in rows)
    single = ("target_frequency", "success", "steps_to_half", "censored", "start_probability")
    assert counts == {**dict.fromkeys(single, 3), "target_probability": 9, "prefix_probability": 9}
    for seed in range(3):
        assert values(rows, "start_probability", seed) == [0.125]
        assert values(rows, "success", seed) == [float(values(rows, "target_frequency", seed)[0] > 0.5)]
        pairs = zip(values(rows, "target_probability", seed), values(rows, "prefix_probability", seed))
        assert all(target < prefix for target, prefix in pairs)
        if values(rows, "censored", seed) == [1.0]:
            assert values(rows, "steps_to_half", seed) == [12]
    assert not [row for row in many_table1(tree(curve_every=0), range(1), context) if "step" in row]


def test_every_arm_runs_and_is_another_one(context: JobContext) -> None:
    arms = ("grpo", "lambda-grpo", "halving-depth", "mean-depth")
    settings = {"optimizer": "sgd", "lr": 1.0, "start_left": 0.8, "target_rights": 1}
    reached = {arm: values(many_table1(tree(**settings, method=arm), range(1), context), "target_frequency", 0)[0]
               for arm in arms}  # fmt: skip
    assert len(set(reached.values())) == len(arms)


def test_the_same_run_through_trl(context: JobContext) -> None:
    rows = {row["metric"]: row["value"] for row in many_table1_trl(through_trl(steps=4, last=2), 1, context)}
    assert rows["start_probability"] == pytest.approx(0.125, rel=1e-5)
    assert abs(rows["start_difference"]) < 1e-6
    simulated = many_table1(tree(steps=4, last=2), range(1, 2), context)
    ours = rows["target_frequency"] - rows["frequency_difference"]
    assert ours == pytest.approx(values(simulated, "target_frequency", 1)[0], abs=1e-5)


def test_rows_of_sums(context: JobContext) -> None:
    rows = many_sums(sums(), range(2), context)
    for seed in range(2):
        curve = values(rows, "solve_rate", seed)
        assert len(curve) == 3
        assert values(rows, "start_rate", seed) == [curve[0]] and values(rows, "final_rate", seed) == [curve[-1]]
        assert values(rows, "mean_rate", seed)[0] == pytest.approx(sum(curve[1:]) / 2, abs=1e-5)
        censored = max(curve) < 0.5
        assert values(rows, "censored", seed) == [float(censored)]
    trap = sums(reward="trap", prefix_length=1, r_neg=-0.5, other_reward=0.7)
    assert many_sums(trap, range(1), context) != many_sums(sums(), range(1), context)


def test_settings_that_cannot_run_say_so(context: JobContext) -> None:
    with pytest.raises(ReplicationError, match="last"):
        many_table1(tree(last=50), range(1), context)
    with pytest.raises(ReplicationError, match="no path of 3 tokens"):
        many_table1(tree(target_rights=4), range(1), context)
