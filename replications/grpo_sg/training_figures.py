"""Figures of the training comparisons: curves, gains over GRPO, learning rates, constants, shifts of the logits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.captions import DIFFERENCE_INTERVAL, MEAN_INTERVAL, NO_NUMBER, runs
from grpo_replications.shared.harness.plots import (
    GREY,
    NOT_NEGATIVE,
    PROBABILITY,
    Look,
    caption,
    line_with_interval,
    look,
    panels,
    paper_line,
    points_with_interval,
    series,
    titled,
    zero_line,
)
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

BASELINE = "grpo"
POINTS = 100.0  # of a share, in percentage points
PAPER_GAINS = (2.7, 6.0)
"""Smallest and largest average gain over GRPO on mathematics that the paper reports, in points."""
WHERE = "claim 4, models of 3B and more"
GAINS = f"paper's gains on maths: {PAPER_GAINS[0]:g} to {PAPER_GAINS[1]:g}"
_CURVES = (
    "grpo", "sharpness", "sharpness-mean1", "sharpness-reverse", "advantage-reweighting", "lopti", "80/20",
)  # fmt: skip
_INERT_TAU = 9.0
_ENDS = {
    "final_solve_rate": "solve rate",
    "final_accuracy": "accuracy",
    "final_longer_accuracy": "longer sums",
    "reward_mean": "reward",
    "grad_norm_median": "gradient norm",
    "grad_norm_tail": "its tail",
}
_NORMS = ("grad_norm_median", "grad_norm_tail")
_LIMITS = {"held_out_accuracy": PROBABILITY, "held_out_solve_rate": PROBABILITY, "reward": PROBABILITY}


def method_label(method: str, tau: float | None, equal: str | None, small: bool = True) -> str:
    """How a figure names a cell; of the small transformer, the paper's tau is marked, and so are equal steps."""
    label = method
    if small and method == "sharpness" and tau == _INERT_TAU:
        label += " (paper's τ)"
    if equal == "steps":
        label += " (equal steps)"
    return label


def _look_of(label: str) -> Look:
    """The method's look; what a label says beyond the method stays in its words."""
    method, bracket, rest = label.partition(" (")
    style = look(method)
    return style._replace(label=style.label + bracket + rest)


def _labelled(frame: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Rows of one experiment with a column `label`; empty where it was not run."""
    rows = frame[frame["experiment"] == experiment].copy()
    if rows.empty:
        return rows
    columns = [rows[name] if name in rows else pd.Series(None, rows.index, dtype=object) for name in ("tau", "equal")]
    rows["label"] = [
        method_label(method, None if pd.isna(tau) else float(tau), equal, experiment != "training")
        for method, tau, equal in zip(rows["method"], *columns, strict=True)
    ]
    return rows


def _by_seed(rows: pd.DataFrame, metric: str) -> pd.Series:
    """One value of `metric` per seed, of rows without step; the mean where a seed has several (learning rates, say)."""
    chosen = rows[(rows["metric"] == metric) & rows["step"].isna() & rows["seed"].notna()]
    return chosen.groupby("seed")["value"].mean().astype(float)


def _by_step(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Values of `metric` with a line per seed and a column per step."""
    chosen = rows[(rows["metric"] == metric) & rows["step"].notna()]
    return chosen.pivot_table(index="seed", columns="step", values="value").dropna()


def _seeds(rows: pd.DataFrame) -> str:
    return runs(rows.groupby("label" if "label" in rows else "experiment")["seed"].nunique())


def _paper_gains(axes: Axes, across: bool = False) -> None:
    for gain, label in zip(PAPER_GAINS, (GAINS, None), strict=True):
        paper_line(axes, gain, label, across)


# --- curves -----------------------------------------------------------------------------------------------------------


def training_curves(frame: pd.DataFrame) -> Figure | None:
    """Small transformer: held-out accuracy against GRPO's, its course, gradient norm and entropy, by rollouts.

    Starts differ more between seeds than methods do, so that only differences within a seed tell methods apart.
    """
    rows = _labelled(frame, "training-small")
    if rows.empty:
        return None
    labels = [label for label in _CURVES if label in set(rows["label"])]
    rows = rows[rows["label"].isin(labels)]
    figure, axes = panels(1, 4, height=1.35)
    base = _by_step(rows[rows["label"] == BASELINE], "held_out_accuracy")
    zero_line(axes[0, 0])
    metrics = ("held_out_accuracy", "grad_norm", "entropy")
    for place, label in enumerate(labels):
        own, style = rows[rows["label"] == label], _look_of(label)
        difference = POINTS * (_by_step(own, "held_out_accuracy") - base).dropna()
        if label != BASELINE and len(difference):
            steps = difference.columns.to_numpy(dtype=float)
            apart = (place / len(labels) - 0.5) * 0.6 * np.diff(steps).min() if len(steps) > 1 else 0.0
            estimates = [mean_interval(difference[step].to_numpy()) for step in difference]
            points_with_interval(axes[0, 0], steps + apart, estimates, "", style.color, style.marker)
        for axis, metric in zip(axes[0, 1:], metrics, strict=True):
            table = _by_step(own, metric)
            if len(table):
                means, limits = mean_interval(table.to_numpy().T), _LIMITS.get(metric, NOT_NEGATIVE)
                steps = table.columns.to_numpy(dtype=float)
                line_with_interval(axis, steps, means, style.label, style.color, style.line, style.marker, limits)
    titled(
        axes,
        "held-out accuracy minus GRPO's, points",
        "held-out accuracy (greedy)",
        "gradient norm before clipping",
        "token entropy (nats)",
    )
    axes[0, 3].set_xlabel("rollouts")
    handles, names = axes[0, 1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center")
    return caption(
        figure,
        "Small transformer on addition, all methods at one learning rate: (a) held-out accuracy minus GRPO's of the "
        "same seed, (b) accuracy, (c) gradient norm, (d) entropy, by rollouts.",
        f"{NO_NUMBER} Its Figure 1 shows smaller and steadier gradient norms and a higher reward than GRPO's, with "
        "language models.",
        f"{_seeds(rows)} a method; bars and bands: {MEAN_INTERVAL}, in (a) of paired differences.",
    )


# --- differences from GRPO --------------------------------------------------------------------------------------------


def training_improvement(frame: pd.DataFrame) -> Figure | None:
    """Small transformer: every method minus GRPO with the same seed, at the end of training, by what is measured."""
    return _against_grpo(frame, "training-small", "A small transformer on addition")


def training_embedded(frame: pd.DataFrame) -> Figure | None:
    """Embedded language model: every method minus GRPO with the same seed, at the end of training."""
    return _against_grpo(frame, "training", "SmolLM2-135M on addition, five rollouts (a short run)")


def _against_grpo(frame: pd.DataFrame, experiment: str, subject: str) -> Figure | None:
    """Paired differences with intervals, a panel per quantity and a line per method: points, and per cent for norms."""
    rows = _labelled(frame, experiment)
    if rows.empty or BASELINE not in set(rows["label"]):
        return None
    metrics = [metric for metric in _ENDS if metric in set(rows["metric"])]
    metrics = metrics[: len(metrics) // 2 * 2]
    labels = [label for label in dict.fromkeys(rows["label"]) if label != BASELINE]
    if not metrics or not labels:
        return None
    labels.sort(key=lambda label: list(_ORDER).index(method) if (method := label.partition(" (")[0]) in _ORDER else 99)
    down = len(metrics) // 2
    figure, axes = panels(down, 2, width=1.6, height=0.62 + 0.115 * len(labels), sharey=True)
    for axis, metric in zip(axes.flat, metrics, strict=True):
        _differences(axis, rows, metric, labels)
        axis.set_title(f"{_ENDS[metric]}, {'%' if metric in _NORMS else 'points'}", loc="left")
    axes[0, 0].set_yticks(range(len(labels)), [_look_of(label).label for label in labels])
    axes[0, 0].set_ylim(len(labels) - 0.5, -0.5)
    handles, names = axes[0, 0].get_legend_handles_labels()
    if names:
        figure.legend(handles, names, loc="outside upper center")
    return caption(
        figure,
        f"{subject}: every method minus GRPO of the same seed, in percentage points: held-out solve rate and greedy "
        "accuracy, longer operands, mean reward; and in % of GRPO's mean: median and tail of the gradient norm.",
        f"Dashed: the paper's smallest and largest average gain on mathematics, {PAPER_GAINS[0]:g} and "
        f"{PAPER_GAINS[1]:g} points ({WHERE}); it prints no number for norms.",
        f"{_seeds(rows)} a method, paired; bars: {DIFFERENCE_INTERVAL}.",
    )


_ORDER = (
    "sharpness", "sharpness-mean1", "sharpness-logprob", "sharpness-prob", "sharpness-reverse",
    "advantage-reweighting", "lopti", "lopti+ar", "80/20",
)  # fmt: skip


def _differences(axes: Axes, rows: pd.DataFrame, metric: str, labels: list[str]) -> None:
    base = _by_seed(rows[rows["label"] == BASELINE], metric)
    scale = POINTS / base.mean() if metric in _NORMS else POINTS
    zero_line(axes, across=True)
    for position, label in enumerate(labels):
        difference = scale * (_by_seed(rows[rows["label"] == label], metric) - base).dropna()
        if len(difference):
            style = _look_of(label)
            estimate = mean_interval(difference.to_numpy())
            limits = (-POINTS, math.inf) if metric in _NORMS else (-math.inf, math.inf)  # a norm is not negative
            points_with_interval(axes, [position], [estimate], "", style.color, style.marker, limits, across=True)
    if metric in ("final_accuracy", "final_solve_rate"):
        _paper_gains(axes, across=True)


# --- learning rates ---------------------------------------------------------------------------------------------------


def training_learning_rates(frame: pd.DataFrame) -> Figure | None:
    """Small transformer: held-out solve rate by learning rate, and its paired difference from GRPO's."""
    parts = [_labelled(frame, name) for name in ("training-small", "training-small-lr")]
    rows = pd.concat([part for part in parts if not part.empty]) if any(len(part) for part in parts) else None
    if rows is None or rows["lr"].nunique() < 2:
        return None
    metric = "final_solve_rate" if "final_solve_rate" in set(rows["metric"]) else "final_accuracy"
    words = {"final_solve_rate": "held-out solve rate", "final_accuracy": "held-out accuracy"}[metric]
    counts = rows.groupby("label")["lr"].nunique()
    labels = [label for label in _CURVES if counts.get(label, 0) > 1]
    rates = sorted(rows["lr"].unique())
    figure, axes = panels(1, 2, height=1.55, sharex=True)
    zero_line(axes[0, 1])
    base = [_by_seed(rows[(rows["label"] == BASELINE) & (rows["lr"] == lr)], metric) for lr in rates]
    for i, label in enumerate(labels):
        style, own = _look_of(label), rows[rows["label"] == label]
        values = [_by_seed(own[own["lr"] == lr], metric) for lr in rates]
        means = [value.mean() for value in values]
        axes[0, 0].plot(means, color=style.color, linestyle=style.line, marker=style.marker, label=style.label)
        if label == BASELINE:
            continue
        places = np.arange(len(rates)) + (i - len(labels) / 2) * 0.13
        pairs = [POINTS * (value - other).dropna().to_numpy() for value, other in zip(values, base, strict=True)]
        points_with_interval(axes[0, 1], places, [mean_interval(one) for one in pairs], "", style.color, style.marker)
    _paper_gains(axes[0, 1])
    axes[0, 1].set_xticks(range(len(rates)), [f"{lr:g}" for lr in rates])
    axes[0, 1].set_xlabel("learning rate")
    titled(axes, f"final {words}, mean", "the same minus GRPO's, points")
    axes[0, 0].legend()
    axes[0, 1].legend()
    return caption(
        figure,
        f"Small transformer on held-out sums (no language model): (a) final {words} of {len(labels)} methods by "
        "learning rate, (b) its difference from GRPO's at the same rate and seed.",
        f"Dashed: the paper's smallest and largest average gain on mathematics, {PAPER_GAINS[0]:g} and "
        f"{PAPER_GAINS[1]:g} points ({WHERE}).",
        f"{runs(rows[rows['label'].isin(labels)].groupby(['label', 'lr'])['seed'].nunique())} a rate and method; bars: "
        f"{DIFFERENCE_INTERVAL}.",
    )


# --- constants and places ---------------------------------------------------------------------------------------------


def training_sensitivity(frame: pd.DataFrame) -> Figure | None:
    """One constant of the weights moved at a time, and the places a weight can stand in: held-out solve rate."""
    moved, placed = (frame[frame["experiment"] == name] for name in ("sensitivity", "placement"))
    if moved.empty and placed.empty:
        return None
    changes, places = _changes(moved), _places(placed)
    heights = [max(len(changes), 2), max(len(places), 2)]
    figure, axes = panels(1, 2, gridspec_kw={"height_ratios": heights})
    figure.set_figheight(0.14 * sum(heights) + 1.1)
    for axis, values, color in zip(axes[0], (changes, places), (look("sharpness").color,) * 2, strict=True):
        points_with_interval(axis, range(len(values)), list(values.values()), "", color, "X", across=True)
        axis.set_yticks(range(len(values)), values.keys())
        axis.set_ylim(max(len(values), 1) - 0.5, -0.5)
        zero_line(axis, across=True)
        for sign, label in ((1, "paper's smallest gain, the margin of the checks: ±2.7"), (-1, None)):
            paper_line(axis, sign * PAPER_GAINS[0], label, across=True)
    titled(axes, "one constant of SG at a time", "where the weight stands (β > 0)")
    axes[0, 1].set_xlabel("final solve rate, change in points")
    axes[0, 0].legend()
    return caption(
        figure,
        "Small transformer on addition, final held-out solve rate: (a) change when one constant of the weights moves, "
        "(b) difference from GRPO by where the weight stands and whether the KL term is weighted too.",
        f"{NO_NUMBER} Dashed: its smallest average gain on mathematics, {PAPER_GAINS[0]:g} points, either way.",
        f"{runs(part['seed'].nunique() for part in (moved, placed) if len(part))} a line, paired; bars: "
        f"{DIFFERENCE_INTERVAL}.",
    )


def _changes(rows: pd.DataFrame) -> dict[str, Estimate]:
    known = set(rows["metric"])
    prefix = (
        "solve_rate_change/" if any(name.startswith("solve_rate_change/") for name in known) else "accuracy_change/"
    )
    names = [name for name in dict.fromkeys(rows["metric"]) if name.startswith(prefix)]
    signs = {"alpha": "α", "mu": "μ", "tau": "τ", "lower": "L", "upper": "U"}
    found = {}
    for name in names:
        constant, equals, value = name.removeprefix(prefix).partition("=")
        label = f"{signs.get(constant, constant)}{equals and ' = '}{value}".replace("_", " ")
        found[label] = mean_interval(POINTS * _by_seed(rows, name).to_numpy())
    return found


def _places(rows: pd.DataFrame) -> dict[str, Estimate]:
    metric = "final_solve_rate" if "final_solve_rate" in set(rows["metric"]) else "final_accuracy"
    base = _by_seed(rows[rows["method"] == BASELINE], metric) if len(rows) else pd.Series(dtype=float)
    keys = [key for key in ("method", "placement", "weight_kl") if key in rows]
    found: dict[str, Estimate] = {}
    for chosen, own in rows.groupby(keys, dropna=False, sort=False) if keys else ():
        cell = dict(zip(keys, chosen, strict=True))
        difference = (_by_seed(own, metric) - base).dropna()
        if cell["method"] == BASELINE or difference.empty:
            continue
        weighted = {True: "weighted", False: "plain"}.get(cell.get("weight_kl"))
        found[f"{cell.get('placement')}, KL {weighted}"] = mean_interval(POINTS * difference.to_numpy())
    return found


# --- shifted logits ---------------------------------------------------------------------------------------------------


def training_identifiability(frame: pd.DataFrame) -> Figure | None:
    """All logits shifted by c, the policy unchanged: what the weights are, and how far training ends from c = 0."""
    rows = frame[frame["experiment"] == "identifiability-training"]
    shifts = sorted(float(name.split("/")[1]) for name in set(rows["metric"]) if name.startswith("weight_mean/"))
    if not shifts:
        return None

    def estimates(metric: Callable[[float], str], over: list[float]) -> list[Estimate]:
        return [mean_interval(_by_seed(rows, metric(c)).to_numpy()) for c in over]

    figure, axes = panels(1, 2, height=1.4, sharex=True)
    at = np.arange(len(shifts))
    names = {"weight_mean": "mean weight", "weight_share_between": "share strictly between L and U"}
    for place, (metric, label) in enumerate(names.items()):
        style = series(place + 2, label)
        values = estimates(lambda c, m=metric: f"{m}/{c:g}", shifts)
        points_with_interval(axes[0, 0], at, values, label, style.color, style.marker, NOT_NEGATIVE)
    style = look("sharpness")
    values = estimates(lambda c: f"policy_distance/{c:g}_to_grpo", shifts)
    points_with_interval(axes[0, 1], at, values, style.label, style.color, style.marker, NOT_NEGATIVE)
    lines = (
        ("grpo_shift", "GRPO, logits shifted", look(BASELINE).color),
        ("grpo_reseeded", "GRPO, other samples", GREY),
    )
    for (name, label, color), line in zip(lines, ("-", ":"), strict=True):
        value = mean_interval(_by_seed(rows, f"policy_distance/{name}").to_numpy())
        axes[0, 1].axhline(value.value, color=color, linestyle=line, linewidth=1.2, label=label)
        if math.isfinite(value.low):
            axes[0, 1].axhspan(max(value.low, 0.0), value.high, color=color, alpha=0.15, linewidth=0)
    titled(axes, "weights", "distance of the final policy from GRPO's")
    axes[0, 1].set_xticks(at, [f"{c:g}" for c in shifts])
    axes[0, 1].set_xlabel("shift c of all logits")
    for panel in axes[0]:
        panel.set_ylim(bottom=0)
        panel.legend()
    return caption(
        figure,
        "Small transformer on addition, a constant c added to all logits, which leaves the policy as it is: (a) SG's "
        "weights, (b) mean change of the chance to answer right, against GRPO, after training.",
        f"{NO_NUMBER} Its weights are a function of the raw logit.",
        f"{runs([rows['seed'].nunique()])} a shift; bars and bands: {MEAN_INTERVAL}.",
    )


FIGURES = {
    "training_curves": training_curves,
    "training_improvement": training_improvement,
    "training_learning_rates": training_learning_rates,
    "training_sensitivity": training_sensitivity,
    "training_identifiability": training_identifiability,
    "training_embedded": training_embedded,
}
"""Each takes the measurements and returns a figure, or None where they do not hold what it draws."""
