"""Measurements on disk -> a paper's tables, filled with our numbers beside the printed ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.measurements import MEASUREMENTS, load_measurements
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

FOLDER = "tables"


def write_tables(paper: Paper, directory: Path, mark: str = "") -> dict[str, str]:
    """Write every table of the paper as `directory/tables/<name>.csv` and `.txt`; returns the texts by name.

    A table function gets the frame of `load_measurements`, whose `attrs["paper"]` has the printed numbers by the id of
    their check, and returns a frame of words and numbers, or None where nothing of it was measured; a file of an
    earlier run is then removed. `mark` is the first line of both files.
    """
    texts: dict[str, str] = {}
    if not paper.tables:
        return texts
    frame = load_measurements(directory / MEASUREMENTS)
    frame.attrs["paper"] = paper.printed
    for name, function in paper.tables.items():
        table = function(frame)
        target = directory / FOLDER / name
        if table is None:
            for ending in (".csv", ".txt"):
                target.with_suffix(ending).unlink(missing_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        head = f"# {mark}\n" if mark else ""
        texts[name] = head + table.to_string(index=False) + "\n"
        write_atomic(target.with_suffix(".txt"), texts[name])
        write_atomic(target.with_suffix(".csv"), head + table.to_csv(index=False))
    return texts


def over_runs(rows: pd.DataFrame, metric: str) -> Estimate:
    """A metric's mean over seeds, with its interval over runs: infinite for one run."""
    return mean_interval(rows.loc[rows["metric"] == metric, "value"].to_numpy(float))


def over_problems(rows: pd.DataFrame, name: str) -> tuple[float, float]:
    """The mean over runs of the ends that each run's interval over problems has, `low/<name>` and `high/<name>`.

    They say how far other problems of the kind would move one run; NaN where a run has none, as a mean of benchmarks.
    """
    low, high = (rows.loc[rows["metric"] == f"{end}/{name}", "value"] for end in ("low", "high"))
    return float(low.mean()), float(high.mean())


def shown_interval(low: float, high: float, digits: int = 4) -> str:
    """`0.1000 to 0.2000`; nothing where an end is not known."""
    return f"{low:.{digits}f} to {high:.{digits}f}" if np.isfinite([low, high]).all() else ""
