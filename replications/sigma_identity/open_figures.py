"""Figures of the open test: silent groups over training, mass by difficulty, ||Delta|| against p, group norms by k."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.plots import COLORS, panels, points_with_interval
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

SEEDS_FOR_AN_INTERVAL = 5  # fewer are shown with their range
BIN_LABELS = ("< .1", ".1–.4", ".4–.6", ".6–.9", "> .9")
BIN_RATES = ((0.0, 0.1), (0.1, 0.4), (0.4, 0.6), (0.6, 0.9), (0.9, 1.0))
METHOD_LABELS = {"grpo": "GRPO", "dr-grpo": "Dr. GRPO"}
METHOD_COLORS = {"grpo": COLORS[0], "dr-grpo": COLORS[1]}
Z95 = 1.959964
SHOWN_SIZE = 8


def open_silent(frame: pd.DataFrame) -> Figure | None:
    """Silent fraction over training by G: fresh groups at checkpoints and the trainer's own, against p^G + (1-p)^G.

    Means over seeds; intervals cover the choice of prompts and of completions within these runs.
    """
    rows = frame[frame["experiment"] == "open-test"]
    if rows.empty:
        return None
    sizes = sorted(rows["group_size"].dropna().unique())
    figure, axes = panels(1, len(sizes), width=3.2, height=2.8, sharey=True)
    for axis, size in zip(axes[0], sizes, strict=True):
        own = rows[rows["group_size"] == size]
        looks = {
            "fresh": ("fresh groups at checkpoints", COLORS[0], "o"),
            "training": ("training groups", COLORS[1], "s"),
        }
        for name, (label, color, marker) in looks.items():
            measured = _by_step(own, f"{name}_silent")
            predicted = _by_step(own, f"{name}_silent_predicted")
            error = np.sqrt(_by_step(own, f"{name}_silent_error", lambda x: (x**2).sum() / len(x) ** 2))
            steps = measured.index.to_numpy()
            axis.plot(steps, predicted, "x--", color=color, label=f"predicted, {label}")
            estimates = [Estimate(m, m - Z95 * e, m + Z95 * e, 1) for m, e in zip(measured, error, strict=True)]
            points_with_interval(axis, steps, estimates, f"measured, {label}", color, marker)
        runs = own["seed"].nunique()
        axis.set_title(f"G = {size:g} ({runs} run{'s' if runs > 1 else ''})", loc="left")
        axis.set_xlabel("step")
        axis.set_ylim(-0.02, 1.02)
    axes[0, 0].set_ylabel("share of silent groups")
    axes[0, 0].legend(fontsize=6.5)
    return figure


def open_mass(frame: pd.DataFrame) -> Figure | None:
    """Gradient mass by difficulty against the closed forms: from rewards, expected updates and single groups."""
    rewards = frame[frame["experiment"] == "open-test"]
    gradients = frame[frame["experiment"] == "open-test-gradients"]
    if rewards.empty and gradients.empty:
        return None
    figure, axes = panels(1, 3, width=3.4, height=2.9, sharey=True)
    shown = SHOWN_SIZE
    if len(rewards):  # the size nearest to the one that scores are shown for
        shown = min(rewards["group_size"].unique(), key=lambda size: abs(size - SHOWN_SIZE))
        rewards = rewards[rewards["group_size"] == shown]
    _mass_panel(axes[0, 0], rewards, "run_fresh_mass{part}/{method}/{bin}", {"": None, "_predicted": "closed form"})
    axes[0, 0].set_title(f"σ of sampled groups, G = {shown:g}\n(prompts of the silent-group runs)", loc="left")
    pattern = f"run_{{part}}/{{method}}/{SHOWN_SIZE}/{{bin}}"
    _mass_panel(axes[0, 1], gradients, pattern, {"expected_share": None, "expected_closed": "closed form"})
    axes[0, 1].set_title(f"norm of the expected update, G = {SHOWN_SIZE}\n(prompts of the score runs)", loc="left")
    parts = {"single_share": None, "single_closed": "signal alone", "single_noise": "noise alone"}
    _mass_panel(axes[0, 2], gradients, pattern, parts)
    axes[0, 2].set_title(f"norm of one group's gradient, G = {SHOWN_SIZE}\n(prompts of the score runs)", loc="left")
    axes[0, 0].set_ylabel("share of gradient mass")
    for axis in axes[0, [0, 2]]:
        axis.legend(fontsize=6.5)
    return figure


def _mass_panel(axis: Axes, rows: pd.DataFrame, pattern: str, parts: dict[str, str | None]) -> None:
    """Shares by bin for both methods: measured (the part without words) with an interval, predictions as marks.

    A bin that held no prompt in any run stays empty: its share is not 0 but unknown.
    """
    marks = {"closed form": ("_", 15), "signal alone": ("_", 15), "noise alone": ("x", 6)}
    for shift, (method, label) in zip((-0.16, 0.16), METHOD_LABELS.items(), strict=True):
        x, color = np.arange(len(BIN_LABELS)) + shift, METHOD_COLORS[method]
        for part, words in parts.items():
            names = [pattern.format(part=part, method=method, bin=position) for position in range(len(BIN_LABELS))]
            shares = [_over_seeds(rows, name) for name in names]
            shares = [one if one.value or one.high else Estimate(np.nan, np.nan, np.nan, one.n) for one in shares]
            if words is None:
                points_with_interval(axis, x, shares, f"{label}, measured", color)
                continue
            mark, size = marks[words]
            style = {"marker": mark, "markersize": size, "markeredgewidth": 1.5, "linestyle": "none"}
            axis.plot(x, [share.value for share in shares], color=color, label=f"{label}, {words}", **style)
    axis.set_xticks(range(len(BIN_LABELS)), BIN_LABELS)
    axis.set_xlim(-0.5, len(BIN_LABELS) - 0.5)
    axis.set_xlabel("solve rate p")


def open_delta(frame: pd.DataFrame) -> Figure | None:
    """||Delta(x)|| of every prompt at every checkpoint against its solve rate; root mean square by difficulty."""
    units = prompt_table(frame)
    if units.empty or "delta_squared" not in units:
        return None
    units = units.dropna(subset=["delta_squared"])
    steps = sorted(units["step"].unique())
    figure, axes = panels(1, len(steps), width=3.2, height=2.8, sharey=True)
    for axis, step in zip(axes[0], steps, strict=True):
        own = units[units["step"] == step]
        size = np.sqrt(own["delta_squared"].mean()) if own["delta_squared"].mean() > 0 else 1.0
        axis.plot(
            own["rate"], np.sqrt(own["delta_squared"].clip(lower=0)) / size, "o", color=COLORS[0], alpha=0.4, ms=4
        )
        for low, high in BIN_RATES:
            inside = own[(own["rate"] >= low) & (own["rate"] <= high)]["delta_squared"].to_numpy() / size**2
            if len(inside) >= 3:
                error = inside.std(ddof=1) / len(inside) ** 0.5
                ends = np.sqrt(np.maximum([inside.mean(), inside.mean() - Z95 * error, inside.mean() + Z95 * error], 0))
                points_with_interval(
                    axis, [(low + high) / 2], [Estimate(*ends, len(inside))], color=COLORS[1], marker="s"
                )
        axis.axhline(1.0, color="black", linestyle="--", linewidth=1)
        axis.set_title(f"step {step:g} ({len(own)} prompts)", loc="left")
        axis.set_xlabel("solve rate p")
        axis.set_xlim(-0.02, 1.02)
    axes[0, 0].set_ylabel("‖Δ‖ / its root mean square")
    axes[0, 0].plot([], [], "s", color=COLORS[1], label="root mean square of a bin")
    axes[0, 0].plot([], [], "--", color="black", label="Bernoulli-logit: flat")
    axes[0, 0].legend()
    return figure


def open_norms(frame: pd.DataFrame) -> Figure | None:
    """Norm of one sampled group's GRPO gradient by its number k of right completions: signal, noise and both."""
    rows = frame[(frame["experiment"] == "open-test-gradients") & frame["metric"].str.startswith("run_norm_measured/")]
    if rows.empty:
        return None
    sizes = sorted({int(metric.split("/")[1]) for metric in rows["metric"]} - {2})
    figure, axes = panels(1, len(sizes), width=3.2, height=2.8)
    everything = frame[frame["experiment"] == "open-test-gradients"]
    lines = {"signal": ("signal σ‖Δ‖", COLORS[2]), "noise": ("noise n/√G", COLORS[3]), "both": ("both", COLORS[6])}
    for axis, size in zip(axes[0], sizes, strict=True):
        counts = [k for k in range(1, size) if f"run_norm_measured/{size}/{k}" in set(rows["metric"])]
        measured = [_over_seeds(everything, f"run_norm_measured/{size}/{k}") for k in counts]
        points_with_interval(axis, counts, measured, "measured", COLORS[0])
        for name, (label, color) in lines.items():
            curve = [_over_seeds(everything, f"run_norm_{name}/{size}/{k}").value for k in counts]
            axis.plot(counts, curve, color=color, label=label)
        axis.set_title(f"G = {size}", loc="left")
        axis.set_xlabel("right completions k")
        axis.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("‖σ (s̄₊ − s̄₋)‖, root mean square")
    axes[0, 0].legend()
    return figure


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
