"""Figure of the experiment `dynamic-sampling`, from measurements alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.plots import COLORS, line_with_interval, panels
from grpo_replications.shared.statistics.estimates import mean_interval

_KINDS = {"samples": "new samples", "prompts": "new prompts"}


def dynamic_sampling(frame: pd.DataFrame) -> Figure | None:
    """Silent first draws over training, draws per group in every run, and solve rates, each with its prediction.

    Left: means over seeds with 95 % intervals at the largest bound, predictions dashed. Middle: one point per run.
    Right: mean exact solve rate of the prompts with and without redraws.
    """
    rows = frame[frame["experiment"] == "dynamic-sampling"]
    if rows.empty:
        return None
    figure, axes = panels(1, 3, width=3.4, height=2.7)
    most = rows["max_redraws"].max()
    sizes = sorted(rows["group_size"].unique())
    for color, size in zip(COLORS, sizes, strict=False):
        own = rows[(rows["group_size"] == size) & (rows["max_redraws"] == most) & (rows["redraw"] == "samples")]
        _curve(axes[0, 0], own, "first_silent_curve", f"G = {size:g}", color)
        predicted = _over_seeds(own, "first_silent_curve_predicted")
        axes[0, 0].plot(predicted.index, predicted.mean(axis=1), color="black", linestyle="--", linewidth=0.9)
    axes[0, 0].plot([], [], color="black", linestyle="--", linewidth=0.9, label="p^G + (1-p)^G")
    _draws(axes[0, 1], rows[rows["max_redraws"] > 0])
    for color, bound in zip(COLORS, sorted(rows["max_redraws"].unique()), strict=False):
        own = rows[(rows["group_size"] == sizes[0]) & (rows["max_redraws"] == bound) & (rows["redraw"] == "samples")]
        _curve(axes[0, 2], own, "solve_rate", f"at most {bound:g} redraws" if bound else "no redraws", color)
    axes[0, 0].set_title("groups silent when first drawn", loc="left")
    axes[0, 2].set_title(f"mean solve rate, G = {sizes[0]:g}", loc="left")
    for axis in (axes[0, 0], axes[0, 2]):
        axis.set_xlabel("step")
        axis.legend()
    return figure


def _draws(axes: Axes, rows: pd.DataFrame) -> Axes:
    """Measured against predicted draws per group, one point per run, a color for each bound and kind of redraw."""
    table = rows[rows["metric"].isin(("draws", "draws_predicted"))]
    runs = table.pivot(index=["group_size", "max_redraws", "redraw", "seed"], columns="metric", values="value")
    runs = runs.reset_index()
    for color, ((redraw, bound), own) in zip(COLORS, runs.groupby(["redraw", "max_redraws"]), strict=False):
        label = f"{_KINDS.get(redraw, redraw)}, at most {bound:g}"
        axes.plot(own["draws_predicted"], own["draws"], "o", color=color, alpha=0.6, markersize=3.5, label=label)
    if len(runs):
        ends = np.array([1.0, float(runs[["draws", "draws_predicted"]].to_numpy().max())])
        axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set_title("draws per group, each run", loc="left")
    axes.set_xlabel("predicted")
    axes.set_ylabel("measured")
    axes.legend()
    return axes


def _curve(axes: Axes, rows: pd.DataFrame, metric: str, label: str, color: Any) -> None:
    values = _over_seeds(rows, metric)
    if values.empty:
        return
    line_with_interval(axes, values.index.to_numpy(dtype=float), mean_interval(values.to_numpy()), label, color)


def _over_seeds(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    return rows[rows["metric"] == metric].pivot(index="step", columns="seed", values="value")
