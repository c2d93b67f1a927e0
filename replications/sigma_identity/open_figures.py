"""Figures of the open test: silent groups over training, mass by difficulty, ||Delta|| against p, group norms by k."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.captions import MEAN_INTERVAL, runs
from grpo_replications.shared.harness.plots import (
    NOT_NEGATIVE,
    PROBABILITY,
    caption,
    look,
    panels,
    paper_line,
    points_with_interval,
    series,
    titled,
)
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

SEEDS_FOR_AN_INTERVAL = 5  # fewer are shown with their range
BIN_LABELS = ("< .1", ".1–.4", ".4–.6", ".6–.9", "> .9")
BIN_RATES = ((0.0, 0.1), (0.1, 0.4), (0.4, 0.6), (0.6, 0.9), (0.9, 1.0))
METHODS = ("grpo", "dr-grpo")
Z95 = 1.959964
SHOWN_SIZE = 8
OPEN = "The paper prints no number: it names this as the natural next test."


def open_silent(frame: pd.DataFrame) -> Figure | None:
    """Silent fraction over training by G: fresh groups at checkpoints and the trainer's own, against p^G + (1-p)^G.

    Means over seeds; intervals cover the choice of prompts and of completions within these runs.
    """
    rows = frame[frame["experiment"] == "open-test"]
    if rows.empty:
        return None
    sizes = sorted(rows["group_size"].dropna().unique())
    figure, axes = panels(1, len(sizes), height=1.25, sharey=True)
    looks = {"fresh": series(0, "fresh groups"), "training": series(1, "training groups")}
    counts = []
    for axis, size in zip(axes[0], sizes, strict=True):
        own = rows[rows["group_size"] == size]
        for name, style in looks.items():
            measured = _by_step(own, f"{name}_silent")
            predicted = _by_step(own, f"{name}_silent_predicted")
            error = np.sqrt(_by_step(own, f"{name}_silent_error", lambda x: (x**2).sum() / len(x) ** 2))
            steps = measured.index.to_numpy()
            axis.plot(steps, predicted, color=style.color, linestyle=style.line, label=f"predicted, {style.label}")
            estimates = [Estimate(m, m - Z95 * e, m + Z95 * e, 1) for m, e in zip(measured, error, strict=True)]
            words = f"measured, {style.label}"
            points_with_interval(axis, steps, estimates, words, style.color, style.marker, PROBABILITY)
        counts.append(own["seed"].nunique())
        axis.set_ylim(0, 1.02)
        axis.set_ylabel("silent groups")
    titled(axes, *(f"G = {size:g}, {count} run{'s' if count > 1 else ''}" for size, count in zip(sizes, counts)))
    axes[0, -1].set_xlabel("step")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center")
    return caption(
        figure,
        "A language model (SmolLM2-135M) trained on addition: share of silent groups over training, measured and "
        "predicted by the mean of p^G + (1−p)^G; fresh groups are drawn at checkpoints.",
        f"{OPEN} Its silent-group rate is the prediction.",
        f"{runs(counts)} a group size; bars: 95 % intervals that cover the choice of prompts and completions within "
        "these runs.",
    )


def open_mass(frame: pd.DataFrame) -> Figure | None:
    """Gradient mass by difficulty against the closed forms: from rewards, expected updates and single groups."""
    rewards = frame[frame["experiment"] == "open-test"]
    gradients = frame[frame["experiment"] == "open-test-gradients"]
    if rewards.empty and gradients.empty:
        return None
    figure, axes = panels(1, 3, height=1.35, sharex=True)
    shown = SHOWN_SIZE
    if len(rewards):  # the size nearest to the one that scores are shown for
        shown = min(rewards["group_size"].unique(), key=lambda size: abs(size - SHOWN_SIZE))
        rewards = rewards[rewards["group_size"] == shown]
    _mass_panel(axes[0, 0], rewards, "run_fresh_mass{part}/{method}/{bin}", {"": None, "_predicted": "closed form"})
    pattern = f"run_{{part}}/{{method}}/{SHOWN_SIZE}/{{bin}}"
    _mass_panel(axes[0, 1], gradients, pattern, {"expected_share": None, "expected_closed": "closed form"})
    parts = {"single_share": None, "single_closed": "signal alone", "single_noise": "noise alone"}
    _mass_panel(axes[0, 2], gradients, pattern, parts)
    titled(
        axes,
        f"σ of sampled groups, G = {shown:g} (set 1)",
        f"norm of the expected update, G = {SHOWN_SIZE} (set 2)",
        f"norm of one group's gradient, G = {SHOWN_SIZE} (set 2)",
    )
    axes[0, 2].set_xlabel("solve rate p")
    for axis in axes[0]:
        axis.set_ylabel("share of mass")
        if axis is not axes[0, 1]:
            axis.legend()
    counts = [part["seed"].nunique() for part in (rewards, gradients) if len(part)]
    return caption(
        figure,
        "Share of the gradient by difficulty of the prompt, SmolLM2-135M on addition. Set 1: the prompts of the "
        "silent-group runs; set 2: those of the score runs. A bin without prompts stays empty.",
        f"{OPEN} Its closed forms are the dashes.",
        f"{runs(counts)} a set; bars: {MEAN_INTERVAL}, with fewer than {SEEDS_FOR_AN_INTERVAL} seeds their range.",
    )


def _mass_panel(axis: Axes, rows: pd.DataFrame, pattern: str, parts: dict[str, str | None]) -> None:
    """Shares by bin for both methods: measured (the part without words) with an interval, predictions as marks.

    A bin that held no prompt in any run stays empty: its share is not 0 but unknown.
    """
    marks = {"closed form": ("_", 11), "signal alone": ("_", 11), "noise alone": ("x", 4)}
    for shift, method in zip((-0.18, 0.18), METHODS, strict=True):
        x, style = np.arange(len(BIN_LABELS)) + shift, look(method)
        for part, words in parts.items():
            names = [pattern.format(part=part, method=method, bin=position) for position in range(len(BIN_LABELS))]
            shares = [_over_seeds(rows, name) for name in names]
            shares = [one if one.value or one.high else Estimate(np.nan, np.nan, np.nan, one.n) for one in shares]
            if words is None:
                label = f"{style.label}, measured"
                points_with_interval(axis, x, shares, label, style.color, style.marker, PROBABILITY)
                continue
            mark, size = marks[words]
            plain = {"marker": mark, "markersize": size, "markeredgewidth": 1.0, "linestyle": "none"}
            label = f"{style.label}, {words}"
            axis.plot(x, [share.value for share in shares], color=style.color, label=label, **plain)
    axis.set_xticks(range(len(BIN_LABELS)), BIN_LABELS)
    axis.set_xlim(-0.5, len(BIN_LABELS) - 0.5)
    axis.set_ylim(bottom=0)


def open_delta(frame: pd.DataFrame) -> Figure | None:
    """||Delta(x)|| of every prompt at every checkpoint against its solve rate; root mean square by difficulty."""
    units = prompt_table(frame)
    if units.empty or "delta_squared" not in units:
        return None
    units = units.dropna(subset=["delta_squared"])
    steps = sorted(units["step"].unique())
    figure, axes = panels(1, len(steps), height=1.25, sharex=True, sharey=True)
    counts = []
    for axis, step in zip(axes[0], steps, strict=True):
        own = units[units["step"] == step]
        size = np.sqrt(own["delta_squared"].mean()) if own["delta_squared"].mean() > 0 else 1.0
        counts.append(len(own))
        heights = np.sqrt(own["delta_squared"].clip(lower=0)) / size
        axis.plot(own["rate"], heights, "o", color=series(0).color, alpha=0.4, markersize=2.5, label="one prompt")
        binned = series(1, "root mean square of a bin")
        for low, high in BIN_RATES:
            inside = own[(own["rate"] >= low) & (own["rate"] <= high)]["delta_squared"].to_numpy() / size**2
            if len(inside) >= 3:
                error = inside.std(ddof=1) / len(inside) ** 0.5
                ends = np.sqrt(np.maximum([inside.mean(), inside.mean() - Z95 * error, inside.mean() + Z95 * error], 0))
                estimate = [Estimate(*ends, len(inside))]
                points_with_interval(axis, [(low + high) / 2], estimate, "", binned.color, binned.marker, NOT_NEGATIVE)
        axis.plot([], [], binned.marker, color=binned.color, label=binned.label)
        paper_line(axis, 1.0, "paper's Bernoulli-logit prompts: flat")
        axis.set_xlim(-0.02, 1.02)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("‖Δ‖")
    titled(axes, *(f"step {step:g}, {count} prompts" for step, count in zip(steps, counts, strict=True)))
    axes[0, -1].set_xlabel("solve rate p")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center")
    return caption(
        figure,
        "‖Δ‖, the distance between the mean scores of right and wrong completions, over its root mean square, by solve "
        "rate, SmolLM2-135M on addition at three points of training.",
        f"{OPEN} Its controlled run takes ‖Δ‖ as equal for all prompts: dashed.",
        f"{runs(counts, 'prompts')} a panel, from {runs([units['seed'].nunique()]).removeprefix('n = ')}; bars: 95 % "
        "normal intervals over the prompts of a bin.",
    )


def open_norms(frame: pd.DataFrame) -> Figure | None:
    """Norm of one sampled group's GRPO gradient by its number k of right completions: signal, noise and both."""
    rows = frame[(frame["experiment"] == "open-test-gradients") & frame["metric"].str.startswith("run_norm_measured/")]
    if rows.empty:
        return None
    sizes = sorted({int(metric.split("/")[1]) for metric in rows["metric"]} - {2})
    if not sizes:
        return None  # of groups of two only k = 1 has a gradient
    figure, axes = panels(1, len(sizes), height=1.25)
    everything = frame[frame["experiment"] == "open-test-gradients"]
    lines = {"signal": "signal σ‖Δ‖", "noise": "noise n/√G", "both": "both"}
    counts = set()
    for axis, size in zip(axes[0], sizes, strict=True):
        ks = [k for k in range(1, size) if f"run_norm_measured/{size}/{k}" in set(rows["metric"])]
        measured = [_over_seeds(everything, f"run_norm_measured/{size}/{k}") for k in ks]
        counts |= {one.n for one in measured}
        points_with_interval(axis, ks, measured, "measured", "black", "o", NOT_NEGATIVE)
        for place, (name, label) in enumerate(lines.items()):
            curve = [_over_seeds(everything, f"run_norm_{name}/{size}/{k}").value for k in ks]
            style = series(place, label)
            axis.plot(ks, curve, color=style.color, linestyle=style.line, label=label)
        axis.set_ylim(bottom=0)
        axis.set_xticks(range(1, size, max(1, size // 8)))
        axis.set_ylabel("norm")
    titled(axes, *(f"G = {size}" for size in sizes))
    axes[0, -1].set_xlabel("right completions k")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center")
    return caption(
        figure,
        "Norm ‖σ (s̄₊ − s̄₋)‖ of one sampled group's GRPO gradient (root mean square) by its number k of right "
        "completions, SmolLM2-135M on addition: measured, and what signal and sampling noise give.",
        "The paper prints no number; its identity says σ times the difference of mean scores, of which the signal is "
        "the expected part.",
        f"{runs(counts)} a point; bars: {MEAN_INTERVAL}, with fewer than {SEEDS_FOR_AN_INTERVAL} seeds their range.",
    )


def prompt_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One line per prompt, checkpoint and seed of `open-test-gradients`: its rate, delta_squared, spread, ..."""
    rows = frame[(frame["experiment"] == "open-test-gradients") & frame["step"].notna()]
    parts = rows["metric"].str.extract(r"^(?P<name>rate|delta_squared|spread|norm_squared|right)/(?P<prompt>\d+)$")
    rows = rows.assign(name=parts["name"], prompt=parts["prompt"]).dropna(subset=["name"])
    if rows.empty:
        return rows
    return rows.pivot(index=["seed", "step", "prompt"], columns="name", values="value").reset_index()


def _by_step(rows: pd.DataFrame, metric: str, reduce: Callable[[np.ndarray], float] = np.mean) -> pd.Series:
    own = rows[(rows["metric"] == metric) & rows["step"].notna()]
    return own.groupby("step")["value"].agg(lambda values: float(reduce(values.to_numpy()))).sort_index()


def _over_seeds(rows: pd.DataFrame, metric: str) -> Estimate:
    """Mean over seeds with its 95 % interval; below the number of seeds that claims ask for, with their range."""
    values = rows[rows["metric"] == metric]["value"].to_numpy()
    if not len(values):
        return Estimate(np.nan, np.nan, np.nan, 0)
    if len(values) >= SEEDS_FOR_AN_INTERVAL:
        return mean_interval(values)
    return Estimate(float(values.mean()), float(values.min()), float(values.max()), len(values))


FIGURES: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    "open_silent": open_silent,
    "open_mass": open_mass,
    "open_delta": open_delta,
    "open_norms": open_norms,
}
