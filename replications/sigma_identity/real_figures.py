"""Figures of the identity on real gradients: predicted against measured updates, and where the identity stops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.captions import NO_NUMBER, runs
from grpo_replications.shared.harness.plots import (
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    VERMILION,
    caption,
    group_size_axis,
    panels,
    points_with_interval,
    series,
    titled,
)
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

TOLERANCES = {"float32": 1e-3, "float64": 1e-9}
_PRECISION_COLORS = {"float32": VERMILION, "float64": BLUE}
_MODELS = {"real-gradients": ("SmolLM2-135M", "s"), "real-gradients-small": ("small transformer", "o")}
_FLOOR = 1e-17  # where an exact zero is drawn on a logarithmic axis
_WRONG = {
    "error_no_epsilon": "without the 1e−4",
    "error_paper": "population deviation",
    "error_other_loss": "another loss's scores",
    "error_misprint": "misprinted σ",
}


def real_gradients(frame: pd.DataFrame) -> Figure | None:
    """Error of the exact prediction by loss type, the factor to the paper's formula by G, what mistakes would do."""
    if not {"loss_type", "scale_rewards", "precision"} <= set(frame.columns):
        return None
    rows = frame[frame["experiment"].isin(_MODELS)]
    rows = rows[rows["reward"] != "constant"] if "reward" in rows else rows
    if rows[rows["metric"] == "error"].empty:
        return None
    figure, axes = panels(1, 3, height=1.45)
    _errors(axes[0, 0], rows)
    _factors(axes[0, 1], rows)
    _mistakes(axes[0, 2], rows)
    titled(axes, "error of the prediction", "TRL's update over the paper's formula", "predictions wrong on purpose")
    counts = rows.groupby("experiment")["seed"].nunique().rename(lambda name: _MODELS[name][0])
    return caption(
        figure,
        "TRL's update on real gradients against the identity for its normalization: (a) |update − prediction| / "
        "|update| by loss_type and scale_rewards, (b) factor to the paper's σ(s̄₊ − s̄₋) and σ²(s̄₊ − s̄₋), (c) what "
        "mistakes would give. Dotted: tolerance.",
        "The paper's identity has the factor 1; with TRL's sample deviation it is √((G−1)/G): lines in (b).",
        f"{runs(counts)} a setting ("
        + ", ".join(f"{name} {count}" for name, count in counts.items())
        + "), one point each; no interval: every point must pass.",
    )


def _errors(axis: Axes, rows: pd.DataFrame) -> None:
    errors = rows[rows["metric"] == "error"]
    kinds = list(dict.fromkeys(zip(errors["loss_type"], errors["scale_rewards"], strict=True)))
    kinds.sort(key=lambda kind: (kind[1], ["grpo", "dapo", "dr_grpo"].index(kind[0])))
    for (experiment, precision), own in errors.groupby(["experiment", "precision"]):
        model, marker = _MODELS[experiment]
        large = experiment == "real-gradients"
        offset = (0.14 if precision == "float64" else -0.14) + (0.06 if large else 0.0)
        x = [kinds.index(kind) + offset for kind in zip(own["loss_type"], own["scale_rewards"], strict=True)]
        axis.plot(
            x,
            own["value"].clip(lower=_FLOOR),
            marker,
            color=_PRECISION_COLORS[precision],
            markersize=4 if large else 2.5,
            markerfacecolor="none" if large else None,
            label=f"{precision}, {model}",
        )
    axis.set_yscale("log")
    for precision, tolerance in TOLERANCES.items():
        if precision in set(errors["precision"]):
            axis.axhline(tolerance, color=_PRECISION_COLORS[precision], linestyle=":", linewidth=1)
    axis.set_xticks(range(len(kinds)), [f"{loss}\n{scale}" for loss, scale in kinds])
    axis.set_xlim(-0.5, len(kinds) - 0.5)
    axis.set_ylim(1e-16, 30)
    axis.legend()


def _factors(axis: Axes, rows: pd.DataFrame) -> None:
    size = "group_size" if "group_size" in rows and rows["group_size"].notna().any() else None
    found = rows[rows["metric"] == "paper_factor"]
    found = found[found[size].notna()] if size else found.iloc[:0]
    for place, (scale, own) in enumerate(found.groupby("scale_rewards")):
        sizes, style = sorted(own[size].unique()), series(place, f'measured, "{scale}"')
        axis.plot(own[size], own["value"], style.marker, color=style.color, label=style.label)
        g = np.linspace(min(sizes), max(sizes), 200)
        curve = np.sqrt((g - 1) / g) if scale == "group" else np.ones_like(g)
        axis.plot(g, curve, color=style.color, label="√((G−1)/G)" if scale == "group" else "paper: 1")
    if len(found):
        group_size_axis(axis, found[size])
        axis.legend()


def _mistakes(axis: Axes, rows: pd.DataFrame) -> None:
    names = [name for name in _WRONG if name in set(rows["metric"])]
    largest = 1.0
    for position, name in enumerate(names):
        own = rows[rows["metric"] == name]
        if name == "error_paper":  # with scale_rewards = "none" the paper's formula is the right one
            own = own[own["scale_rewards"] == "group"]
        spread = np.linspace(-0.25, 0.25, len(own))
        axis.plot(own["value"].clip(lower=_FLOOR), position + spread, ".", color="#555555", markersize=2)
        largest = max(largest, float(own["value"].max()))
    axis.set_xscale("log")
    for precision, tolerance in TOLERANCES.items():
        axis.axvline(
            tolerance, color=_PRECISION_COLORS[precision], linestyle=":", linewidth=1, label=f"tolerance, {precision}"
        )
    axis.set_yticks(range(len(names)), [_WRONG[name] for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlim(_FLOOR / 3, 3 * largest)
    axis.set_xlabel("error (left of its tolerance: no effect)")
    axis.legend()


# --- where the identity stops -----------------------------------------------------------------------------------------


def beyond_theorem(frame: pd.DataFrame) -> Figure | None:
    """Size of the break by levels of reward, by learning rate of a second update, and by step for each beta."""
    rows = frame[frame["experiment"] == "beyond-theorem-small"]
    if rows[rows["metric"] == "break"].empty:
        return None
    large = frame[frame["experiment"] == "beyond-theorem"]
    figure, axes = panels(1, 3, height=1.5)
    _partial_credit(axes[0, 0], rows, large)
    _second_update(axes[0, 1], rows, large)
    _kl(axes[0, 2], rows, large)
    for axis in axes[0]:
        axis.set_ylim(1e-17, 100)
        axis.set_yticks([1e-16, 1e-12, 1e-8, 1e-4, 1])
        axis.set_ylabel("over update")
        if axis.get_legend_handles_labels()[1]:
            axis.legend()
    beside = f" (SmolLM2-135M: {runs([large['seed'].nunique()]).removeprefix('n = ')})" if len(large) else ""
    titled(axes, "partial credit", "second update (above: tokens clipped)", "KL term (dashes: predicted)")
    return caption(
        figure,
        "How far TRL's update departs from the identity outside the theorem, relative to the identity's update: (a) by "
        "levels of reward, (b) at a second update on the same rollout, (c) with a KL term. The residual "
        "is what remains of the corrected prediction.",
        f"{NO_NUMBER} Its theorem holds for two levels, one update and no KL term, where the break must be 0.",
        f"{runs(rows.groupby('metric')['seed'].nunique())} a point{beside}; bars: 95 % intervals of the geometric "
        "mean over seeds; lines in (c): means.",
    )


_CURVES = {
    "estimated_break": ("break, estimated without gradients", ORANGE, "x", 0.92),
    "break": ("break, measured on TRL's update", VERMILION, "o", 1.0),
    "predicted_break": ("break, predicted by autograd", "black", "_", 1.08),
    "residual": ("residual", BLUE, "v", 1.0),
}
_LARGE = "SmolLM2-135M, same colours"


def _curves(axis: Axes, rows: pd.DataFrame, by: str, labels: bool = True) -> None:
    """Geometric mean and interval over seeds of every curve, by the setting `by`, side by side on logarithmic axes."""
    for metric, (label, color, marker, shift) in _CURVES.items():
        cells = sorted(rows[rows["metric"] == metric].groupby(by)["value"])
        if not cells:
            continue
        estimates = [_geometric(values.to_numpy()) for _, values in cells]
        points_with_interval(axis, [x * shift for x, _ in cells], estimates, label if labels else "", color, marker)
    axis.set_yscale("log")


def _partial_credit(axis: Axes, rows: pd.DataFrame, large: pd.DataFrame) -> None:
    if "levels" in rows:
        _curves(axis, rows[rows["levels"].notna()], "levels")
        levels = sorted(rows["levels"].dropna().unique())
        axis.set_xscale("log")
        axis.set_xticks(levels, [f"{n:g}" for n in levels])
        axis.set_xticks([], minor=True)
        axis.set_xlim(1.7, 14.0)
    _large_model(axis, large[_equal(large, "reward", "digits")], x=11 if "levels" in rows else 1.0)
    axis.set_xlabel("levels of reward (2: the theorem)")


def _second_update(axis: Axes, rows: pd.DataFrame, large: pd.DataFrame) -> None:
    own = rows[_equal(rows, "num_iterations", 2) & (rows["step"] == 1)]
    axis.set_xscale("log")
    _curves(axis, own, "lr", labels=False)
    clipped = own[own["metric"] == "clipped_share"].groupby("lr")["value"].mean()
    for lr, share in clipped.items():
        axis.text(lr, 6.0, f"{100 * share:.2g} %", fontsize=6.5, ha="center")
    axis.set_xlabel("learning rate")
    two = large[_equal(large, "num_iterations", 2) & (large["step"] == 1)] if len(large) else large
    if len(two):
        _large_model(axis, two, x=float(two["lr"].iloc[0]))


def _kl(axis: Axes, rows: pd.DataFrame, large: pd.DataFrame) -> None:
    own = rows[rows["beta"] > 0] if "beta" in rows else rows.iloc[:0]
    metrics = (("break", "-"), ("predicted_break", "none"), ("residual", ":"))
    marks = ((GREEN, "^"), (VERMILION, "o"), (PINK, "P"))
    for (color, mark), (beta, cell) in zip(marks, own.groupby("beta"), strict=False):
        for metric, line in metrics:
            mean = cell[cell["metric"] == metric].groupby("step")["value"].mean().clip(lower=_FLOOR)
            label = f"{metric}, β = {beta:g}" if metric != "predicted_break" else None
            drawn, marker = ("black", "_") if metric == "predicted_break" else (color, mark)
            axis.plot(mean.index, mean, linestyle=line, marker=marker, color=drawn, label=label)
    axis.set_yscale("log")
    if len(own):
        axis.set_xticks(sorted(own["step"].dropna().unique()))
    kl = large[large["beta"] > 0] if "beta" in large else large.iloc[:0]
    for step, cell in kl.groupby("step"):
        _large_model(axis, cell, x=float(step))
    axis.set_xlabel("step (0: policy = reference)")


def _large_model(axis: Axes, rows: pd.DataFrame, x: float) -> None:
    """The embedded model's break and residual as open squares."""
    for metric in ("break", "residual"):
        values = rows[rows["metric"] == metric]["value"]
        if len(values):
            known = axis.get_legend_handles_labels()[1]
            axis.plot(
                [x] * len(values),
                values.clip(lower=_FLOOR),
                "s",
                markersize=4.5,
                markerfacecolor="none",
                color=_CURVES[metric][1],
                label=None if _LARGE in known else _LARGE,
            )


def _equal(rows: pd.DataFrame, column: str, value: Any) -> pd.Series:
    return rows[column] == value if column in rows else pd.Series(False, index=rows.index)


def _geometric(values: np.ndarray) -> Estimate:
    """Geometric mean with its interval; zeros stand at the floor of the axis."""
    estimate = mean_interval(np.log(np.maximum(values, _FLOOR)))
    return Estimate(*(float(np.exp(x)) for x in (estimate.value, estimate.low, estimate.high)), estimate.n)
