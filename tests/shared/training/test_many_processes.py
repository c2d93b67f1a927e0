"""Two and four processes do what one does, and weights divided by FSDP2 what whole weights do.

The reference is a run of one process on the same completions, whose gradients `test_trainer.py` and its neighbours hold
against independent formulas. Batches do not divide evenly: groups are split between processes, the last prompt of a
pass over the data is left over, and redrawn groups are fewer than the processes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_replications.shared.models import catalog
from tests.shared.training import many_processes_script
from tests.shared.training.many_processes_script import EVALUATED, GROUP, METHODS, NUMBERS, PROMPTS, ROWS

SEVERAL = [number for number in NUMBERS if number > 1]
TIMES = ("time", "epoch")
AVERAGED = ("kl", "entropy")  # TRL averages them over micro-batches, whatever their tokens
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the script has left its files, for all numbers of processes and all methods."""
    catalog.prepare("tiny-random")
    target = tmp_path_factory.mktemp("processes")
    many_processes_script.main(target)
    return target


@pytest.fixture(scope="module")
def left(directory: Path) -> dict[int, list[dict[str, Any]]]:
    """What every process left, by their number."""
    return {
        number: [torch.load(directory / f"{number}/rank{rank}.pt", weights_only=True) for rank in range(number)]
        for number in NUMBERS
    }


def metrics(run: dict[str, Any], without: tuple[str, ...] = ()) -> list[dict[str, float]]:
    left_out = [*without, *(name for name in run["history"][0] if any(time in name for time in TIMES))]
    return [{name: value for name, value in entry.items() if name not in left_out} for entry in run["history"]]


def groups(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "groups.jsonl").read_text().splitlines()]


def same(one: Any, other: Any, tolerance: float) -> None:
    """The same structure, with numbers the same up to the rounding of float32."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key], tolerance)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            same(a, b, tolerance)
    else:
        assert one == (pytest.approx(other, rel=tolerance, abs=tolerance) if isinstance(one, float) else other)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", SEVERAL)
def test_weights_audit_and_group_log_are_those_of_one_process(
    number: int, method: str, left: dict[int, list[dict[str, Any]]], directory: Path
) -> None:
    one, several = left[1][0][method], [rank[method] for rank in left[number]]
    for run in several:
        for name, value in one["weights"].items():
            assert torch.allclose(run["weights"][name], value, rtol=1e-5, atol=1e-6), name
    without = AVERAGED if "gradient_accumulation_steps" in METHODS[method] else ()
    # Loss, gradient norm, audit of the token weights, groups, budget.
    same(metrics(several[0], without), metrics(one, without), 2e-5)
    log = groups(directory / str(number) / method)
    same(log, groups(directory / "1" / method), 2e-5)
    assert len(log) == 3 * ROWS // GROUP, "no group is lost or doubled"
    kept = [len(group["completion_ids"]) for group in log]
    assert kept == [GROUP] * len(log)


@pytest.mark.parametrize("number", SEVERAL)
def test_rewards_are_asked_for_every_row_once(number: int, left: dict[int, list[dict[str, Any]]]) -> None:
    for method in METHODS:
        calls = [run[method]["rewarded"] for run in left[number]]
        together = [[row for share in shares for row in share] for shares in zip(*calls, strict=True)]
        alone = left[1][0][method]["rewarded"]
        assert len(together) == len(alone)
        for rows, expected in zip(together, alone):
            assert rows[: len(expected)] == expected, "in the order of one process"
            surplus = rows[len(expected) :]
            assert not surplus or (method == "redraws" and len(surplus) < number * GROUP)


def test_the_runs_reach_what_they_are_to_test(left: dict[int, list[dict[str, Any]]], directory: Path) -> None:
    assert PROMPTS % (ROWS // GROUP) and ROWS // 2 % GROUP and ROWS // 4 % GROUP
    log = groups(directory / "1" / "redraws")
    assert max(group["draws"] for group in log) > 1
    audit = [run["token_weights/share_between"] for run in metrics(left[1][0]["sharpness"])]
    assert min(audit) > 0, "a weight at its bounds alone would not follow the policy"
    assert {group["step"] for group in log} == {1, 2, 3}


def test_divided_weights_train_as_whole_ones_with_samples_of_different_lengths(
    left: dict[int, list[dict[str, Any]]], directory: Path
) -> None:
    for rank in left[2]:
        whole, divided = rank["sampled"], rank["divided"]
        assert (whole["kind"], divided["kind"]) == ("DistributedType.MULTI_CPU", "DistributedType.FSDP")
        same(metrics(divided), metrics(whole), 2e-5)
        for name, value in whole["weights"].items():
            assert torch.allclose(divided["weights"][name], value, rtol=1e-5, atol=1e-6), name
    log = groups(directory / "2" / "divided")
    same(log, groups(directory / "2" / "sampled"), 2e-5)
    steps = [[group["lengths"] for group in log if group["step"] == step] for step in (1, 2, 3)]
    rows = [[length for group in step for length in group] for step in steps]
    assert any(max(step[: ROWS // 2]) != max(step[ROWS // 2 :]) for step in rows), "else no process waits for another"


@pytest.mark.parametrize("number", NUMBERS)
def test_an_evaluation_that_counts_prompts_twice_says_so(number: int, left: dict[int, list[dict[str, Any]]]) -> None:
    prompts = [prompt for rank in left[number] for prompt in rank["grpo"]["evaluated"]]
    surplus = len(prompts) - EVALUATED * GROUP
    warned = [re.findall(r"(\d+) completions more are scored", text) for text in left[number][0]["grpo"]["warned"]]
    assert [found for found in warned if found] == ([[str(surplus)]] if surplus else [])
    assert bool(surplus) == (number > 1)
