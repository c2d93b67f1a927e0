"""Comparisons against a margin, ties, equivalence, peaks of curves, times; verdicts recomputed by other means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from grpo_replications.shared.harness.checks import Check
from grpo_replications.shared.harness.verdicts import (
    EQUIVALENT,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Verdict,
)
from tests.shared.harness.test_verdicts import arms, check, frame, judge, normal

SIDES = {"better": {"method": "new"}, "worse": {"method": "old"}}


def compare(kind: str, **keys: Any) -> Check:
    return check(kind, **SIDES, **keys)


def spread(mean: float, n: int, deviation: float, seed: int = 0) -> np.ndarray:
    """n values with exactly this mean and sample standard deviation, without skewness."""
    values = stats.norm.ppf((np.arange(n) + 0.5) / n)
    values = values / values.std(ddof=1) * deviation + mean
    return np.random.default_rng(seed).permutation(values)


# margins


@pytest.mark.parametrize(
    ("mean", "deviation", "beyond", "verdict"),
    [
        (2.0, 1.0, "margin", REPRODUCED),
        (-2.0, 1.0, "margin", NOT_REPRODUCED),
        (0.0, 1.0, "margin", EQUIVALENT),
        (0.0, 4.0, "margin", INCONCLUSIVE),
        (1.2, 1.0, "margin", INCONCLUSIVE),  # above zero, not above the margin
        (1.2, 1.0, "zero", REPRODUCED),  # above zero, and the mean reaches the margin
        (0.4, 0.1, "zero", EQUIVALENT),  # above zero, and too small to matter
        (0.9, 1.0, "zero", INCONCLUSIVE),  # above zero, but the mean does not reach the margin
    ],
)
def test_a_direction_against_the_smallest_effect_that_matters(
    mean: float, deviation: float, beyond: str, verdict: str
) -> None:
    rows = arms(spread(mean, 20, deviation) + np.arange(20), np.arange(20.0))
    assert judge(compare("direction", margin=1.0, beyond=beyond), *rows).verdict == verdict


def test_a_tie_is_no_win() -> None:
    """Eight seeds of twelve are tied: the mean is far from zero, but only a third of the seeds show it."""
    gains = np.where(np.arange(12) % 3 == 0, spread(30.0, 12, 0.1), 0.0)
    result = judge(compare("direction"), *arms(gains, np.zeros(12)))
    assert result.verdict == INCONCLUSIVE
    assert result.cells[0].sign is not None and result.cells[0].sign.ties == 8 and result.cells[0].sign.wins == 4


def test_a_collapsed_pair_does_not_win_half_the_steps() -> None:
    """Both runs of a pair peak at step 0: 0 is not under half of 0."""
    steps = arms(np.array([0.0, 9, 8, 10, 9, 11, 8]), np.array([0.0, 10, 9, 11, 12, 9, 10]))
    result = judge(compare("direction", higher_is_better=False, worse_factor=0.5), *steps)
    assert result.verdict == NOT_REPRODUCED and result.cells[0].sign is not None
    assert (result.cells[0].sign.wins, result.cells[0].sign.losses, result.cells[0].sign.ties) == (0, 6, 1)


@pytest.mark.parametrize("kind", ["direction", "equivalent"])
def test_equivalence_needs_the_whole_interval_inside_the_margin(kind: str) -> None:
    gains = spread(0.3, 16, 1.0)
    half = stats.t.ppf(0.975, 15) / math.sqrt(16)  # half width of Student's interval
    for margin, inside in ((0.3 + half * 1.06, True), (0.3 + half * 0.99, False)):
        result = judge(compare(kind, margin=margin), *arms(gains, np.zeros(16)))
        wanted = (EQUIVALENT if kind == "direction" else REPRODUCED) if inside else INCONCLUSIVE
        assert result.verdict == wanted, margin


def test_equal_and_no_worse_also_of_a_metric_that_is_itself_a_difference() -> None:
    rows = frame(spread(-0.2, 12, 0.2))
    assert judge(check("equivalent", margin=1.0), rows).verdict == REPRODUCED
    assert judge(check("equivalent", margin=0.1), rows).verdict == INCONCLUSIVE
    assert judge(check("equivalent", margin=0.01), rows).verdict == NOT_REPRODUCED
    assert judge(check("non_inferior", margin=0.5), rows).verdict == REPRODUCED
    assert judge(check("non_inferior", margin=0.01), rows).verdict == NOT_REPRODUCED
    assert judge(check("non_inferior", margin=0.01, higher_is_better=False), rows).verdict == REPRODUCED


def test_levels_are_corrected_for_the_cells_judged_at_once() -> None:
    """A mean that Student's interval at 95 % calls, and the one at 99.5 % does not."""
    n, error = 20, 1 / math.sqrt(20)
    mean = error * (stats.t.ppf(0.975, n - 1) + stats.t.ppf(0.9975, n - 1)) / 2
    alone = arms(spread(mean, n, 1.0), np.zeros(n))
    ten = [part for lr in range(10) for part in arms(spread(mean, n, 1.0, lr), np.zeros(n), lr=lr)]
    assert judge(compare("direction"), *alone).verdict == REPRODUCED
    assert judge(compare("direction", conditions=("lr",)), *ten).verdict == INCONCLUSIVE


# recomputed by other means


def by_hand(gains: np.ndarray, margin: float) -> str:
    """The verdict on symmetric data by scipy alone; None where the interval ends too close to a bar to tell."""
    low, high = stats.t.interval(0.95, len(gains) - 1, gains.mean(), stats.sem(gains))
    wins, losses = (gains > 0).sum(), (gains < 0).sum()
    if len(gains) < 6:
        return INCONCLUSIVE
    if low > margin and 2 * wins > len(gains):
        return REPRODUCED
    if high < -margin and 2 * losses > len(gains):
        return NOT_REPRODUCED
    return EQUIVALENT if -margin < low and high < margin else INCONCLUSIVE


def test_verdicts_agree_with_a_recomputation_by_scipy() -> None:
    generator, seen = np.random.default_rng(0), set()
    for trial in range(200):
        n, margin = int(generator.integers(4, 30)), float(generator.choice([0.2, 0.5]))
        gains = spread(float(generator.normal(0, 0.8)), n, float(generator.uniform(0.1, 1.0)), trial)
        low, high = stats.t.interval(0.95, n - 1, gains.mean(), stats.sem(gains))
        if min(abs(abs(end) - margin) for end in (low, high)) < 0.15 * (high - low):
            continue  # the interval that decides is up to a fifth wider than Student's
        worse = generator.normal(size=n)
        result = judge(compare("direction", margin=margin), *arms(gains + worse, worse))
        assert result.verdict == by_hand(gains, margin), (trial, result.reason)
        seen.add(result.verdict)
    assert seen == {REPRODUCED, NOT_REPRODUCED, EQUIVALENT, INCONCLUSIVE}


# how many seeds


def test_an_open_comparison_says_how_many_seeds_would_decide() -> None:
    """With mean 0.5 and deviation 1, power 80 % at 5 % two-sided takes 34 pairs (Student's t)."""
    result = judge(compare("direction"), *arms(spread(0.5, 10, 1.0), np.zeros(10)))
    assert result.verdict == INCONCLUSIVE and "34 seeds would decide in 80 % of studies (holds)" in result.reason


def test_or_that_no_number_would() -> None:
    result = judge(compare("equivalent", margin=0.5), *arms(spread(0.6, 8, 2.0), np.zeros(8)))
    assert result.verdict == INCONCLUSIVE and "no number of seeds would decide" in result.reason


# peaks


def curves(heights: dict[str, dict[float, float]], seed: int = 3, n: int = 12) -> list[pd.DataFrame]:
    """Runs of methods at rates, `n` seeds each that share a part of their value."""
    generator = np.random.default_rng(seed)
    shared = np.arange(n) / n
    return [
        frame(height + shared + generator.normal(0, 0.02, n), method=method, lr=rate)
        for method, rates in heights.items()
        for rate, height in rates.items()
    ]


def test_each_method_at_its_own_best_rate() -> None:
    """New leads at every rate that both have but peaks no higher: the methods are equivalent."""
    same = {"new": {1.0: 0.5, 2.0: 1.0, 4.0: 0.9}, "old": {1.0: 0.2, 2.0: 0.4, 4.0: 1.0}}
    check_ = compare("peak", margin=0.1)
    assert judge(check_, *curves(same)).verdict == EQUIVALENT
    assert judge(check_, *curves({**same, "new": {1.0: 0.5, 2.0: 1.3}})).verdict == REPRODUCED
    assert judge(check_, *curves({**same, "new": {1.0: 0.5}})).verdict == NOT_REPRODUCED


def test_a_diverged_run_counts_as_what_was_said_beforehand() -> None:
    rows = curves({"new": {1.0: 1.0, 2.0: 0.5}, "old": {1.0: 0.2}})
    rows[1].loc[0, "value"] = math.nan
    open_ = judge(compare("peak"), *rows)
    assert open_.verdict == INCONCLUSIVE and "not finite" in open_.reason
    assert judge(compare("peak", diverged=0.0), *rows).verdict == REPRODUCED


def test_rates_of_several_experiments_make_one_curve() -> None:
    rows = curves({"new": {1.0: 1.0}, "old": {1.0: 0.0}})
    other = [part.assign(experiment="other") for part in curves({"old": {2.0: 3.0}}, seed=4)]
    assert judge(compare("peak"), *rows, *other).verdict == REPRODUCED
    assert judge(compare("peak", also_from=("other",)), *rows, *other).verdict == NOT_REPRODUCED


# times


def timed(**keys: Any) -> Check:
    return compare("time", **{"horizon": 100, **keys})


def test_a_time_is_cut_off_at_the_horizon() -> None:
    fast, slow = spread(20.0, 12, 2.0, 1), spread(60.0, 12, 5.0, 2)
    never = np.full(12, math.inf)
    third = judge(timed(ratio_below=0.5), *arms(fast, slow))
    assert third.verdict == REPRODUCED and third.estimate.value == pytest.approx(1 / 3)
    assert judge(timed(ratio_below=0.25), *arms(fast, slow)).verdict == NOT_REPRODUCED
    censored = judge(timed(ratio_below=0.5), *arms(fast, never))
    assert censored.estimate.value == pytest.approx(0.2) and "12 and 0 of 12 runs" in censored.reason
    assert judge(timed(margin=0.1), *arms(spread(50, 12, 1, 1), spread(50, 12, 1, 2))).verdict == EQUIVALENT


def test_a_curve_and_its_threshold_give_the_same_verdict_as_the_times() -> None:
    generator = np.random.default_rng(1)
    times = {"new": generator.integers(2, 6, 10) * 10.0, "old": generator.integers(6, 12, 10) * 10.0}
    rows = [
        frame((step >= own).astype(float), step=step, method=method)
        for method, own in times.items()
        for step in range(0, 101, 10)
    ]
    by_curve = judge(timed(reach=0.5, ratio_below=0.8), *rows)
    by_time = judge(timed(ratio_below=0.8), *arms(times["new"], times["old"]))
    assert by_curve.verdict == by_time.verdict == REPRODUCED
    assert by_curve.estimate == by_time.estimate


def test_a_run_that_was_not_followed_to_the_horizon_has_no_time() -> None:
    rows = [frame(np.zeros(8), step=step, method=method) for method in ("new", "old") for step in (0, 50)]
    result = judge(timed(reach=0.5), *rows)
    assert result.verdict == INCONCLUSIVE and "not followed to the horizon" in result.reason


# shares


def test_a_share_is_judged_group_by_group() -> None:
    """Five seeds of 100 perfect groups show more than 95 %; judged over seeds they could not show 60 %."""
    groups = [frame([100.0] * 5), frame([100.0] * 5, metric="groups")]
    share = check("share", threshold=0.95, totals="groups")
    assert judge(share, *groups).verdict == REPRODUCED and judge(share, *groups).n == 500
    by_seed = judge(check("at_least", value=0.95, min_seeds=5), frame([1.0] * 5))
    assert by_seed.verdict == INCONCLUSIVE


def test_groups_of_one_seed_are_not_independent() -> None:
    """The same 90 of 100 groups, spread evenly over seeds or all missing in one."""
    even, uneven = frame([9.0] * 10), frame([10.0] * 9 + [0.0])
    share = check("share", threshold=0.8, totals=10)

    def width(verdict: Verdict) -> float:
        return verdict.estimate.high - verdict.estimate.low

    assert width(judge(share, uneven)) > 2 * width(judge(share, even))
    assert judge(check("share", threshold=0.8, totals=10, metric_is="share"), even.assign(value=0.9)).n == 100


def test_direction_without_margin_is_never_equivalent() -> None:
    assert judge(compare("direction"), *arms(normal(0, 200, spread=1e-9), np.zeros(200))).verdict == INCONCLUSIVE
