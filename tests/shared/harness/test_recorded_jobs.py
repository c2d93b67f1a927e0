"""Recorded jobs: a draw keeps to number and budget, with every cheap experiment in it; what counts as the same."""

from __future__ import annotations

import math
import random

import pandas as pd
import pytest

from grpo_replications.shared.harness.jobs import Job
from grpo_replications.shared.harness.measurements import CSV_COLUMNS
from grpo_replications.shared.harness.measuring_again import SMALL, SMALL_IN_64_BITS, held_against
from grpo_replications.shared.harness.recorded_jobs import RecordedJob, draw
from grpo_replications.shared.harness.seed_ranges import read_range, written_range


def jobs(name: str, number: int, seconds: float) -> list[RecordedJob]:
    return [RecordedJob(Job(name, 1, {}, "", range(seed, seed + 1), False), seconds) for seed in range(number)]


def test_a_draw_keeps_to_number_and_budget_and_leaves_no_cheap_experiment_out() -> None:
    luck = random.Random(0)
    for seed in range(60):
        drawable = {name: jobs(name, luck.randint(1, 30), 10 ** luck.uniform(-2, 2)) for name in "abcdef"}
        number, budget = luck.randint(1, 20), luck.uniform(0, 200)
        drawn, without = draw(drawable, number, budget, seed)
        assert (drawn, without) == draw(drawable, number, budget, seed)
        names = [one.job.experiment for one in drawn]
        assert len(drawn) <= number and sum(one.seconds for one in drawn) <= budget
        assert len({str(one.job) for one in drawn}) == len(drawn)
        assert set(names) | {one.experiment for one in without} == set(drawable)
        assert not set(names) & {one.experiment for one in without}
        cost = {name: own[0].seconds for name, own in drawable.items()}
        assert [cost[name] for name in names] == sorted(cost[name] for name in names)
        # The cheapest experiments, one job each, as far as both limits go.
        cheapest = sorted(cost, key=cost.get)[: len(set(names))]
        assert set(names) == set(cheapest)
        if without and len(drawn) < number:
            assert sum(cost[name] for name in cheapest) + min(cost[one.experiment] for one in without) > budget
        # Nothing that would still fit is left.
        left = [one for own in drawable.values() for one in own if one not in drawn]
        spent = sum(one.seconds for one in drawn)
        assert len(drawn) == number or all(spent + one.seconds > budget for one in left)


def test_another_seed_draws_others() -> None:
    drawable = {"a": jobs("a", 100, 1.0), "b": jobs("b", 100, 2.0)}
    assert len({tuple(one.job.seeds.start for one in draw(drawable, 5, 60, seed)[0]) for seed in range(20)}) > 15


def test_a_written_range_is_read_again() -> None:
    for seeds in (range(1), range(3, 4), range(16), range(64, 320)):
        assert read_range(written_range(seeds)) == seeds


@pytest.mark.parametrize(
    ("before", "now", "small", "outcome", "relative"),
    [
        (0.5, 0.5, SMALL_IN_64_BITS, "identical", 0.0),
        (math.nan, math.nan, SMALL_IN_64_BITS, "identical", 0.0),
        (0.5, 0.5 * (1 + 4e-7), SMALL_IN_64_BITS, "within rounding", 4e-7),
        (0.5, 0.5 * (1 + 4e-6), SMALL, "different", 4e-6),
        (4.1e-16, 3.6e-16, SMALL_IN_64_BITS, "within rounding", 5e-11),
        (3e-8, -1e-8, SMALL_IN_64_BITS, "different", 0.04),
        (3e-8, -1e-8, SMALL, "within rounding", 4e-7),
        (0.5, math.nan, SMALL_IN_64_BITS, "different", None),
    ],
)
def test_what_counts_as_rounding(before: float, now: float, small: float, outcome: str, relative: float | None) -> None:
    def rows(*values: float) -> pd.DataFrame:
        return pd.DataFrame(
            [("a", "", 0, 1, f"m{place}", value) for place, value in enumerate(values)], columns=CSV_COLUMNS
        )

    check = held_against(jobs("a", 1, 1.0)[0].job, rows(1.0, before), rows(1.0, now), 0.1, small)
    assert check.outcome == outcome and check.differ == (outcome != "identical") and check.values == 2
    assert check.relative == (relative if relative is None else pytest.approx(relative, rel=1e-4))
    assert ("m1, seed 0, step 1: committed" in check.largest) == (outcome != "identical")
    lone = held_against(jobs("a", 1, 1.0)[0].job, rows(1.0, before), rows(1.0), 0.1, small)
    assert lone.outcome == "different" and "m1, seed 0, step 1: only among the committed" in lone.largest
