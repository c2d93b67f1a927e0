"""One cell of a comparison -> holds, fails, equivalent or undecided.

The kinds are those of `shared.harness.comparisons`.  The interval of the mean difference decides and the sign test
must not contradict it; both are computed by `shared.statistics`, at a level corrected for the `cells` that are judged
at once.  An undecided cell says how many seeds would decide, or that no number would.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.cells import UNKNOWN, Cell, filter_rows, per_seed, seeds_text
from grpo_replications.shared.harness.comparisons import (
    Comparison,
    DirectionCheck,
    EquivalentCheck,
    NonInferiorCheck,
    PeakCheck,
    TimeCheck,
)
from grpo_replications.shared.harness.judging import NO_SEEDS, estimate_text, seeds_sentence, too_little
from grpo_replications.shared.statistics.curves import decide_peaks, peak_of_curves
from grpo_replications.shared.statistics.decisions import (
    Decision,
    decide_direction,
    difference_interval,
    equivalence,
    non_inferiority,
    unusable,
)
from grpo_replications.shared.statistics.estimates import Estimate
from grpo_replications.shared.statistics.seeds import (
    SeedsNeeded,
    seeds_for_direction,
    seeds_for_equivalence,
    seeds_needed,
)
from grpo_replications.shared.statistics.sign_tests import SignTest, corrected_level, sign_test
from grpo_replications.shared.statistics.states import EQUIVALENT, FAILS, HOLDS, LEVEL, UNDECIDED
from grpo_replications.shared.statistics.times import ratio_of_times, restricted_times, time_to_threshold


def judge_direction(check: DirectionCheck, settings: dict[str, Any], rows: pd.DataFrame, cells: int) -> Cell:
    """The mean difference against the margin, or against zero."""
    found = _gains(check, settings, rows)
    if isinstance(found, Cell):
        return found
    gains, seeds = found
    decision = decide_direction(gains, check.margin, cells=cells, beyond=check.judged_beyond)
    needed = seeds_needed(gains, check.margin, cells=cells, beyond=check.judged_beyond)
    return _cell(check, settings, seeds, decision, needed, decision.sign)


def judge_equivalent(check: EquivalentCheck, settings: dict[str, Any], rows: pd.DataFrame, cells: int) -> Cell:
    """The whole interval of the mean difference inside the margin."""
    found = _gains(check, settings, rows)
    if isinstance(found, Cell):
        return found
    gains, seeds = found
    decision = equivalence(gains, check.margin, cells=cells)
    needed = seeds_for_equivalence(gains, check.margin, cells=cells)
    state = HOLDS if decision.state == EQUIVALENT else decision.state
    return _cell(check, settings, seeds, decision, needed, sign_test(gains, cells=cells), state)


def judge_non_inferior(check: NonInferiorCheck, settings: dict[str, Any], rows: pd.DataFrame, cells: int) -> Cell:
    """The interval of the mean difference above minus the margin."""
    found = _gains(check, settings, rows)
    if isinstance(found, Cell):
        return found
    gains, seeds = found
    decision = non_inferiority(gains, check.margin, cells=cells)
    needed = seeds_for_direction(gains + check.margin, 0.0, cells=cells)
    return _cell(check, settings, seeds, decision, needed, sign_test(gains, cells=cells))


def judge_peak(check: PeakCheck, settings: dict[str, Any], rows: pd.DataFrame, cells: int) -> Cell:
    """The difference of the two methods' best means over the rates."""
    sign = 1 if check.higher_is_better else -1
    sides = [_curve(filter_rows(rows, side), check) for side in (check.better, check.worse)]
    if not all(sides):
        return Cell(settings, UNDECIDED, UNKNOWN, "only one of the two sides has been measured")
    common = sorted(set.intersection(*(set(values.index) for side in sides for values in side.values())))
    seeds = seeds_text(common)
    if not common:
        return Cell(settings, UNDECIDED, UNKNOWN, "no seed measured every rate of both sides")
    rates = sorted({rate for side in sides for rate in side})
    curves = np.full((2, len(rates), len(common)), -np.inf)
    for method, side in enumerate(sides):
        for rate, values in side.items():
            curves[method, rates.index(rate)] = sign * values[common].to_numpy()
    if check.diverged is not None:
        curves = np.where(np.isnan(curves), sign * check.diverged, curves)
    try:
        peaks = peak_of_curves(curves)
    except ReplicationError as error:  # a run without a number, and no value that it counts as
        return Cell(settings, UNDECIDED, UNKNOWN, str(error), seeds=seeds)
    decision = decide_peaks(peaks, 0, 1, check.margin, cells=cells, beyond=check.judged_beyond)
    if too_few := too_little(peaks.held_out[0], check.min_seeds):
        decision = Decision(UNDECIDED, decision.estimate, decision.decisive, too_few, decision.sign)
    needed = seeds_needed(peaks.held_out[0] - peaks.held_out[1], check.margin, cells=cells, beyond=check.judged_beyond)
    best = ", ".join(f"{check.over_rates} {rates[index]:g}" for index in peaks.best)
    cell = _cell(check, settings, seeds, decision, needed, decision.sign)
    return Cell(settings, cell.state, cell.estimate, f"best at {best}; {cell.reason}", cell.sign, seeds)


def judge_time(check: TimeCheck, settings: dict[str, Any], rows: pd.DataFrame, cells: int) -> Cell:
    """The ratio of the restricted mean times, better over worse."""
    x, y = (_times(filter_rows(rows, side), check) for side in (check.better, check.worse))
    common = x.index.intersection(y.index)
    seeds = seeds_text(common)
    if common.empty:
        return Cell(settings, UNDECIDED, UNKNOWN, _one_sided(x, y))
    a, b = x[common].to_numpy(), y[common].to_numpy()
    unknown = int(np.isnan(a).sum() + np.isnan(b).sum())
    if unknown:
        reason = f"{unknown} of {2 * len(a)} runs were not followed to the horizon {check.horizon:g}, or have no time"
        return Cell(settings, UNDECIDED, UNKNOWN, reason, seeds=seeds)
    try:
        ratio, decisive = (ratio_of_times(a, b, check.horizon, at) for at in (LEVEL, corrected_level(LEVEL, cells)))
    except ReplicationError as error:  # every time is 0
        return Cell(settings, UNDECIDED, UNKNOWN, str(error), seeds=seeds)
    gains = check.ratio_below * restricted_times(b, check.horizon) - restricted_times(a, check.horizon)
    test = sign_test(gains, cells=cells)
    reason = f"ratio {estimate_text(ratio)}, below {check.ratio_below:g} wanted"
    state, words = _time_state(check, decisive, test, gains, cells)
    reached = [int((times < check.horizon).sum()) for times in (a, b)]
    reason += f"; {words} ({_seeds_won(test)}; reached by {reached[0]} and {reached[1]} of {len(a)} runs)"
    if state == UNDECIDED:
        reason += f"; {seeds_sentence(seeds_for_direction(gains, 0.0, cells=cells))}"
    return Cell(settings, state, ratio, reason, test, seeds)


def _time_state(check: TimeCheck, decisive: Estimate, test: SignTest, gains: np.ndarray, cells: int) -> tuple[str, str]:
    if problem := too_little(gains, check.min_seeds) or unusable(gains, cells=cells):
        return UNDECIDED, problem
    if check.margin and 1 - check.margin <= decisive.low and decisive.high <= 1 + check.margin:
        return EQUIVALENT, f"the whole interval lies inside 1 ± {check.margin:g}"
    bar = f"{check.ratio_below:g}"
    if not (decisive.high < check.ratio_below or decisive.low > check.ratio_below):
        return UNDECIDED, f"the interval contains {bar}"
    holds = decisive.high < check.ratio_below
    # The sign test contradicts a side that did not win more than half of all seeds, ties counted as no win.
    if 2 * (test.wins if holds else test.losses) <= test.n:
        return UNDECIDED, "the interval shows a direction, but not even half of the seeds share it"
    return (HOLDS, f"the whole interval lies below {bar}") if holds else (FAILS, f"the whole interval lies above {bar}")


def _gains(
    check: DirectionCheck | EquivalentCheck | NonInferiorCheck, settings: dict[str, Any], rows: pd.DataFrame
) -> tuple[np.ndarray, str] | Cell:
    """Better minus worse of each seed, positive where better, and the seeds; or the cell that cannot be judged."""
    sign = 1 if check.higher_is_better else -1
    if not check.better and not check.worse:  # the metric is itself a difference
        values = per_seed(rows, check.reduce)
        problem = too_little(values.to_numpy(), check.min_seeds)
        gains, seeds = sign * values.to_numpy(), seeds_text(values.index)
    else:
        x, y = (per_seed(filter_rows(rows, side), check.reduce) for side in (check.better, check.worse))
        common = x.index.intersection(y.index)
        if common.empty:
            return Cell(settings, UNDECIDED, UNKNOWN, _one_sided(x, y, rows))
        a, b = x[common].to_numpy(), y[common].to_numpy()
        problem = too_little(a, check.min_seeds) or too_little(b, check.min_seeds)
        gains, seeds = sign * (a - check.worse_factor * b), seeds_text(common)
    if not problem:
        return gains, seeds
    estimate, test = UNKNOWN, None
    if len(gains) and np.isfinite(gains).all():
        estimate, test = _signed(difference_interval(gains), sign), sign_test(gains)
        margin = check.margin
        problem = f"mean difference {estimate_text(estimate)}; {problem}; {_planned(check, gains, margin)}"
    return Cell(settings, UNDECIDED, estimate, problem, test, seeds)


def _planned(check: DirectionCheck | EquivalentCheck | NonInferiorCheck, gains: np.ndarray, margin: float) -> str:
    if isinstance(check, DirectionCheck):
        return seeds_sentence(seeds_needed(gains, margin, beyond=check.judged_beyond))
    if isinstance(check, EquivalentCheck):
        return seeds_sentence(seeds_for_equivalence(gains, margin))
    return seeds_sentence(seeds_for_direction(gains + margin, 0.0))


def _cell(
    check: Comparison,
    settings: dict[str, Any],
    seeds: str,
    decision: Decision,
    needed: SeedsNeeded,
    test: SignTest | None,
    state: str | None = None,
) -> Cell:
    """A decision on gains (positive where better) as a cell, whose estimate is better minus worse in the metric."""
    sign = 1 if check.higher_is_better else -1
    estimate = _signed(decision.estimate, sign)
    taken = "" if sign > 0 else " (in gains, worse minus better)"
    reason = f"mean difference {estimate_text(estimate)}; {decision.reason}{taken}"
    state = decision.state if state is None else state
    if state == UNDECIDED:
        reason += f"; {seeds_sentence(needed)}"
    return Cell(settings, state, estimate, reason, test, seeds)


def _signed(estimate: Estimate, sign: int) -> Estimate:
    if sign > 0:
        return estimate
    return estimate._replace(value=-estimate.value, low=-estimate.high, high=-estimate.low)


def _curve(rows: pd.DataFrame, check: PeakCheck) -> dict[float, pd.Series]:
    """Rate -> one value per seed."""
    curve = {}
    for rate, own in rows.groupby(check.over_rates):
        values = per_seed(own, check.reduce)
        if len(values):
            curve[float(rate)] = values
    return curve


def _times(rows: pd.DataFrame, check: TimeCheck) -> pd.Series:
    """Time of each seed; inf where not reached, nan where unknown."""
    rows = rows.dropna(subset=["seed"])
    if check.reach is None:
        times = rows.groupby("seed")["value"].agg(check.reduce).astype(float)
        unknown = rows["value"].isna().groupby(rows["seed"]).any()
        return times.mask(unknown.reindex(times.index), math.nan)
    times = {}
    for seed, run in rows.dropna(subset=["step"]).groupby("seed"):
        curve = run.groupby("step")["value"].agg(check.reduce)
        steps = curve.index.to_numpy(dtype=float)
        time = float(time_to_threshold(curve.to_numpy(), steps, check.reach))
        times[seed] = math.nan if time > check.horizon > steps[-1] else time
    return pd.Series(times, dtype=float)


def _one_sided(x: pd.Series, y: pd.Series, rows: pd.DataFrame | None = None) -> str:
    if rows is not None and len(rows) and rows["seed"].isna().all():
        return NO_SEEDS
    return "only one of the two sides has been measured" if x.empty or y.empty else "no seed measured both sides"


def _seeds_won(test: SignTest) -> str:
    tied = f", {test.ties} tied" if test.ties else ""
    return f"seeds {test.wins} to {test.losses}{tied}, sign test p = {test.p_value:.2g}"
