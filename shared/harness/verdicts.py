"""Checks against measurements -> verdicts.

Every check is judged for each combination of its conditions (a *cell*), and the cells are combined:

all hold -> reproduced; some hold -> reproduced under conditions; none holds and one clearly fails -> not reproduced;
all are equivalent -> equivalent (no effect of a size that matters); otherwise -> inconclusive; nothing measured -> not
run.

Intervals are 95 % intervals.  Among many cells one would hold by luck sooner or later, so each is judged at the level
that keeps the chance of any false call under 5 % (Bonferroni); a check of one sample only where its cells do not all
agree.  The intervals that are reported with a cell stay at 95 %.  All resampling uses a generator of its own with a
fixed seed: the same measurements always give the same verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from grpo_replications.shared.harness.cells import UNKNOWN, Cell, filter_rows, split_cells, where
from grpo_replications.shared.harness.checks import Check
from grpo_replications.shared.harness.comparisons import Comparison
from grpo_replications.shared.harness.judging import judge_exact, judge_interval, judge_share, judge_threshold
from grpo_replications.shared.harness.judging_comparisons import (
    judge_direction,
    judge_equivalent,
    judge_non_inferior,
    judge_peak,
    judge_time,
)
from grpo_replications.shared.statistics.estimates import Estimate
from grpo_replications.shared.statistics.states import EQUIVALENT, FAILS, HOLDS, UNDECIDED

REPRODUCED, CONDITIONAL, NOT_REPRODUCED = "reproduced", "reproduced under conditions", "not reproduced"
INCONCLUSIVE, NOT_RUN = "inconclusive", "not run"
VERDICTS = (REPRODUCED, CONDITIONAL, NOT_REPRODUCED, EQUIVALENT, INCONCLUSIVE, NOT_RUN)
JUDGES = {
    "exact": judge_exact,
    "interval": judge_interval,
    "at_least": judge_threshold,
    "at_most": judge_threshold,
    "share": judge_share,
    "direction": judge_direction,
    "equivalent": judge_equivalent,
    "non_inferior": judge_non_inferior,
    "peak": judge_peak,
    "time": judge_time,
}


@dataclass(frozen=True)
class Verdict:
    """A check's verdict in one profile, with the cells it rests on.

    `criterion_newer`: whether its criterion is newer than its measurements, in the words of `shared.harness.criteria`;
    empty where nothing was measured.
    """

    check: Check
    profile: str
    verdict: str
    reason: str
    command: str
    conditions: str = ""
    cells: tuple[Cell, ...] = ()
    criterion_newer: str = ""

    @property
    def estimate(self) -> Estimate:
        """The single cell's estimate; unknown where several cells were judged, because their mean means nothing."""
        return self.cells[0].estimate if len(self.cells) == 1 else UNKNOWN

    @property
    def n(self) -> int:
        """Seeds (for a share: groups) behind the verdict: of the cell with the fewest."""
        return min((cell.estimate.n for cell in self.cells), default=0)


def command_for(slug: str, profile: str, experiment: str) -> str:
    """The command that measures one experiment of one profile."""
    return f"make replicate-{slug} PROFILE={profile} ONLY={experiment}"


def experiment_of(command: str) -> str:
    """The experiment that a command of `command_for` measures; empty for any other text."""
    return command.rpartition(" ONLY=")[2] if " ONLY=" in command else ""


def evaluate(check: Check, slug: str, profile: str, measurements: pd.DataFrame, timings: pd.DataFrame) -> Verdict:
    """The verdict on one check from the measurements and timings of one profile.

    Cost: per cell at most `10,000 x seeds x rates` resampled values; a second round for cells that disagree.
    """
    if profile not in check.profiles:
        reason = check.not_run_reason or f"profile {profile} cannot test it"
        return Verdict(check, profile, NOT_RUN, reason, command_for(slug, check.profiles[0], check.experiment))
    command = command_for(slug, profile, check.experiment)
    rows = timings if check.timing else measurements
    rows = rows[rows["experiment"].isin(check.experiments)]
    if check.experiment not in rows["experiment"].to_numpy():
        reason = check.not_run_reason or f"{check.experiment} has not been run"
        return Verdict(check, profile, NOT_RUN, reason, command)
    metrics = sorted(rows["metric"].unique())
    rows = rows[rows["metric"].isin(check.metrics)]
    selected = filter_rows(rows, check.select)
    if check.metric not in selected["metric"].to_numpy():
        missing = f"the selected rows of {check.metric}" if len(rows) else f"{check.metric} (only {', '.join(metrics)})"
        return Verdict(check, profile, NOT_RUN, f"{check.experiment} has not measured {missing}", command)
    groups = split_cells(selected, check.conditions)
    judge = JUDGES[check.kind]
    together = len(groups) if isinstance(check, Comparison) else 1
    cells = [judge(check, settings, group, together) for settings, group in groups]
    if together == 1 < len(groups) and len({cell.state for cell in cells}) > 1:
        cells = [judge(check, settings, group, len(groups)) for settings, group in groups]
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
    elif all(state == EQUIVALENT for state in states):
        verdict = EQUIVALENT
    else:
        verdict = INCONCLUSIVE
    if len(cells) == 1:
        conditions = cells[0].label if check.conditions else ""
        return Verdict(check, profile, verdict, cells[0].reason, command, conditions, tuple(cells))
    against = "reversed" if check.kind in ("direction", "peak") else "fails"
    words = ((HOLDS, "holds"), (FAILS, against), (EQUIVALENT, "equivalent"), (UNDECIDED, "undecided"))
    parts = [f"{word} for {where(cells, state)}" for state, word in words if state in states]
    counts = ", ".join(f"{word} in {states.count(state)}" for state, word in words if state in states)
    example = next((cell.reason for cell in cells if cell.state == UNDECIDED), "")
    reason = f"of {len(cells)} combinations {counts}" + (f"; undecided, for instance: {example}" if example else "")
    return Verdict(check, profile, verdict, reason, command, "; ".join(parts), tuple(cells))
