"""One cell of a check of one sample -> holds, fails or undecided: `exact`, `at_least`, `at_most`, `interval`, `share`.

The statistics are those of `shared.statistics`; here it is decided what is counted and what is said about it.  `cells`
is the number of cells that are judged at once: the level that decides is corrected for it (Bonferroni), the interval
that is shown stays at 95 %.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.cells import UNKNOWN, Cell, per_seed, seeds_text
from grpo_replications.shared.harness.checks import ExactCheck, IntervalCheck, ShareCheck, ThresholdCheck
from grpo_replications.shared.statistics.decisions import against_threshold
from grpo_replications.shared.statistics.estimates import (
    Estimate,
    k_seed_mean_distribution,
    mean_interval,
    wilson_interval,
)
from grpo_replications.shared.statistics.proportions import clustered_share
from grpo_replications.shared.statistics.seeds import (
    SeedsNeeded,
    groups_for_share,
    seeds_for_direction,
    seeds_for_range,
)
from grpo_replications.shared.statistics.sign_tests import corrected_level
from grpo_replications.shared.statistics.states import FAILS, HOLDS, LEVEL, UNDECIDED

SEEDS_WITHOUT_SPREAD = 20
CENTRAL = "central 95 %"
NO_SEEDS = "measured once over all seeds, so that nothing is known about their spread"


def judge_exact(check: ExactCheck, settings: dict[str, Any], rows: pd.DataFrame, cells: int) -> Cell:
    """Every row counts, also one of no single seed; a value that is no number breaks the check.  No interval."""
    values = rows["value"].to_numpy()
    deviation = np.abs(values - check.target)
    n = rows["seed"].nunique()
    wild = int((~np.isfinite(deviation)).sum())
    violation = check.expect == "violation"
    decides = int(deviation.argmin() if violation else deviation.argmax())
    decisive = float(deviation[decides])
    holds = not wild and (decisive > check.minimum if violation else decisive <= check.tolerance)
    if wild:
        reason = f"{wild} of {len(deviation)} values are not finite"
    elif violation:
        reason = f"smallest of {len(deviation)} deviations {decisive:.3g}, must exceed {check.minimum:g}"
    else:
        reason = f"largest of {len(deviation)} deviations {decisive:.3g}, tolerance {check.tolerance:g}"
    estimate = Estimate(float(values[decides]), math.nan, math.nan, n)
    return Cell(settings, HOLDS if holds else FAILS, estimate, reason, seeds=seeds_text(rows["seed"].unique()))


def judge_threshold(check: ThresholdCheck, settings: dict[str, Any], rows: pd.DataFrame, cells: int) -> Cell:
    """The mean over seeds on the wanted side of the threshold, with its whole interval."""
    values = per_seed(rows, check.reduce)
    array = values.to_numpy()
    estimate, decisive = _mean(array, LEVEL), _mean(array, corrected_level(LEVEL, cells))
    undecided = too_little(array, check.min_seeds) or _no_spread(array)
    side = "above" if check.kind == "at_least" else "below"
    state, _ = (UNDECIDED, "") if undecided else against_threshold(decisive, check.threshold, side, check.strict)
    wanted = side if check.strict else check.kind.replace("_", " ")
    reason = f"mean {estimate_text(estimate)}, {wanted} {check.threshold:g} wanted"
    if undecided:
        reason += f"; {undecided}"
    elif state == UNDECIDED:
        reason += f"; the interval contains {check.threshold:g}"
    if state == UNDECIDED and not _wild(array):
        above = array - check.threshold if side == "above" else check.threshold - array
        reason += f"; {_seeds_for_mean(array, above, check.threshold, cells)}"
    return Cell(settings, state, estimate, reason, seeds=seeds_text(values.index))


def judge_interval(check: IntervalCheck, settings: dict[str, Any], rows: pd.DataFrame, cells: int) -> Cell:
    """Inside what a study of the paper's size would find: holds.  Outside even with our own uncertainty: fails."""
    values = per_seed(rows, check.reduce)
    array, seeds = values.to_numpy(), seeds_text(values.index)
    undecided = too_little(array, check.min_seeds) or _no_spread(array)
    if undecided:
        mean = Estimate(float(array.mean()), -math.inf, math.inf, len(array)) if len(array) else UNKNOWN
        return Cell(settings, UNDECIDED, mean, undecided, seeds=seeds)
    k = check.paper_seeds
    ends = _central(k_seed_mean_distribution(array, k), LEVEL)
    # The more cells are judged, the wider the range that a value must leave to count as outside.
    level = corrected_level(LEVEL, cells)
    outer_ends = _central(k_seed_mean_distribution(array, k, own_uncertainty=True), level)
    estimate = Estimate(float(array.mean()), *ends, len(array), central_kind(k))
    low, high = _as_printed(ends, check.decimals)
    outer_low, outer_high = _as_printed(outer_ends, check.decimals)
    inside = low <= check.paper_value <= high
    outside = not inside and not outer_low <= check.paper_value <= outer_high
    reason = f"{k}-seed means of ours: {estimate_text(estimate)}; the paper's {check.paper_value:g} is "
    rounded = "" if check.decimals is None else f", the range rounded to its {check.decimals} decimals"
    if inside and check.max_width is not None and high - low > check.max_width:
        reason += (
            f"inside, but a range {high - low:.3g} wide (over {check.max_width:g}) agrees with nearly anything; no "
            f"number of seeds would decide: the range is that of {k}-seed means"
        )
        return Cell(settings, UNDECIDED, estimate, reason, seeds=seeds)
    if not inside and not outside:
        needed = seeds_for_range(array, check.paper_value, k, level)
        reason += f"outside by less than our own uncertainty; {seeds_sentence(needed)}"
    else:
        reason += ("inside" if inside else "outside") + rounded
    return Cell(settings, HOLDS if inside else FAILS if outside else UNDECIDED, estimate, reason, seeds=seeds)


def judge_share(check: ShareCheck, settings: dict[str, Any], rows: pd.DataFrame, cells: int) -> Cell:
    """The share of groups over all seeds; rows of no single seed are left out."""
    successes, totals = _counts(check, rows)
    seeds = seeds_text(successes.index)
    if len(successes) < check.min_seeds:
        return Cell(settings, UNDECIDED, UNKNOWN, too_little(successes.to_numpy(), check.min_seeds), seeds=seeds)
    k, m = successes.to_numpy(), totals.to_numpy()
    estimate, decisive = (
        clustered_share(k, m, level, check.correlation) for level in (LEVEL, corrected_level(LEVEL, cells))
    )
    state, words = against_threshold(decisive, check.threshold, check.wanted, check.strict)
    reason = f"{k.sum():,.0f} of {m.sum():,.0f} groups of {len(k)} seeds, {estimate_text(estimate)}; {words}"
    if state == UNDECIDED and m.sum():
        needed = groups_for_share(k.sum(), m.sum(), check.threshold, corrected_level(LEVEL, cells))
        enough = needed.n is not None and needed.n <= m.sum()
        reason += "; as many groups would decide if they came from more seeds" if enough else f"; {needed}"
    return Cell(settings, state, estimate, reason, seeds=seeds)


def too_little(values: np.ndarray, min_seeds: int) -> str:
    """Why one value a seed cannot decide: no number among them, none at all, or too few; empty if it can."""
    if wild := _wild(values):
        return wild
    if not len(values):
        return NO_SEEDS
    if len(values) < min_seeds:
        return f"{len(values)} seed{'s' if len(values) != 1 else ''}; at least {min_seeds} are needed"
    return ""


def estimate_text(estimate: Estimate) -> str:
    """`0.05 [0.02, 0.08] (n = 20)`."""
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}] (n = {estimate.n})"


def seeds_sentence(needed: SeedsNeeded) -> str:
    """How many seeds would decide, for the end of a reason."""
    if needed.n is None:
        return str(needed)
    return f"if mean and spread stay, {needed.n:,} {needed.unit} would decide in 80 % of studies ({needed.state})"


def _wild(values: np.ndarray) -> str:
    wild = int((~np.isfinite(values)).sum())
    return f"{wild} of {len(values)} seeds gave a value that is not finite" if wild else ""


def _mean(array: np.ndarray, level: float) -> Estimate:
    estimate = mean_interval(array, level)
    if _yes_or_no(array):
        # Yes-or-no outcomes: resampling n successes out of n would claim certainty.
        share = wilson_interval(float(array.sum()), len(array), level)
        low, high = min(share.low, estimate.low), max(share.high, estimate.high)
        return Estimate(share.value, low, high, len(array), f"{share.kind} and {estimate.kind}".removesuffix(" and "))
    return estimate


def _yes_or_no(array: np.ndarray) -> bool:
    return len(array) > 0 and set(np.unique(array)) <= {0.0, 1.0}


def _seeds_for_mean(array: np.ndarray, gains: np.ndarray, threshold: float, cells: int) -> str:
    if not len(array):
        return "no number of seeds follows from none"
    if _yes_or_no(array):
        level = corrected_level(LEVEL, cells)
        return seeds_sentence(groups_for_share(array.sum(), len(array), threshold, level, unit="seeds"))
    return seeds_sentence(seeds_for_direction(gains, 0.0, cells=cells))


def _no_spread(values: np.ndarray) -> str:
    """Few seeds that agree to the last digit have an interval of no width, which would be false certainty.

    Yes-or-no values have Wilson's interval instead, so they are let pass.
    """
    same = len(values) < SEEDS_WITHOUT_SPREAD and len(np.unique(values)) == 1
    if not same or _yes_or_no(values):
        return ""
    return f"all {len(values)} seeds gave the same value, so their spread is unknown; {SEEDS_WITHOUT_SPREAD} would do"


def central_kind(seeds: int) -> str:
    """What the ends beside a mean are where they are no confidence interval: the range of means of so few runs."""
    return f"{CENTRAL} of single runs" if seeds == 1 else f"{CENTRAL} of means of {seeds} runs"


def _central(draws: np.ndarray, level: float) -> tuple[float, float]:
    low, high = (float(x) for x in np.quantile(draws, [(1 - level) / 2, (1 + level) / 2]))
    return low, high


def _as_printed(ends: tuple[float, float], decimals: int | None) -> tuple[float, float]:
    """A range to as many decimals as the paper prints, for comparing: its 0.0000 only means below 0.00005."""
    low, high = ends
    return (low, high) if decimals is None else (round(low, int(decimals)), round(high, int(decimals)))


def _counts(check: ShareCheck, rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Groups with the property and all groups, per seed."""
    keys = ["experiment", "settings", "seed", "step"]
    own = rows[rows["metric"] == check.metric].dropna(subset=["seed"])
    if isinstance(check.totals, str):
        other = rows[rows["metric"] == check.totals][[*keys, "value"]]
        # A row of totals without a step counts for every step.
        at = keys if other["step"].notna().any() else keys[:-1]
        own = own.merge(other[[*at, "value"]], on=at, how="left", suffixes=("", "_total"))
        totals = own["value_total"]
    else:
        totals = pd.Series(float(check.totals), own.index)
    counts = own["value"] * totals if check.metric_is == "share" else own["value"]
    whole = counts.round()
    if totals.isna().any() or not np.allclose(counts, whole, atol=1e-3):
        raise ReplicationError(
            f"{check.id}: {check.metric} and {check.totals} do not give a whole number of groups in every row; "
            "check metric_is and totals."
        )
    return whole.groupby(own["seed"]).sum(), totals.groupby(own["seed"]).sum()
