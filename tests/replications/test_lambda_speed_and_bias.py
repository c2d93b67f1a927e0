"""Steps to the target, the update's bias and the weights' cost: what the rows say is what they are called."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from grpo_replications.replications.lambda_grpo.settings import (
    TabularSpeedSettings,
    UpdateBiasSettings,
    WeightsCostSettings,
)
from grpo_replications.replications.lambda_grpo.table1 import SELECTION_OFFSET
from grpo_replications.replications.lambda_grpo.tabular_speed import tabular_speed
from grpo_replications.replications.lambda_grpo.update_bias import expected_push, update_bias
from grpo_replications.replications.lambda_grpo.weights_cost import weights_cost
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.synthetic.binary_tree import BinaryTree, run_tabular

SPEED = TabularSpeedSettings(
    n=1,
    r_neg=-1.0,
    method="lambda-grpo",
    optimizer="sgd",
    lrs=[0.01, 20.0],
    selection_seeds=10,
    threshold=0.5,
    group_size=16,
    steps=60,
    depth=4,
)


@pytest.fixture
def context(tmp_path: Path) -> JobContext:
    return JobContext(tmp_path / "job")


def values(rows: list[Row], metric: str) -> list[float]:
    return [row["value"] for row in rows if row["metric"] == metric]


def test_steps_are_those_of_the_fastest_rate(context: JobContext) -> None:
    rows = tabular_speed(SPEED, range(5), context)
    assert values(rows, "chosen_lr") == [20.0] and values(rows, "edge") == [1.0]
    run = run_tabular(BinaryTree(4, 1, prefix_reward=-1.0), "lambda-grpo", "sgd", 20.0, steps=60, seeds=range(5))
    for seed, steps in enumerate(values(rows, "steps_to_threshold")):
        above = np.flatnonzero(run.target_probability[:, seed] >= 0.5)
        assert steps == (above[0] if len(above) else 60)
        assert values(rows, "censored")[seed] == float(not len(above))


def test_a_run_that_never_gets_there_counts_as_all_its_steps(context: JobContext) -> None:
    rows = tabular_speed(SPEED.changed(lrs=[0.01]), range(3), context)
    assert values(rows, "steps_to_threshold") == [60.0] * 3 and values(rows, "censored") == [1.0] * 3


def test_reported_seeds_are_never_those_that_choose_the_rate(context: JobContext) -> None:
    with pytest.raises(ReplicationError, match="seeds must lie below"):
        tabular_speed(SPEED, range(SELECTION_OFFSET, SELECTION_OFFSET + 1), context)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_expected_push_by_enumeration(p: float) -> None:
    """Every group of four completions of one token, with its probability and lambda-GRPO's push by hand."""
    size, advantage = 4, -1.5
    total = 0.0
    for group in itertools.product("LR", repeat=size):
        lefts = group.count("L")
        probability = p**lefts * (1 - p) ** (size - lefts)
        push = advantage * ((1 - p) * (lefts > 0) - p * (lefts < size)) / size
        total += probability * push
    assert expected_push(p, size, advantage) == pytest.approx(total, abs=1e-15)


def test_measured_pushes_are_the_expected_ones(context: JobContext) -> None:
    for method, advantage in itertools.product(("grpo", "lambda-grpo"), (-1.0, 2.0)):
        settings = UpdateBiasSettings(p_left=0.8, advantage=advantage, method=method, group_size=16, groups=20_000)
        rows = {row["metric"]: row["value"] for row in update_bias(settings, 1, context)}
        assert abs(rows["push_error"]) < 5 * rows["standard_error"]
        if method == "grpo":
            assert rows["expected_push"] == 0.0
        else:
            assert np.sign(rows["push_from_half"]) == -np.sign(advantage)
            assert abs(rows["push"]) > 20 * rows["standard_error"]


def test_cost_is_a_positive_timing(context: JobContext) -> None:
    (row,) = weights_cost(WeightsCostSettings(group_size=6, tokens=32, groups=2), 0, context)
    assert row["timing"] and 0 < row["value"] < 1
