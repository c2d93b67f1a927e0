"""Figure of the experiment `dynamic-sampling`, from measurements alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.captions import MEAN_INTERVAL, NO_NUMBER, runs
from grpo_replications.shared.harness.plots import (
    PROBABILITY,
    Look,
    caption,
    line_with_interval,
    panels,
    series,
    titled,
)
from grpo_replications.shared.statistics.estimates import mean_interval

_KINDS = {"samples": "new samples", "prompts": "new prompts"}


def dynamic_sampling(frame: pd.DataFrame) -> Figure | None:
    """Silent first draws over training, draws per group in every run, and solve rates, each with its prediction.

    Above: means over seeds with 95 % intervals at the largest bound, predictions dashed. Middle: one point per run.
    Below: mean exact solve rate of the prompts with and without redraws.
    """
    rows = frame[frame["experiment"] == "dynamic-sampling"]
    if rows.empty:
        return None
    figure, axes = panels(1, 3, height=1.4)
    most = rows["max_redraws"].max()
    sizes = sorted(rows["group_size"].unique())
    for place, size in enumerate(sizes):
        own = rows[(rows["group_size"] == size) & (rows["max_redraws"] == most) & (rows["redraw"] == "samples")]
        _curve(axes[0, 0], own, "first_silent_curve", series(place, f"G = {size:g}")._replace(line="-"))
        predicted = _over_seeds(own, "first_silent_curve_predicted")
        axes[0, 0].plot(predicted.index, predicted.mean(axis=1), color="black", linestyle="--", linewidth=0.9)
    axes[0, 0].plot([], [], color="black", linestyle="--", linewidth=0.9, label="paper's p^G + (1−p)^G")
    _draws(axes[0, 1], rows[rows["max_redraws"] > 0])
    for place, bound in enumerate(sorted(rows["max_redraws"].unique())):
        own = rows[(rows["group_size"] == sizes[0]) & (rows["max_redraws"] == bound) & (rows["redraw"] == "samples")]
        label = f"at most {bound:g} redraw{'s' if bound > 1 else ''}" if bound else "no redraws"
        _curve(axes[0, 2], own, "solve_rate", series(place + 2, label))
    titled(axes, "groups silent when first drawn", "draws per group, each run", f"mean solve rate, G = {sizes[0]:g}")
    for axis in (axes[0, 0], axes[0, 2]):
        axis.set_xlabel("step")
    for axis in axes[0]:
        axis.legend()
    return caption(
        figure,
        "Dynamic sampling with a small transformer: (a) share of groups that are silent when first "
        "drawn, (b) draws per "
        "group against the closed form, (c) solve rate with and without redraws.",
        f"{NO_NUMBER} Its silent-group rate, p^G + (1−p)^G, is the dashed line.",
        f"{runs(rows.groupby(['group_size', 'max_redraws', 'redraw'])['seed'].nunique())} a setting; bands: "
        f"{MEAN_INTERVAL}.",
    )


def _draws(axes: Axes, rows: pd.DataFrame) -> Axes:
    """Measured against predicted draws per group, one point per run, a color for each bound and kind of redraw."""
    table = rows[rows["metric"].isin(("draws", "draws_predicted"))]
    found = table.pivot(index=["group_size", "max_redraws", "redraw", "seed"], columns="metric", values="value")
    found = found.reset_index()
    for place, ((redraw, bound), own) in enumerate(found.groupby(["redraw", "max_redraws"])):
        style = series(place, f"{_KINDS.get(redraw, redraw)}, at most {bound:g}")
        axes.plot(
            own["draws_predicted"], own["draws"], style.marker, color=style.color, alpha=0.7, markersize=2.5,
            label=style.label,
        )  # fmt: skip
    if len(found):
        ends = np.array([1.0, float(found[["draws", "draws_predicted"]].to_numpy().max())])
        axes.plot(ends, ends, color="black", linewidth=0.7)
    axes.set_xlabel("predicted")
    axes.set_ylabel("measured")
    return axes


def _curve(axes: Axes, rows: pd.DataFrame, metric: str, style: Look) -> None:
    values = _over_seeds(rows, metric)
    if values.empty:
        return
    steps, band = values.index.to_numpy(dtype=float), mean_interval(values.to_numpy())
    line_with_interval(axes, steps, band, style.label, style.color, style.line, limits=PROBABILITY)


def _over_seeds(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    return rows[rows["metric"] == metric].pivot(index="step", columns="seed", values="value")
