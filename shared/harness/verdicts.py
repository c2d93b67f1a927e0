"""Checks against measurements -> verdicts.

Every check is judged for each combination of its conditions (a *cell*), and the cells are combined:

all hold -> reproduced; some hold -> reproduced under conditions; none holds and one clearly fails -> not reproduced;
otherwise -> inconclusive; nothing measured -> not run.

Intervals are 95 % intervals over seeds.  Among many cells one would hold by luck sooner or later, so unless all cells
agree each is judged at the level that keeps the chance of any false call under 5 % (Bonferroni); the intervals that are
reported with a cell stay at 95 %.  All resampling uses a generator of its own with a fixed seed: the same measurements
always give the same verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from shared.harness.checks import Check, DirectionCheck, ExactCheck, IntervalCheck, ThresholdCheck, as_list
from shared.harness.profiles import format_value
from shared.statistics.estimates import (
    Estimate,
    k_seed_mean_distribution,
    mean_interval,
    paired_difference,
    probability_of_improvement,
    unpaired_difference,
    wilson_interval,
)

REPRODUCED, CONDITIONAL, NOT_REPRODUCED = "reproduced", "reproduced under conditions", "not reproduced"
INCONCLUSIVE, NOT_RUN = "inconclusive", "not run"
VERDICTS = (REPRODUCED, CONDITIONAL, NOT_REPRODUCED, INCONCLUSIVE, NOT_RUN)
HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
LEVEL = 0.95
SEEDS_WITHOUT_SPREAD = 20
NO_SEEDS = "measured once over all seeds, so that nothing is known about their spread"
UNKNOWN = Estimate(math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True)
class Cell:
    """A check's outcome for one combination of its conditions.

    `estimate`: for a direction the mean difference better - worse; for an interval check our mean with the central
    95 % of the means a study of the paper's size would report; for an exact check the value that decides, without
    interval; else the mean over seeds.  `probability`: of improvement, for a direction.
    """

    settings: dict[str, Any]
    state: str
    estimate: Estimate
    reason: str
    probability: Estimate | None = None
    seeds: str = ""

    @property
    def label(self) -> str:
        """`optimizer=sgd;lr=5`, empty for a check without conditions."""
        return ";".join(f"{name}={format_value(value)}" for name, value in self.settings.items())


@dataclass(frozen=True)
class Verdict:
    """A check's verdict in one profile, with the cells it rests on."""

    check: Check
    profile: str
    verdict: str
    reason: str
    command: str
    conditions: str = ""
    cells: tuple[Cell, ...] = ()

    @property
    def estimate(self) -> Estimate:
        """The single cell's estimate; unknown where several cells were judged, because their mean means nothing."""
        return self.cells[0].estimate if len(self.cells) == 1 else UNKNOWN

    @property
    def n(self) -> int:
        """Seeds behind the verdict: of the cell with the fewest."""
        return min((cell.estimate.n for cell in self.cells), default=0)


def command_for(slug: str, profile: str, experiment: str) -> str:
    """The command that measures one experiment of one profile."""
    return f"make replicate-{slug} PROFILE={profile} ONLY={experiment}"


def evaluate(check: Check, slug: str, profile: str, measurements: pd.DataFrame, timings: pd.DataFrame) -> Verdict:
    """The verdict on one check from the measurements and timings of one profile.

    Cost: per cell about `10,000 x seeds` resampled values; a second round for cells that disagree.
    """
    if profile not in check.profiles:
        reason = check.not_run_reason or f"profile {profile} cannot test it"
        return Verdict(check, profile, NOT_RUN, reason, command_for(slug, check.profiles[0], check.experiment))
    command = command_for(slug, profile, check.experiment)
    rows = timings if check.timing else measurements
    rows = rows[rows["experiment"] == check.experiment]
    if rows.empty:
        reason = check.not_run_reason or f"{check.experiment} has not been run"
        return Verdict(check, profile, NOT_RUN, reason, command)
    metrics = sorted(rows["metric"].unique())
    rows = rows[rows["metric"] == check.metric]
    selected = _filter(rows, check.select)
    if selected.empty:
        missing = f"the selected rows of {check.metric}" if len(rows) else f"{check.metric} (only {', '.join(metrics)})"
        return Verdict(check, profile, NOT_RUN, f"{check.experiment} has not measured {missing}", command)
    groups = _cells(selected, check.conditions)
    cells = [_judge(check, settings, group, LEVEL) for settings, group in groups]
    if len({cell.state for cell in cells}) > 1:
        level = 1 - (1 - LEVEL) / len(cells)
        cells = [_judge(check, settings, group, level) for settings, group in groups]
    return combine(check, profile, command, cells)


def combine(check: Check, profile: str, command: str, cells: list[Cell]) -> Verdict:
    """The verdict on a check from its cells; see the top of this module."""
    states = [cell.state for cell in cells]
    if all(state == HOLDS for state in states):
        verdict = REPRODUCED
    elif HOLDS in states:
        verdict = CONDITIONAL
    elif FAILS in states:
        verdict = NOT_REPRODUCED
    else:
        verdict = INCONCLUSIVE
    if len(cells) == 1:
        conditions = cells[0].label if check.conditions else ""
        return Verdict(check, profile, verdict, cells[0].reason, command, conditions, tuple(cells))
    against = "reversed" if check.kind == "direction" else "fails"
    words = ((HOLDS, "holds"), (FAILS, against), (UNDECIDED, "undecided"))
    parts = [f"{word} for {_where(cells, state)}" for state, word in words if state in states]
    counts = ", ".join(f"{word} in {states.count(state)}" for state, word in words if state in states)
    example = next((cell.reason for cell in cells if cell.state == UNDECIDED), "")
    reason = f"of {len(cells)} combinations {counts}" + (f"; undecided, for instance: {example}" if example else "")
    return Verdict(check, profile, verdict, reason, command, "; ".join(parts), tuple(cells))


def _judge(check: Check, settings: dict[str, Any], rows: pd.DataFrame, level: float) -> Cell:
    judge = {"exact": _exact, "interval": _interval, "direction": _direction}.get(check.kind, _threshold)
    return judge(check, settings, rows, level)


def _exact(check: ExactCheck, settings: dict[str, Any], rows: pd.DataFrame, level: float) -> Cell:
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
    return Cell(settings, HOLDS if holds else FAILS, estimate, reason, seeds=_seeds(rows["seed"].unique()))


def _threshold(check: ThresholdCheck, settings: dict[str, Any], rows: pd.DataFrame, level: float) -> Cell:
    values = _per_seed(rows, check.reduce)
    estimate, decisive = _mean(values, LEVEL), _mean(values, level)
    undecided = _too_little(values.to_numpy(), check.min_seeds) or _no_spread(values.to_numpy())
    at_least = check.kind == "at_least"
    near = decisive.low if at_least else decisive.high
    reached = near >= check.threshold if at_least else near <= check.threshold
    reached = reached and not (check.strict and near == check.threshold)
    missed = decisive.high < check.threshold if at_least else decisive.low > check.threshold
    state = UNDECIDED if undecided else HOLDS if reached else FAILS if missed else UNDECIDED
    side = ("above" if at_least else "below") if check.strict else ("at least" if at_least else "at most")
    words = f"mean {_text(estimate)}, {side} {check.threshold:g} wanted"
    if state == UNDECIDED and not undecided:
        undecided = f"the interval contains {check.threshold:g}: {_more_seeds(len(values))}"
    reason = f"{words}; {undecided}" if undecided else words
    return Cell(settings, state, estimate, reason, seeds=_seeds(values.index))


def _interval(check: IntervalCheck, settings: dict[str, Any], rows: pd.DataFrame, level: float) -> Cell:
    """Inside what a study of the paper's size would find: holds.  Outside even with our own uncertainty: fails."""
    values = _per_seed(rows, check.reduce)
    array, seeds = values.to_numpy(), _seeds(values.index)
    undecided = _too_little(array, check.min_seeds) or _no_spread(array)
    if undecided:
        mean = Estimate(float(array.mean()), -math.inf, math.inf, len(array)) if len(array) else UNKNOWN
        return Cell(settings, UNDECIDED, mean, undecided, seeds=seeds)
    k = int(check.paper_seeds or 1)
    low, high = _central(k_seed_mean_distribution(array, k), LEVEL, check.decimals)
    # The more cells are judged, the wider the range that a value must leave to count as outside.
    outer_low, outer_high = _central(k_seed_mean_distribution(array, k, own_uncertainty=True), level, check.decimals)
    estimate = Estimate(float(array.mean()), low, high, len(array))
    inside = low <= check.paper_value <= high
    outside = not inside and not outer_low <= check.paper_value <= outer_high
    reason = f"{k}-seed means of ours: {_text(estimate)}; the paper's {check.paper_value:g} is "
    if inside and check.max_width is not None and high - low > check.max_width:
        reason += f"inside, but a range {high - low:.3g} wide (over {check.max_width:g}) agrees with nearly anything"
        return Cell(settings, UNDECIDED, estimate, reason, seeds=seeds)
    if not inside and not outside:
        reason += f"outside by less than our own uncertainty: {_more_seeds(len(array))}"
    else:
        reason += "inside" if inside else "outside"
    return Cell(settings, HOLDS if inside else FAILS if outside else UNDECIDED, estimate, reason, seeds=seeds)


def _direction(check: DirectionCheck, settings: dict[str, Any], rows: pd.DataFrame, level: float) -> Cell:
    sides = [_filter(rows, side) for side in (check.better, check.worse)]
    x, y = (_per_seed(side, check.reduce) for side in sides)
    if x.empty or y.empty:
        reason = "only one of the two sides has been measured" if any(side.empty for side in sides) else NO_SEEDS
        return Cell(settings, UNDECIDED, UNKNOWN, reason)
    if check.paired:
        seeds = x.index.intersection(y.index)
        x, y = x[seeds], y[seeds]
    else:
        seeds = x.index.union(y.index)
    if seeds.empty:
        return Cell(settings, UNDECIDED, UNKNOWN, "no seed measured both sides")
    a, b = x.to_numpy(), check.worse_factor * y.to_numpy()
    too_little = _too_little(a, check.min_seeds) or _too_little(b, check.min_seeds)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return Cell(settings, UNDECIDED, UNKNOWN, too_little, seeds=_seeds(seeds))
    difference = paired_difference(a, b) if check.paired else unpaired_difference(a, b)
    sign = 1 if check.higher_is_better else -1
    probability = probability_of_improvement(sign * a, sign * b, check.paired)
    decisive = probability_of_improvement(sign * a, sign * b, check.paired, level)
    contrary = (difference.high < 0) if check.higher_is_better else (difference.low > 0)
    agreeing = (difference.low > 0) if check.higher_is_better else (difference.high < 0)
    holds, fails = decisive.low > 0.5, decisive.high < 0.5
    reason = f"probability of improvement {_text(probability)}, mean difference {_text(difference)}"
    if too_little:
        state, reason = UNDECIDED, f"{reason}; {too_little}"
    elif (holds and contrary) or (fails and agreeing):
        state, reason = UNDECIDED, f"{reason}; most seeds say one thing and the mean says the other"
    elif holds or fails:
        state = HOLDS if holds else FAILS
    else:
        state, reason = UNDECIDED, f"{reason}; the first contains one half: {_more_seeds(len(a))}"
    return Cell(settings, state, difference, reason, probability, _seeds(seeds))


def _filter(rows: pd.DataFrame, chosen: dict[str, Any]) -> pd.DataFrame:
    for key, value in chosen.items():
        if key == "step":
            continue
        rows = rows[rows[key].isin(as_list(value))] if key in rows else rows.iloc[:0]
    step = chosen.get("step")
    if step == "last":
        order = rows["step"].fillna(-1)
        return rows[order == order.groupby([rows["settings"], rows["seed"]], dropna=False).transform("max")]
    return rows if step is None else rows[rows["step"] == step]


def _cells(rows: pd.DataFrame, names: tuple[str, ...]) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Rows by combination of `names`, in the order of their values, numbers before words."""
    if not names:
        return [({}, rows)]
    present = [name for name in names if name in rows]
    groups = []
    for values, group in rows.groupby(present, sort=False, dropna=False):
        groups.append(({name: _plain(value) for name, value in zip(present, values)}, group))
    return sorted(groups, key=lambda entry: [_order(value) for value in entry[0].values()])


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _order(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, (int, float))
    return (not number, float(value) if number else 0.0, str(value))


def _per_seed(rows: pd.DataFrame, reduce: str) -> pd.Series:
    """One value per seed; a seed with a value that is no number has none either.

    Rows of no single seed (an experiment's summary over all of them) are no replications and are left out.
    """
    grouped = rows.groupby("seed")["value"]
    reduced = grouped.agg(reduce).astype(float)
    finite = np.isfinite(rows["value"]).groupby(rows["seed"]).all()
    return reduced.where(finite.reindex(reduced.index), math.nan)


def _mean(values: pd.Series, level: float) -> Estimate:
    array = values.to_numpy()
    estimate = mean_interval(array, level)
    if len(array) and set(np.unique(array)) <= {0.0, 1.0}:
        # Yes-or-no outcomes: resampling n successes out of n would claim certainty.
        share = wilson_interval(float(array.sum()), len(array), level)
        return Estimate(share.value, min(share.low, estimate.low), max(share.high, estimate.high), len(array))
    return estimate


def _too_little(values: np.ndarray, min_seeds: int) -> str:
    wild = int((~np.isfinite(values)).sum())
    if wild:
        return f"{wild} of {len(values)} seeds gave a value that is not finite"
    if not len(values):
        return NO_SEEDS
    if len(values) < min_seeds:
        return f"{len(values)} seed{'s' if len(values) != 1 else ''}; at least {min_seeds} are needed"
    return ""


def _no_spread(values: np.ndarray) -> str:
    """Few seeds that agree to the last digit have an interval of no width, which would be false certainty.

    Yes-or-no values have Wilson's interval instead, so they are let pass.
    """
    same = len(values) < SEEDS_WITHOUT_SPREAD and len(np.unique(values)) == 1
    if not same or set(np.unique(values)) <= {0.0, 1.0}:
        return ""
    return f"all {len(values)} seeds gave the same value, so their spread is unknown; {SEEDS_WITHOUT_SPREAD} would do"


def _central(draws: np.ndarray, level: float, decimals: int | None) -> tuple[float, float]:
    """Central range of the draws, to as many decimals as the paper prints: its 0.0000 only means below 0.00005."""
    low, high = (float(x) for x in np.quantile(draws, [(1 - level) / 2, (1 + level) / 2]))
    return (low, high) if decimals is None else (round(low, int(decimals)), round(high, int(decimals)))


def _more_seeds(n: int) -> str:
    return f"more than {n} seeds are needed"


def _text(estimate: Estimate) -> str:
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}] (n = {estimate.n})"


def _seeds(seeds: Any) -> str:
    """`0-999` for an unbroken range, else the seeds one by one."""
    ordered = sorted(int(seed) for seed in seeds if not pd.isna(seed))
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(map(str, ordered))


def _where(cells: list[Cell], state: str) -> str:
    """Cells in a state, compressed: `optimizer=sgd: lr 2, 5, 10; optimizer=adam: every lr`."""
    *outer, last = list(cells[0].settings)
    groups: dict[str, list[tuple[str, bool]]] = {}
    for cell in cells:
        head = ", ".join(f"{name}={format_value(cell.settings[name])}" for name in outer)
        groups.setdefault(head, []).append((format_value(cell.settings[last]), cell.state == state))
    parts = []
    for head, members in groups.items():
        chosen = [value for value, matches in members if matches]
        if chosen:
            values = f"every {last}" if len(chosen) == len(members) > 1 else f"{last} {', '.join(chosen)}"
            parts.append(f"{head}: {values}" if head else values)
    return "; ".join(parts)
