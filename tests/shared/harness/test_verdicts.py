"""Every verdict can be reached, and every criterion can fail."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from grpo_replications.shared.harness.checks import CHECK, Check
from grpo_replications.shared.harness.measurements import CSV_COLUMNS
from grpo_replications.shared.harness.verdicts import (
    CONDITIONAL,
    EQUIVALENT,
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    UNDECIDED,
    Cell,
    Verdict,
    combine,
    evaluate,
)

TEXT = {
    "claim": "p/claim",
    "source": "paper",
    "statement": "s",
    "where": "w",
    "answers": "here",
    "experiment": "e",
    "profiles": ("quick",),
    "metric": "m",
    "unit": "u",
    "definition": "d",
}


def check(kind: str, value: float | None = None, paper_seeds: int | None = None, **keys: Any) -> Check:
    """A check; `value` is the number that its kind compares with, `paper_seeds` is left out where it has no meaning."""
    own = {"interval": {"paper_value": value, "paper_seeds": paper_seeds}}
    if kind in ("at_least", "at_most", "share"):
        own[kind] = {"threshold": value}
    return CHECK.validate_python({"id": "p/a", "kind": kind, **TEXT, **own.get(kind, {}), **keys})


def frame(values: Iterable[float], metric: str = "m", step: float = math.nan, **settings: Any) -> pd.DataFrame:
    """One row per seed 0, 1, ... with these values."""
    label = ";".join(f"{name}={value}" for name, value in sorted(settings.items()))
    rows = [["e", label, seed, step, metric, value] for seed, value in enumerate(values)]
    return pd.DataFrame(rows, columns=CSV_COLUMNS).assign(**settings)


def judge(one: Check, *frames: pd.DataFrame, timings: pd.DataFrame | None = None, profile: str = "quick") -> Verdict:
    rows = pd.concat(frames, ignore_index=True) if frames else frame([])
    return evaluate(one, "p", profile, rows, frame([]) if timings is None else timings)


def normal(mean: float, n: int, seed: int = 0, spread: float = 1.0) -> np.ndarray:
    """n values whose sample mean is exactly `mean`."""
    values = np.random.default_rng(seed).normal(0, spread, n)
    return values - values.mean() + mean


# exact


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([0.0, 1e-13, -1e-13], REPRODUCED), ([0.0, 2e-12], NOT_REPRODUCED), ([0.0, -2e-12], NOT_REPRODUCED)],
)
def test_exact(values: list[float], verdict: str) -> None:
    assert judge(check("exact"), frame(values)).verdict == verdict


def test_exact_looks_at_every_row_against_its_target() -> None:
    close = check("exact", target=2.0, tolerance=0.1)
    assert judge(close, frame([2.05, 1.95])).verdict == REPRODUCED
    worst = judge(close, frame([2.0] * 99 + [2.2]))
    assert worst.verdict == NOT_REPRODUCED and worst.estimate.value == pytest.approx(2.2)
    assert math.isnan(worst.estimate.low) and worst.n == 100


@pytest.mark.parametrize("expect", [None, "violation"])
@pytest.mark.parametrize("wild", [math.nan, math.inf])
def test_exact_breaks_on_what_is_no_number(wild: float, expect: str | None) -> None:
    one = check("exact", expect=expect, minimum=1e-3 if expect else None)
    verdict = judge(one, frame([0.0 if expect is None else 1.0, wild]))
    assert verdict.verdict == NOT_REPRODUCED and "1 of 2 values are not finite" in verdict.reason


@pytest.mark.parametrize(("values", "verdict"), [([0.1, -0.2], REPRODUCED), ([0.1, 1e-3], NOT_REPRODUCED)])
def test_a_negative_control_must_fail_in_every_row(values: list[float], verdict: str) -> None:
    assert judge(check("exact", expect="violation", minimum=1e-3), frame(values)).verdict == verdict


# at_least and at_most


@pytest.mark.parametrize(
    ("kind", "mean", "verdict"),
    [
        ("at_least", 1.0, REPRODUCED),
        ("at_least", -1.0, NOT_REPRODUCED),
        ("at_least", 0.05, INCONCLUSIVE),
        ("at_most", -1.0, REPRODUCED),
        ("at_most", 1.0, NOT_REPRODUCED),
        ("at_most", -0.05, INCONCLUSIVE),
    ],
)
def test_thresholds(kind: str, mean: float, verdict: str) -> None:
    result = judge(check(kind, value=0.0), frame(normal(mean, 20)))
    assert result.verdict == verdict
    assert ("seeds would decide" in result.reason) == (verdict == INCONCLUSIVE)
    assert result.estimate.value == pytest.approx(mean) and result.estimate.low < mean < result.estimate.high


@pytest.mark.parametrize("kind", ["at_least", "at_most", "interval"])
def test_few_seeds_decide_nothing_and_the_reason_says_how_many_are_needed(kind: str) -> None:
    one = check(kind, value=0.0, paper_seeds=5)
    five = frame([9.0, 9.1, 9.2, 9.1, 9.0])
    result = judge(one, five)
    assert result.verdict == INCONCLUSIVE and "5 seeds; at least 6 are needed" in result.reason
    assert judge(check(kind, value=0.0, paper_seeds=5, min_seeds=5), five).verdict != INCONCLUSIVE


@pytest.mark.parametrize("kind", ["at_least", "at_most", "interval"])
def test_a_seed_that_gave_no_number_is_not_dropped(kind: str) -> None:
    result = judge(check(kind, value=0.0, paper_seeds=5), frame([*normal(5, 20), math.nan]))
    assert result.verdict == INCONCLUSIVE and "1 of 21 seeds gave a value that is not finite" in result.reason


def test_always_yes_is_not_certainty() -> None:
    assert judge(check("at_least", value=0.9), frame([1.0] * 6)).verdict == INCONCLUSIVE
    assert judge(check("at_least", value=0.9), frame([1.0] * 60)).verdict == REPRODUCED
    assert judge(check("at_least", value=0.9), frame([0.0] * 6)).verdict == NOT_REPRODUCED


def test_steps_are_reduced_to_one_number_per_seed() -> None:
    steps = [frame(normal(value, 8, spread=0.01), step=step) for step, value in ((0, 5.0), (1, 1.0), (2, 3.0))]
    for reduce, mean in (("mean", 3.0), ("max", 5.0), ("min", 1.0)):
        result = judge(check("at_least", value=0.0, reduce=reduce), *steps)
        assert result.n == 8 and result.estimate.value == pytest.approx(mean, abs=0.02)
    assert judge(check("at_least", value=0.0, select={"step": "last"}), *steps).estimate.value == pytest.approx(3.0)
    assert judge(check("at_least", value=0.0, select={"step": 1}), *steps).estimate.value == pytest.approx(1.0)


def test_the_last_step_is_each_seeds_own() -> None:
    rows = pd.concat([frame([1.0, 2.0], step=5), frame([10.0], step=9)])
    result = judge(check("at_least", value=0.0, select={"step": "last"}, min_seeds=2), rows)
    assert result.estimate.value == pytest.approx(6.0)  # seed 0 at step 9, seed 1 at step 5


def test_select_filters_on_settings_and_lists() -> None:
    rows = [frame(normal(lr, 8, spread=0.01), lr=lr) for lr in (1, 2, 3)]
    assert judge(check("at_least", value=0, select={"lr": 2}), *rows).estimate.value == pytest.approx(2)
    assert judge(check("at_least", value=0, select={"lr": [1, 2]}), *rows).estimate.value == pytest.approx(1.5)


def test_timings_are_judged_from_their_own_file() -> None:
    one = check("at_most", value=3.0, timing=True)
    assert judge(one, frame(normal(9, 8))).verdict == NOT_RUN
    assert judge(one, frame(normal(9, 8)), timings=frame(normal(1, 8, spread=0.1))).verdict == REPRODUCED


@pytest.mark.parametrize("kind", ["at_least", "at_most", "interval", "direction"])
def test_a_summary_over_all_seeds_has_no_spread_and_decides_nothing(kind: str) -> None:
    one = direction() if kind == "direction" else check(kind, value=0.0, paper_seeds=5)
    rows = pd.concat(arms(np.array([5.0]), np.array([1.0])) if kind == "direction" else [frame([5.0])])
    result = judge(one, rows.assign(seed=pd.array([pd.NA] * len(rows), dtype="Int64")))
    assert result.verdict == INCONCLUSIVE and result.n == 0
    assert "nothing is known about their spread" in result.reason


def test_exact_accepts_a_summary_over_all_seeds() -> None:
    rows = pd.concat([frame([5.0], step=1), frame([2.0], step=2)])
    rows = rows.assign(seed=pd.array([pd.NA] * 2, dtype="Int64"))
    assert judge(check("exact", target=2.0, select={"step": "last"}), rows).verdict == REPRODUCED
    assert judge(check("exact", target=2.0), rows).verdict == NOT_REPRODUCED


# interval


@pytest.mark.parametrize(("value", "verdict"), [(0.5, REPRODUCED), (2.0, NOT_REPRODUCED), (-2.0, NOT_REPRODUCED)])
def test_interval(value: float, verdict: str) -> None:
    result = judge(check("interval", value=value, paper_seeds=5), frame(normal(0.0, 100)))
    assert result.verdict == verdict
    assert result.estimate.high == pytest.approx(1.96 / math.sqrt(5), abs=0.15)


def test_interval_between_the_ranges_with_and_without_our_own_uncertainty_is_open() -> None:
    values = normal(0.0, 6)
    inner = judge(check("interval", value=0.0, paper_seeds=5), frame(values)).estimate.high
    result = judge(check("interval", value=inner * 1.15, paper_seeds=5), frame(values))
    assert result.verdict == INCONCLUSIVE and "seeds would decide" in result.reason
    assert judge(check("interval", value=inner * 3, paper_seeds=5), frame(values)).verdict == NOT_REPRODUCED


def test_more_seeds_in_the_paper_are_a_harder_test() -> None:
    values = frame(normal(0.0, 200))
    assert judge(check("interval", value=0.5, paper_seeds=2), values).verdict == REPRODUCED
    assert judge(check("interval", value=0.5, paper_seeds=100), values).verdict == NOT_REPRODUCED


def test_a_range_that_agrees_with_anything_proves_nothing() -> None:
    values = frame([0.0, 1.0] * 10)
    assert judge(check("interval", value=0.7, paper_seeds=5), values).verdict == REPRODUCED
    result = judge(check("interval", value=0.7, paper_seeds=5, max_width=0.5), values)
    assert result.verdict == INCONCLUSIVE and "agrees with nearly anything" in result.reason


# direction: the other comparisons are in test_judging_comparisons.py


def arms(better: np.ndarray, worse: np.ndarray, **settings: Any) -> list[pd.DataFrame]:
    return [frame(better, method="new", **settings), frame(worse, method="old", **settings)]


def direction(**keys: Any) -> Check:
    return check("direction", better={"method": "new"}, worse={"method": "old"}, **keys)


@pytest.mark.parametrize(("shift", "verdict"), [(2.0, REPRODUCED), (-2.0, NOT_REPRODUCED), (0.0, INCONCLUSIVE)])
def test_direction(shift: float, verdict: str) -> None:
    result = judge(direction(), *arms(normal(shift, 20, 1), normal(0.0, 20, 2)))
    assert result.verdict == verdict
    assert result.estimate.value == pytest.approx(shift, abs=1e-9)
    assert result.cells[0].sign is not None and result.cells[0].sign.n == 20 and result.cells[0].seeds == "0-19"
    assert ("seeds would decide" in result.reason) == (verdict == INCONCLUSIVE)


def test_lower_can_be_better() -> None:
    data = arms(normal(-2.0, 20, 1), normal(0.0, 20, 2))
    lower = judge(direction(higher_is_better=False), *data)
    assert lower.verdict == REPRODUCED and lower.estimate.value == pytest.approx(-2.0)
    assert lower.estimate.low < -2.0 < lower.estimate.high < 0
    assert judge(direction(), *data).verdict == NOT_REPRODUCED


def test_no_effect_is_reproduced_about_as_rarely_as_the_level_says() -> None:
    verdicts = [judge(direction(), *arms(normal(0, 15, s) * 1.0, normal(0, 15, s + 500))).verdict for s in range(100)]
    assert verdicts.count(REPRODUCED) <= 6 and verdicts.count(NOT_REPRODUCED) <= 6


def test_five_of_five_decide_nothing() -> None:
    """Five seeds that all agree have an exact two-sided p of 0.0625."""
    for seeds, verdict in ((5, INCONCLUSIVE), (6, REPRODUCED)):
        worse = np.arange(float(seeds))
        result = judge(direction(), *arms(worse + 9 + normal(0, seeds), worse))
        assert result.verdict == verdict and result.cells[0].sign is not None
        assert result.cells[0].sign.p_value == pytest.approx(2 * 0.5**seeds)
    result = judge(direction(min_seeds=20), *arms(normal(30, 19), np.arange(19.0)))
    assert result.verdict == INCONCLUSIVE and "19 seeds; at least 20 are needed" in result.reason


def test_pairs_are_the_seeds_that_both_sides_have() -> None:
    result = judge(direction(), frame(normal(2, 12), method="new"), frame(normal(0, 9), method="old"))
    assert result.n == 9


def test_one_side_alone_decides_nothing() -> None:
    result = judge(direction(), frame(normal(0, 9), method="new"))
    assert result.verdict == INCONCLUSIVE and "only one of the two sides" in result.reason
    apart = pd.concat([frame(normal(2, 5), method="new"), frame(normal(0, 9), method="old").iloc[5:]])
    result = judge(direction(), apart)
    assert result.verdict == INCONCLUSIVE and "no seed measured both sides" in result.reason


def test_direction_with_a_value_that_is_no_number_is_open() -> None:
    result = judge(direction(), *arms(np.array([*normal(5, 9), math.nan]), normal(0, 10)))
    assert result.verdict == INCONCLUSIVE and "not finite" in result.reason


def test_mean_and_majority_must_not_contradict_each_other() -> None:
    worse = np.zeros(200)
    better = np.where(np.arange(200) % 5 == 0, -100.0, 1.0) + normal(0, 200, spread=0.01)
    assert judge(direction(), *arms(better, worse)).verdict == INCONCLUSIVE
    assert judge(direction(), *arms(-np.abs(better), worse)).verdict == NOT_REPRODUCED


def test_identical_sides_are_open() -> None:
    assert judge(direction(), *arms(np.ones(50), np.ones(50))).verdict == INCONCLUSIVE


# conditions


def test_conditions_combine() -> None:
    good, bad, open_ = 3.0, -3.0, 0.0

    def over(**shifts: float) -> Verdict:
        rows = [
            part
            for number, (lr, shift) in enumerate(shifts.items())
            for part in arms(normal(shift, 30, number), normal(0, 30, 99), lr=float(lr[1:]), optimizer="sgd")
        ]
        return judge(direction(conditions=("optimizer", "lr")), *rows)

    assert over(_1=good, _2=good).verdict == REPRODUCED
    mixed = over(_1=bad, _2=good, _5=good, _10=open_)
    assert mixed.verdict == CONDITIONAL
    assert mixed.conditions == (
        "holds for optimizer=sgd: lr 2, 5; reversed for optimizer=sgd: lr 1; undecided for optimizer=sgd: lr 10"
    )
    assert math.isnan(mixed.estimate.value) and mixed.cells[0].label == "optimizer=sgd;lr=1"
    assert over(_1=bad, _2=bad).verdict == NOT_REPRODUCED
    assert over(_1=bad, _2=open_).verdict == NOT_REPRODUCED
    assert over(_1=open_, _2=open_).verdict == INCONCLUSIVE
    assert over(_1=good, _2=open_).verdict == CONDITIONAL


def cells(states: dict[tuple[str, int], str]) -> list[Cell]:
    one = judge(check("at_least", value=0), frame(normal(1, 9))).cells[0]
    return [Cell({"optimizer": o, "lr": lr}, state, one.estimate, "r") for (o, lr), state in states.items()]


def test_conditions_are_compressed() -> None:
    states = {("adam", 1): FAILS, ("adam", 2): FAILS, ("sgd", 1): HOLDS, ("sgd", 2): UNDECIDED}
    verdict = combine(check("at_least", value=0, conditions=("optimizer", "lr")), "quick", "", cells(states))
    assert verdict.conditions == (
        "holds for optimizer=sgd: lr 1; fails for optimizer=adam: every lr; undecided for optimizer=sgd: lr 2"
    )
    assert "holds in 1, fails in 2, undecided in 1" in verdict.reason


def test_among_many_cells_luck_is_not_a_condition() -> None:
    luck = normal(0.45, 30)  # alone its interval lies above zero
    assert judge(direction(), *arms(luck, np.zeros(30))).verdict == REPRODUCED
    rows = arms(luck, np.zeros(30), lr=0)
    for lr in range(1, 20):
        rows += arms(normal(0, 30, lr), normal(0, 30, 100 + lr), lr=lr)
    assert judge(direction(conditions=("lr",)), *rows).verdict == INCONCLUSIVE


def test_four_cells_need_eight_seeds() -> None:
    for seeds, verdict in ((7, INCONCLUSIVE), (8, REPRODUCED)):
        rows = [part for lr in range(4) for part in arms(normal(9, seeds, lr), np.zeros(seeds), lr=lr)]
        assert judge(direction(conditions=("lr",)), *rows).verdict == verdict


def test_a_check_is_equivalent_only_if_every_cell_is() -> None:
    def over(*shifts: float) -> Verdict:
        rows = [part for lr, x in enumerate(shifts) for part in arms(normal(x, 30, lr), np.zeros(30), lr=lr)]
        return judge(direction(margin=1.0, conditions=("lr",)), *rows)

    assert over(0.0, 0.1).verdict == EQUIVALENT
    assert over(0.0, 1.0).verdict == INCONCLUSIVE
    assert over(0.0, 3.0).verdict == CONDITIONAL and "equivalent for lr 0" in over(0.0, 3.0).conditions
    assert over(0.0, -3.0).verdict == NOT_REPRODUCED


def test_many_cells_do_not_make_an_interval_check_easier() -> None:
    values = normal(0, 50)
    value = judge(check("interval", value=0, paper_seeds=5), frame(values)).estimate.high * 1.02
    rows = [frame(values if lr else values + 50, lr=lr) for lr in range(20)]
    result = judge(check("interval", value=value, paper_seeds=5, conditions=("lr",)), *rows)
    assert HOLDS not in {cell.state for cell in result.cells}


# not run


def test_nothing_measured_is_not_run_with_the_command() -> None:
    one = check("at_least", value=0, experiment="x", profiles=("quick", "full"))
    result = judge(one, frame(normal(1, 9)))
    assert result.verdict == NOT_RUN and result.command == "make replicate-p PROFILE=quick ONLY=x"
    assert result.reason == "x has not been run"


def test_a_profile_that_cannot_test_it_names_the_one_that_can() -> None:
    one = check("at_least", value=0, profiles=("paper", "full"), not_run_reason="needs a GPU")
    result = judge(one, frame(normal(1, 9)))
    assert result.verdict == NOT_RUN and result.command == "make replicate-p PROFILE=paper ONLY=e"
    assert result.reason == "needs a GPU"
    unexplained = check("at_least", value=0, profiles=("full",))
    assert judge(unexplained, frame(normal(1, 9))).reason == "profile quick cannot test it"


def test_a_metric_or_cell_that_is_missing_is_not_run() -> None:
    other = judge(check("at_least", value=0), frame(normal(1, 9), metric="other"))
    assert other.verdict == NOT_RUN and "has not measured m (only other)" in other.reason
    cell = judge(check("at_least", value=0, select={"lr": 5}), frame(normal(1, 9), lr=1))
    assert cell.verdict == NOT_RUN and "the selected rows of m" in cell.reason


@pytest.mark.parametrize("kind", ["at_least", "interval", "direction"])
def test_the_same_measurements_give_the_same_verdict(kind: str) -> None:
    one = direction() if kind == "direction" else check(kind, value=0.1, paper_seeds=5)
    data = arms(normal(0.3, 15, 1), normal(0, 15, 2))
    assert judge(one, *data) == judge(one, *data)


def test_a_direction_may_ask_for_a_multiple() -> None:
    """Fewer steps than GRPO is one thing, under half of them another."""
    steps = arms(normal(7.0, 12, 1), normal(11.0, 12, 2))
    assert judge(direction(higher_is_better=False), *steps).verdict == REPRODUCED
    assert judge(direction(higher_is_better=False, worse_factor=0.5), *steps).verdict == NOT_REPRODUCED


def test_an_interval_is_compared_to_the_decimals_that_are_printed() -> None:
    tiny = frame([1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6])
    options: dict[str, Any] = {"value": 0.0, "paper_seeds": 5, "min_seeds": 5}
    assert judge(check("interval", **options), tiny).verdict != REPRODUCED
    rounded = judge(check("interval", **options, decimals=4), tiny)
    assert rounded.verdict == REPRODUCED
    assert 0 < rounded.estimate.low < rounded.estimate.value < rounded.estimate.high  # the number itself is not rounded
    assert rounded.estimate.kind == "central 95 % of means of 5 runs"


def test_a_strict_threshold_is_not_met_by_standing_on_it() -> None:
    still = frame([0.0] * 30)
    assert judge(check("at_least", value=0.0), still).verdict == REPRODUCED
    assert judge(check("at_least", value=0.0, strict=True), still).verdict == INCONCLUSIVE
    assert judge(check("at_least", value=0.0, strict=True), frame(normal(1.0, 30))).verdict == REPRODUCED


@pytest.mark.parametrize("value", [0.9, 0.99])
def test_few_seeds_that_agree_to_the_last_digit_decide_nothing(value: float) -> None:
    same = frame([0.9583] * 5)
    assert judge(check("at_least", value=value), same).verdict == INCONCLUSIVE
    assert judge(check("interval", value=value, paper_seeds=1), same).verdict == INCONCLUSIVE
    assert "spread is unknown" in judge(check("at_least", value=value), same).reason
