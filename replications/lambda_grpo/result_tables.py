"""Measurements -> the paper's Table 2, with two intervals kept apart: over a benchmark's problems, and over runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from grpo_replications.replications.lambda_grpo.table2_intervals import DIGIT, Cell, read_table
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

MEAN = "mean"


def cell_estimates(rows: pd.DataFrame, benchmark: str) -> tuple[Estimate, Estimate]:
    """Accuracy of one row of the table on one benchmark: with its interval over runs, and with that over problems.

    Over runs: of the mean over the seeds, infinite with one. Over problems: the mean over runs of the ends that each
    run's interval has, which says how far other problems of the kind would move one run; NaN for the mean.
    """
    values = {metric: own["value"].to_numpy(float) for metric, own in rows.groupby("metric")}
    accuracy = values[f"accuracy/{benchmark}"]
    ends = [values.get(f"{end}/{benchmark}", np.array([np.nan])) for end in ("low", "high")]
    low, high = (float(one.mean()) for one in ends)
    return mean_interval(accuracy), Estimate(float(accuracy.mean()), low, high, len(accuracy))


def table2(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Rows model, beta, method and benchmark: our accuracy, both intervals, runs, problems, and the printed number."""
    rows = frame[(frame["experiment"] == "table2") & frame["step"].isna()]
    if rows.empty:
        return None
    printed = printed_cells()
    lines = []
    for (model, method, beta), own in rows.groupby(["model", "method", "beta"], sort=False):
        names = [name.removeprefix("accuracy/") for name in own["metric"] if name.startswith("accuracy/")]
        for benchmark in dict.fromkeys(names):
            over_runs, over_problems = cell_estimates(own, benchmark)
            problems = own.loc[own["metric"] == f"problems/{benchmark}", "value"]
            paper = printed.get((model, None if method == "base" else float(beta), method, benchmark))
            lines.append(
                {
                    "model": model.rpartition("/")[2],
                    "beta": "" if method == "base" else f"{beta:g}",
                    "method": method,
                    "benchmark": benchmark,
                    "accuracy": f"{over_runs.value:.4f}",
                    "95% over problems": _interval(over_problems),
                    "95% over runs": _interval(over_runs),
                    "runs": over_runs.n,
                    "problems": "" if problems.empty else f"{problems.iloc[0]:.0f}",
                    "paper": "" if paper is None else f"{paper.accuracy / DIGIT:.4f}",
                }
            )
    return pd.DataFrame(lines)


def _interval(estimate: Estimate) -> str:
    low, high = float(estimate.low), float(estimate.high)
    return f"{low:.4f} to {high:.4f}" if np.isfinite([low, high]).all() else ""


def printed_cells() -> dict[tuple[str, float | None, str, str], Cell]:
    """The printed table by model, beta (None for base models), method and benchmark."""
    return {
        (cell.model, cell.beta, cell.method, MEAN if cell.benchmark == "avg" else cell.benchmark): cell
        for cell in read_table()
    }


TABLES: dict[str, Callable[[pd.DataFrame], pd.DataFrame | None]] = {"table2": table2}
