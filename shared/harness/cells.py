"""Rows of measurements -> the cells of a check: one for each combination of its conditions, one value a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpo_replications.shared.harness.checks import as_list
from grpo_replications.shared.harness.profiles import format_value
from grpo_replications.shared.statistics.estimates import Estimate
from grpo_replications.shared.statistics.sign_tests import SignTest

UNKNOWN = Estimate(math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True)
class Cell:
    """A check's outcome for one combination of its conditions.

    `estimate`: for a comparison the mean difference better - worse (`time`: the ratio better / worse); for an interval
    check our mean with the central 95 % of the means a study of the paper's size would report; for an exact check the
    value that decides, without interval; for a share the share, n being groups; else the mean over seeds.
    `sign`: of a comparison, the seeds on which the side called better won, lost and tied, with the exact test.
    """

    settings: dict[str, Any]
    state: str
    estimate: Estimate
    reason: str
    sign: SignTest | None = None
    seeds: str = ""

    @property
    def label(self) -> str:
        """`optimizer=sgd;lr=5`, empty for a check without conditions."""
        return ";".join(f"{name}={format_value(value)}" for name, value in self.settings.items())


def filter_rows(rows: pd.DataFrame, chosen: dict[str, Any]) -> pd.DataFrame:
    """The rows with these settings; `step = "last"` means the last step of each run."""
    for key, value in chosen.items():
        if key == "step":
            continue
        rows = rows[rows[key].isin(as_list(value))] if key in rows else rows.iloc[:0]
    step = chosen.get("step")
    if step == "last":
        order = rows["step"].fillna(-1)
        return rows[order == order.groupby([rows["settings"], rows["seed"]], dropna=False).transform("max")]
    return rows if step is None else rows[rows["step"] == step]


def split_cells(rows: pd.DataFrame, names: tuple[str, ...]) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Rows by combination of `names`, in the order of their values, numbers before words."""
    if not names:
        return [({}, rows)]
    present = [name for name in names if name in rows]
    groups = []
    for values, group in rows.groupby(present, sort=False, dropna=False):
        groups.append(({name: _plain(value) for name, value in zip(present, values)}, group))
    return sorted(groups, key=lambda entry: [_order(value) for value in entry[0].values()])


def per_seed(rows: pd.DataFrame, reduce: str) -> pd.Series:
    """One value per seed; a seed with a value that is no number has none either.

    Rows of no single seed (an experiment's summary over all of them) are no replications and are left out.
    """
    grouped = rows.groupby("seed")["value"]
    reduced = grouped.agg(reduce).astype(float)
    finite = np.isfinite(rows["value"]).groupby(rows["seed"]).all()
    return reduced.where(finite.reindex(reduced.index), math.nan)


def seeds_text(seeds: Any) -> str:
    """`0-999` for an unbroken range, else the seeds one by one."""
    ordered = sorted(int(seed) for seed in seeds if not pd.isna(seed))
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(map(str, ordered))


def where(cells: list[Cell], state: str) -> str:
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


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _order(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, (int, float))
    return (not number, float(value) if number else 0.0, str(value))
