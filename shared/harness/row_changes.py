"""Measured rows of the same jobs, twice: which of them differ, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from grpo_replications.shared.harness.measurements import CSV_COLUMNS

KEYS = [name for name in CSV_COLUMNS if name != "value"]
NOTHING = 1e-300  # two values below it are not told apart by their ratio


@dataclass(frozen=True)
class RowChanges:
    """How the measured rows of one experiment differ; `relative`: the largest difference over the larger value."""

    experiment: str
    rows: int
    differ: int
    only_a: int
    only_b: int
    relative: float


def matched(first: pd.DataFrame, second: pd.DataFrame, floor: float = NOTHING) -> pd.DataFrame:
    """Rows of two frames of `read_rows` side by side.

    Columns: `KEYS`; `value_a` and `value_b`; `side` (both, left_only, right_only); `relative`, the difference over the
    larger of both values, or over `floor` where that is larger still: 0 where the values are the same (two that are no
    numbers are), infinite where one of them is not finite, missing where a side has no such row.
    """
    rows = first.merge(second, on=KEYS, how="outer", suffixes=("_a", "_b"), indicator="side")
    a, b = rows["value_a"].to_numpy(float), rows["value_b"].to_numpy(float)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        relative = np.abs(a - b) / np.maximum(np.fmax(np.abs(a), np.abs(b)), floor)
    relative = np.where(same, 0.0, np.where(np.isfinite(a) & np.isfinite(b), relative, np.inf))
    return rows.assign(relative=np.where(rows["side"] == "both", relative, np.nan))


def row_changes(first: pd.DataFrame, second: pd.DataFrame) -> list[RowChanges]:
    """What differs between two frames of `read_rows`, an experiment each; nothing for those that are the same."""
    changes = []
    for experiment, rows in matched(first, second).groupby("experiment", sort=True):
        relative = rows["relative"].to_numpy()
        changes.append(
            RowChanges(
                str(experiment),
                len(rows),
                int((relative > 0).sum()),
                int((rows["side"] == "left_only").sum()),
                int((rows["side"] == "right_only").sum()),
                float(relative[np.isfinite(relative)].max(initial=0.0)),
            )
        )
    return [one for one in changes if one.differ or one.only_a or one.only_b]
