"""The addition task: operands, disjoint parts, own generators, and the reward."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.tasks import load_task
from grpo_replications.shared.tasks.addition import addition_problems, addition_reward, build_prompt, last_number


def pairs(dataset: object) -> list[tuple[int, int]]:
    return list(zip(dataset["a"], dataset["b"]))  # type: ignore[index]


@pytest.mark.parametrize("settings", [{"high": 30, "train_size": 800, "validation_size": 60}, {"high": 99_999}])
def test_parts_share_no_sum_in_either_order(settings: dict) -> None:
    task = load_task("addition", **settings)
    train, validation = pairs(task.train), pairs(task.validation)
    assert len(train) == len(set(train)) == settings.get("train_size", 2000)
    assert len(validation) == len({tuple(sorted(p)) for p in validation}) == settings.get("validation_size", 128)
    assert not {tuple(sorted(p)) for p in train} & {tuple(sorted(p)) for p in validation}
    high = settings["high"]
    assert all(0 <= x <= high for pair in train + validation for x in pair)
    assert len({a for a, _ in train}) > 20  # operands are spread, not the first few


def test_rows_and_prompt() -> None:
    task = load_task("addition", low=10, high=20, train_size=5, validation_size=3)
    assert set(task.train.column_names) == {"prompt", "answer", "a", "b"}
    row = task.train[0]
    assert row["prompt"] == task.build_prompt(row["a"], row["b"]) == build_prompt(row["a"], row["b"])
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][1]["content"] == f"What is {row['a']} + {row['b']}?"
    assert row["answer"] == str(row["a"] + row["b"])


def test_seed_moves_the_training_set_only() -> None:
    first, again, other = (load_task("addition", seed=seed) for seed in (0, 0, 1))
    assert pairs(first.train) == pairs(again.train) != pairs(other.train)
    assert pairs(first.validation) == pairs(other.validation)


def test_longer_operands_held_out() -> None:
    task = load_task("addition", high=9, train_size=50, validation_size=20, validation_low=100, validation_high=999)
    assert min(a for a, _ in pairs(task.validation)) >= 100


def test_global_generators_are_left_alone() -> None:
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    load_task("addition", high=99_999)
    addition_problems(10, seed=3)
    assert states[0] == random.getstate()
    assert (states[1] == np.random.get_state()[1]).all()
    assert torch.equal(states[2], torch.get_rng_state())


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"high": 3, "train_size": 17}, "Only"),
        ({"low": 5, "high": 4}, "low <= high"),
        ({"low": -1}, "low <= high"),
        ({"validation_size": 0}, "at least one"),
        ({"digits": 3}, "no setting digits"),
    ],
)
def test_impossible_settings(settings: dict, message: str) -> None:
    with pytest.raises(ReplicationError, match=message):
        load_task("addition", **settings)


def test_unknown_task() -> None:
    with pytest.raises(ReplicationError, match="addition"):
        load_task("subtraction")


@pytest.mark.parametrize(
    "completion, right",
    [
        ("112", True),
        ("35 + 77 = 112.", True),
        ("The sum is **112**", True),
        ("$112$", True),
        (r"\boxed{112}", True),
        ("112.0", True),
        ("0112", True),
        ("112\n", True),
        ("111, no, 112!", True),
        ("112 is 35 + 77", False),
        ("112 or 113", False),
        ("1112", False),
        ("1,112", False),
        ("11,2", False),
        ("112.5", False),
        ("-112", False),
        ("= -112", False),
        ("112, 1", False),
        ("", False),
        ("one hundred and twelve", False),
    ],
)
def test_reward(completion: str, right: bool) -> None:
    assert addition_reward([completion], answer=["112"], prompts=["What is 112?"]) == [float(right)]
    assert addition_reward([[{"role": "assistant", "content": completion}]], answer=["112"]) == [float(right)]


def test_last_number() -> None:
    assert last_number("1,234,567") == "1234567"
    assert last_number("10-3") == "3"
    assert last_number("it is −7") == "-7"
    assert last_number(".50") == "0.5"
    assert last_number("9" * 10_000) == "9" * 10_000


def test_reward_needs_as_many_answers() -> None:
    with pytest.raises(ValueError, match="2 completions"):
        addition_reward(["1", "2"], answer=["1"])
