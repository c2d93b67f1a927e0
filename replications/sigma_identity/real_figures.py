"""Figures of the identity on real gradients: predicted against measured updates, and where the identity stops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.plots import COLORS, group_size_axis, panels, points_with_interval
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

TOLERANCES = {"float32": 1e-3, "float64": 1e-9}
_PRECISION_COLORS = {"float32": COLORS[1], "float64": COLORS[0]}
_MODELS = {"real-gradients": ("SmolLM2-135M", "s"), "real-gradients-small": ("small transformer", "o")}
_FLOOR = 1e-17  # where an exact zero is drawn on a logarithmic axis
_WRONG = {
    "error_no_epsilon": "without the 1e-4",
    "error_paper": "population deviation",
    "error_other_loss": "scores of another loss",
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
    figure, axes = panels(1, 3, width=3.7, height=3.1)
    _errors(axes[0, 0], rows)
    _factors(axes[0, 1], rows)
    _mistakes(axes[0, 2], rows)
    return figure


def _errors(axis: Axes, rows: pd.DataFrame) -> None:
    errors = rows[rows["metric"] == "error"]
    kinds = list(dict.fromkeys(zip(errors["loss_type"], errors["scale_rewards"], strict=True)))
    kinds.sort(key=lambda kind: (kind[1], ["grpo", "dapo", "dr_grpo"].index(kind[0])))
    for (experiment, precision), own in errors.groupby(["experiment", "precision"]):
        model, marker = _MODELS[experiment]
        offset = (0.12 if precision == "float64" else -0.12) + (0.06 if experiment == "real-gradients" else 0.0)
        x = [kinds.index(kind) + offset for kind in zip(own["loss_type"], own["scale_rewards"], strict=True)]
        axis.semilogy(
            x,
            own["value"].clip(lower=_FLOOR),
            marker,
            color=_PRECISION_COLORS[precision],
            markersize=6 if experiment == "real-gradients" else 3.5,
            markerfacecolor="white" if experiment == "real-gradients" else None,
            label=f"{precision}, {model}",
        )
    for precision, tolerance in TOLERANCES.items():
        if precision in set(errors["precision"]):
            axis.axhline(tolerance, color=_PRECISION_COLORS[precision], linestyle=":", linewidth=1)
    axis.set_xticks(range(len(kinds)), [f"{loss}\n{scale}" for loss, scale in kinds], fontsize=7)
    axis.set_xlim(-0.6, len(kinds) - 0.4)
    axis.set_ylim(1e-16, 1)
    axis.set_title("|update − prediction| / |update|", loc="left")
    axis.set_xlabel("loss_type and scale_rewards (dotted: tolerance)")
    axis.legend(loc="center right", bbox_to_anchor=(1.0, 0.3), fontsize=7, handletextpad=0.2)


def _factors(axis: Axes, rows: pd.DataFrame) -> None:
    size = "group_size" if "group_size" in rows and rows["group_size"].notna().any() else None
    found = rows[rows["metric"] == "paper_factor"]
    found = found[found[size].notna()] if size else found.iloc[:0]
    for color, (scale, own) in zip(COLORS, found.groupby("scale_rewards"), strict=False):
        sizes = sorted(own[size].unique())
        axis.plot(own[size], own["value"], "o", color=color, markersize=4, label=f'measured, scale_rewards="{scale}"')
        g = np.linspace(min(sizes), max(sizes), 200)
        curve = np.sqrt((g - 1) / g) if scale == "group" else np.ones_like(g)
        axis.plot(g, curve, color=color, linewidth=1, label="√((G−1)/G)" if scale == "group" else "1")
    if len(found):
        group_size_axis(axis, found[size])
        axis.legend(loc="upper left", bbox_to_anchor=(0.0, 0.92), fontsize=7)
    axis.set_title("update / the paper's σ(s̄₊ − s̄₋) or σ²(s̄₊ − s̄₋)", loc="left")


def _mistakes(axis: Axes, rows: pd.DataFrame) -> None:
    names = [name for name in _WRONG if name in set(rows["metric"])]
    for position, name in enumerate(names):
        own = rows[rows["metric"] == name]
        if name == "error_paper":  # with scale_rewards = "none" the paper's formula is the right one
            own = own[own["scale_rewards"] == "group"]
        spread = np.linspace(-0.25, 0.25, len(own))
        axis.semilogx(own["value"].clip(lower=_FLOOR), position + spread, ".", color="#555555", markersize=3)
    for precision, tolerance in TOLERANCES.items():
        axis.axvline(tolerance, color=_PRECISION_COLORS[precision], linestyle=":", linewidth=1)
        axis.text(
            tolerance * 1.3, len(names) - 0.45, precision, color=_PRECISION_COLORS[precision], fontsize=7, va="bottom"
        )
    axis.set_yticks(range(len(names)), [_WRONG[name] for name in names])
    axis.set_ylim(-0.6, len(names) - 0.2)
    axis.set_xlim(_FLOOR / 3, 30)
    axis.set_title("error of predictions wrong on purpose", loc="left")
    axis.set_xlabel("same ratio (left of its tolerance: no effect)")


# --- where the identity stops -----------------------------------------------------------------------------------------


def beyond_theorem(frame: pd.DataFrame) -> Figure | None:
    """Size of the break by levels of reward, by learning rate of a second update, and by step for each beta."""
    rows = frame[frame["experiment"] == "beyond-theorem-small"]
    if rows[rows["metric"] == "break"].empty:
        return None
    large = frame[frame["experiment"] == "beyond-theorem"]
    figure, axes = panels(1, 3, width=3.6, height=3.0)
    _partial_credit(axes[0, 0], rows, large)
    _second_update(axes[0, 1], rows, large)
    _kl(axes[0, 2], rows, large)
    for axis in axes[0]:
        axis.set_ylim(1e-17, 30)
    axes[0, 0].set_ylabel("relative to the identity's update")
    return figure


_CURVES = {
    "estimated_break": ("break, estimated without gradients", COLORS[4], "x", 0.92),
    "break": ("break, measured on TRL's update", COLORS[1], "o", 1.0),
    "predicted_break": ("break, predicted by autograd", "black", "_", 1.08),
    "residual": ("residual of the corrected prediction", COLORS[0], ".", 1.0),
}


def _curves(axis: Axes, rows: pd.DataFrame, by: str) -> None:
    """Geometric mean and interval over seeds of every curve, by the setting `by`, side by side on logarithmic axes."""
    for metric, (label, color, marker, shift) in _CURVES.items():
        cells = sorted(rows[rows["metric"] == metric].groupby(by)["value"])
        if not cells:
            continue
        estimates = [_geometric(values.to_numpy()) for _, values in cells]
        points_with_interval(axis, [x * shift for x, _ in cells], estimates, label, color, marker)
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
    axis.set_title("partial credit", loc="left")
    axis.set_xlabel("levels of reward (2: the theorem)")
    if len(large):
        axis.plot([], [], "s", markersize=6, markerfacecolor="none", color="black", label="SmolLM2-135M, same colors")
    axis.legend(loc="center right", fontsize=6.5)


def _second_update(axis: Axes, rows: pd.DataFrame, large: pd.DataFrame) -> None:
    own = rows[_equal(rows, "num_iterations", 2) & (rows["step"] == 1)]
    axis.set_xscale("log")
    _curves(axis, own, "lr")
    clipped = own[own["metric"] == "clipped_share"].groupby("lr")["value"].mean()
    for lr, share in clipped.items():
        axis.text(lr, 4.0, f"{100 * share:.2g} %", fontsize=6.5, ha="center")
    axis.set_title("second update on a rollout (top: tokens clipped)", loc="left")
    axis.set_xlabel("learning rate")
    two = large[_equal(large, "num_iterations", 2) & (large["step"] == 1)] if len(large) else large
    if len(two):
        _large_model(axis, two, x=float(two["lr"].iloc[0]))


def _kl(axis: Axes, rows: pd.DataFrame, large: pd.DataFrame) -> None:
    own = rows[rows["beta"] > 0] if "beta" in rows else rows.iloc[:0]
    metrics = (("break", "-", "o"), ("predicted_break", "none", "_"), ("residual", ":", "."))
    for color, (beta, cell) in zip((COLORS[2], COLORS[1], COLORS[3]), own.groupby("beta"), strict=False):
        for metric, line, marker in metrics:
            mean = cell[cell["metric"] == metric].groupby("step")["value"].mean().clip(lower=_FLOOR)
            label = f"beta = {beta:g}" if metric == "break" else None
            drawn = "black" if metric == "predicted_break" else color
            axis.plot(mean.index, mean, linestyle=line, marker=marker, color=drawn, markersize=4, label=label)
    axis.set_yscale("log")
    if len(own):
        axis.set_xticks(sorted(own["step"].dropna().unique()))
        axis.legend(loc="center right", fontsize=6.5)
    kl = large[large["beta"] > 0] if "beta" in large else large.iloc[:0]
    for step, cell in kl.groupby("step"):
        _large_model(axis, cell, x=float(step))
    axis.set_title("KL (lines: break; dotted: residual)", loc="left")
    axis.set_xlabel("step (0: policy = reference)")


def _large_model(axis: Axes, rows: pd.DataFrame, x: float) -> None:
    """The embedded model's break and residual as open squares."""
    for metric in ("break", "residual"):
        values = rows[rows["metric"] == metric]["value"]
        if len(values):
            color = _CURVES[metric][1]
            axis.plot(
                [x] * len(values), values.clip(lower=_FLOOR), "s", markersize=6, markerfacecolor="none", color=color
            )


def _equal(rows: pd.DataFrame, column: str, value: Any) -> pd.Series:
    return rows[column] == value if column in rows else pd.Series(False, index=rows.index)


def _geometric(values: np.ndarray) -> Estimate:
    """Geometric mean with its interval; zeros stand at the floor of the axis."""
    estimate = mean_interval(np.log(np.maximum(values, _FLOOR)))
    return Estimate(*(float(np.exp(x)) for x in (estimate.value, estimate.low, estimate.high)), estimate.n)
