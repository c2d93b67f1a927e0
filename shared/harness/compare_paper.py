"""The paper's values against ours: does each lie inside our interval?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_replications.shared.harness.compare_text import Listing, value_text
from grpo_replications.shared.harness.outcomes import number
from grpo_replications.shared.harness.snapshots import Number, Snapshot
from grpo_replications.shared.statistics.states import HOLDS
from grpo_replications.shared.words import counted


@dataclass(frozen=True)
class PaperValue:
    """A number that the paper prints, with ours for one combination of conditions.

    `setting`: "published" where ours was measured in the paper's own setting, "here" in a scaled one.  `inside`: the
    paper's value lies inside our interval; for a check without one (`exact`) that it agrees as far as its criterion
    asks; None where our interval is unknown.
    """

    ours: Number
    unit: str
    setting: str
    verdict: str
    paper: float
    inside: bool | None
    exact: bool


def paper_values(results: Snapshot) -> list[PaperValue]:
    """Every number of these results whose check knows the paper's value."""
    found = []
    for check in results.checks.values():
        if not check.run or math.isnan(check.paper_value):
            continue
        exact = check.criterion["kind"] == "exact"
        for ours in check.numbers.values():
            bounded = math.isfinite(ours.low) and math.isfinite(ours.high)
            inside = ours.low <= check.paper_value <= ours.high if bounded else None
            if exact:
                inside = ours.state == HOLDS
            found.append(PaperValue(ours, check.unit, check.answers, check.verdict, check.paper_value, inside, exact))
    return found


def paper_summary(results: Snapshot, values: Sequence[PaperValue]) -> list[tuple[str, str]]:
    """How many of the paper's values are inside, apart for values with an interval and values to the digit."""
    waiting = sum(not check.run and not math.isnan(check.paper_value) for check in results.checks.values())
    lines = []
    for what, exact in (("inside our intervals", False), ("equal as far as the criterion asks", True)):
        own = [one.inside for one in values if one.exact == exact]
        if own:
            unknown = f", {own.count(None)} with an unknown interval" if None in own else ""
            lines.append((what, f"{own.count(True)} of {counted(len(own), 'value')}{unknown}"))
    lines.append(("not run", f"{counted(waiting, 'value')} of the paper"))
    return lines


def paper_listing(values: Sequence[PaperValue], only_changed: bool) -> Listing:
    """The paper's value and ours, a line each; with `only_changed` those that are not inside."""
    rows = [
        (
            one.ours.name,
            f"paper {number(one.paper)}",
            f"ours {value_text(one.ours)}" + (f" ({one.unit})" if one.unit else ""),
            f"n = {one.ours.n}",
            _words(one),
            one.setting,
            one.verdict,
        )
        for one in values
        if not (only_changed and one.inside)
    ]
    header = ("number", "paper", "ours", "n", "inside our interval", "setting", "verdict")
    return Listing("Values of the paper" + (" that are not inside" if only_changed else ""), header, rows)


def _words(one: PaperValue) -> str:
    if one.exact:
        return "equal as far as the criterion asks" if one.inside else "not equal"
    return {True: "inside", False: "outside", None: "interval unknown"}[one.inside]
