"""Measurements -> the paper's Table 2, with two intervals kept apart: over a benchmark's problems, and over runs."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from grpo_replications.replications.lambda_grpo.table2_intervals import DIGIT, Cell, read_table
from grpo_replications.shared.harness.paper_tables import over_problems, over_runs, shown_interval
from grpo_replications.shared.statistics.estimates import Estimate

MEAN = "mean"


def cell_estimates(rows: pd.DataFrame, benchmark: str) -> tuple[Estimate, Estimate]:
    """Accuracy of one row of the table on one benchmark: with its interval over runs, and with that over problems."""
    runs = over_runs(rows, f"accuracy/{benchmark}")
    return runs, Estimate(runs.value, *over_problems(rows, benchmark), runs.n)


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
            runs, one_run = cell_estimates(own, benchmark)
            problems = own.loc[own["metric"] == f"problems/{benchmark}", "value"]
            paper = printed.get((model, None if method == "base" else float(beta), method, benchmark))
            lines.append(
                {
                    "model": model.rpartition("/")[2],
                    "beta": "" if method == "base" else f"{beta:g}",
                    "method": method,
                    "benchmark": benchmark,
                    "accuracy": f"{runs.value:.4f}",
                    "95% over problems": shown_interval(one_run.low, one_run.high),
                    "95% over runs": shown_interval(runs.low, runs.high),
                    "runs": runs.n,
                    "problems": "" if problems.empty else f"{problems.iloc[0]:.0f}",
                    "paper": "" if paper is None else f"{paper.accuracy / DIGIT:.4f}",
                }
            )
    return pd.DataFrame(lines)


def printed_cells() -> dict[tuple[str, float | None, str, str], Cell]:
    """The printed table by model, beta (None for base models), method and benchmark."""
    return {
        (cell.model, cell.beta, cell.method, MEAN if cell.benchmark == "avg" else cell.benchmark): cell
        for cell in read_table()
    }


TABLES: dict[str, Callable[[pd.DataFrame], pd.DataFrame | None]] = {"table2": table2}
