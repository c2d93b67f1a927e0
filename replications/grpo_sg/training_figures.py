"""Figures of the training comparisons: curves, gains over GRPO, learning rates, constants, shifts of the logits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.plots import COLORS, line_with_interval, panels, points_with_interval
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval, probability_of_improvement

BASELINE = "grpo"
_CURVES = (
    "grpo", "sharpness", "sharpness-mean1", "sharpness-reverse", "advantage-reweighting", "lopti", "80/20",
)  # fmt: skip
_INERT_TAU = 9.0
_SUBJECTS = {"training-small": "small transformer", "training": "embedded model", "training-kk": "knights & knaves"}
_LOWER_IS_BETTER = ("grad_norm_median", "grad_norm_tail", "grad_norm_spikes")
_WORDS = {
    "final_accuracy": "held-out accuracy",
    "final_longer_accuracy": "longer operands",
    "final_solve_rate": "held-out solve rate",
    "reward_mean": "training reward",
    "grad_norm_median": "median gradient norm\n(smaller)",
    "grad_norm_tail": "tail of gradient norm\n(smaller)",
}


def method_label(method: str, tau: float | None, equal: str | None, small: bool = True) -> str:
    """How a figure names a cell; of the small transformer, the paper's tau is marked, and so are equal steps."""
    label = method
    if small and method == "sharpness" and tau == _INERT_TAU:
        label += " (paper's τ)"
    if equal == "steps":
        label += " (equal steps)"
    return label


def _labelled(frame: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Rows of one experiment with a column `label`; empty where it was not run."""
    rows = frame[frame["experiment"] == experiment].copy()
    if rows.empty:
        return rows
    columns = [rows[name] if name in rows else pd.Series(None, rows.index, dtype=object) for name in ("tau", "equal")]
    rows["label"] = [
        method_label(method, None if pd.isna(tau) else float(tau), equal, experiment not in ("training", "training-kk"))
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


def _curves(rows: pd.DataFrame, metrics: dict[str, str], paired: str, words: str) -> Figure:
    """A panel of means and 95 % bands for each metric, and first one of `paired` minus GRPO's value of the same seed.

    Starts differ more between seeds than methods do, so that only differences within a seed tell methods apart.
    """
    labels = [label for label in _CURVES if label in set(rows["label"])]
    figure, axes = panels(1, len(metrics) + 1, 3.1, 2.9)
    base = _by_step(rows[rows["label"] == BASELINE], paired)
    axes[0, 0].axhline(0.0, color="black", linewidth=0.8)
    axes[0, 0].set(xlabel="rollouts", title=words)
    for place, (color, label) in enumerate(zip(COLORS, labels, strict=False)):
        own = rows[rows["label"] == label]
        difference = (_by_step(own, paired) - base).dropna()
        if label != BASELINE and len(difference):
            steps = difference.columns.to_numpy(dtype=float)
            apart = (place / len(labels) - 0.5) * 0.5 * np.diff(steps).min() if len(steps) > 1 else 0.0
            estimates = [mean_interval(difference[step].to_numpy()) for step in difference]
            points_with_interval(axes[0, 0], steps + apart, estimates, "", color)
        for position, (metric, title) in enumerate(metrics.items(), 1):
            table = _by_step(own, metric)
            if len(table):
                steps, means = table.columns.to_numpy(dtype=float), mean_interval(table.to_numpy().T)
                line_with_interval(axes[0, position], steps, means, label, color)
            axes[0, position].set(xlabel="rollouts", title=title)
    handles, names = axes[0, 1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4)
    return figure


def training_curves(frame: pd.DataFrame) -> Figure | None:
    """Small transformer: held-out accuracy against GRPO's, gradient norm and entropy, by rollouts; 95 % over seeds."""
    rows = _labelled(frame, "training-small")
    if rows.empty:
        return None
    metrics = {
        "held_out_accuracy": "held-out accuracy (greedy)",
        "grad_norm": "gradient norm before clipping",
        "entropy": "token entropy (nats)",
    }
    return _curves(rows, metrics, "held_out_accuracy", "held-out accuracy\nminus GRPO's, same seed")


def training_embedded(frame: pd.DataFrame) -> Figure | None:
    """Embedded language model: reward against GRPO's, reward, gradient norm and entropy, by rollouts."""
    rows = _labelled(frame, "training")
    if rows.empty:
        return None
    metrics = {"reward": "training reward", "grad_norm": "gradient norm before clipping", "entropy": "entropy (nats)"}
    return _curves(rows, metrics, "reward", "training reward\nminus GRPO's, same seed")


def training_improvement(frame: pd.DataFrame) -> Figure | None:
    """Probability that a method beats GRPO from the same start with the same seed, by what is compared."""
    sources = [(name, rows) for name in _SUBJECTS if len(rows := _labelled(frame, name))]
    sources = [(name, rows) for name, rows in sources if BASELINE in set(rows["label"])]
    if not sources:
        return None
    metrics = ("final_accuracy", "final_longer_accuracy", "reward_mean", "grad_norm_median", "grad_norm_tail")
    heights = [rows["label"].nunique() for _, rows in sources]
    options = {"sharey": "row", "gridspec_kw": {"height_ratios": heights}}
    figure, axes = panels(len(sources), len(metrics), **options)
    figure.set_size_inches(1.9 * len(metrics), 0.28 * sum(heights) + 1.2)
    for i, (name, rows) in enumerate(sources):
        labels = [label for label in dict.fromkeys(rows["label"]) if label != BASELINE]
        for j, metric in enumerate(metrics):
            _improvements(axes[i, j], rows, metric, labels)
            axes[i, j].set_title(_WORDS[metric] if i == 0 else "")
        axes[i, 0].set_yticks(range(len(labels)), labels)
        axes[i, 0].invert_yaxis()
        axes[i, 0].set_ylabel(_SUBJECTS[name])
    figure.supxlabel("probability of beating GRPO (95 % interval)", fontsize=9)
    return figure


def _improvements(axes: Axes, rows: pd.DataFrame, metric: str, labels: list[str]) -> None:
    base = _by_seed(rows[rows["label"] == BASELINE], metric)
    sign = -1 if metric in _LOWER_IS_BETTER else 1
    axes.axvline(0.5, color="black", linewidth=0.8)
    for position, label in enumerate(labels):
        own = _by_seed(rows[rows["label"] == label], metric)
        seeds = own.index.intersection(base.index)
        if len(seeds):
            found = probability_of_improvement(sign * own[seeds].to_numpy(), sign * base[seeds].to_numpy())
            axes.errorbar(
                found.value,
                position,
                xerr=[[found.value - found.low], [found.high - found.value]],
                fmt="o",
                markersize=4,
                capsize=2,
                color=COLORS[position % len(COLORS)],
            )
    axes.set_xlim(-0.05, 1.05)


def training_learning_rates(frame: pd.DataFrame) -> Figure | None:
    """Small transformer: final held-out accuracy against the learning rate; squares, a method at its own best one."""
    parts = [_labelled(frame, name) for name in ("training-small", "training-small-lr")]
    rows = pd.concat([part for part in parts if not part.empty]) if any(len(part) for part in parts) else None
    if rows is None or rows["lr"].nunique() < 2:
        return None
    best = _labelled(frame, "training-small-best")
    counts = rows.groupby("label")["lr"].nunique()
    labels = [label for label in _CURVES if counts.get(label, 0) > 1]
    figure, axes = panels(1, 1, 5.2, 3.2)
    spread = 1.03
    for i, label in enumerate(labels):
        own = rows[rows["label"] == label]
        lrs = sorted(own["lr"].unique())
        values = [mean_interval(_by_seed(own[own["lr"] == lr], "final_accuracy").to_numpy()) for lr in lrs]
        shift = spread ** (i - len(labels) / 2)
        points_with_interval(axes[0, 0], [lr * shift for lr in lrs], values, label, COLORS[i])
        axes[0, 0].plot([lr * shift for lr in lrs], [value.value for value in values], color=COLORS[i], linewidth=0.8)
        chosen = best[best["label"] == label] if len(best) else best
        if len(chosen):
            lr = float(chosen.loc[chosen["metric"] == "best_lr", "value"].iloc[0])
            value = mean_interval(_by_seed(chosen, "final_accuracy").to_numpy())
            points_with_interval(axes[0, 0], [lr * shift * spread], [value], "", COLORS[i], marker="s")
    axes[0, 0].set(xscale="log", xlabel="learning rate", ylabel="final held-out accuracy")
    axes[0, 0].set_xticks(sorted(rows["lr"].unique()), [f"{lr:g}" for lr in sorted(rows["lr"].unique())])
    axes[0, 0].minorticks_off()
    figure.legend(loc="outside right upper")
    return figure


def training_sensitivity(frame: pd.DataFrame) -> Figure | None:
    """One constant of the weights moved at a time, and the places a weight can stand in: held-out accuracy."""
    moved, placed = (frame[frame["experiment"] == name] for name in ("sensitivity", "placement"))
    if moved.empty and placed.empty:
        return None
    figure, axes = panels(1, 2, 4.4, 3.2)
    _changes(axes[0, 0], moved)
    _places(axes[0, 1], placed)
    return figure


def _changes(axes: Axes, rows: pd.DataFrame) -> None:
    prefix = "accuracy_change/"
    names = [name for name in dict.fromkeys(rows["metric"]) if name.startswith(prefix)]
    values = [mean_interval(_by_seed(rows, name).to_numpy()) for name in names]
    axes.axhline(0, color="black", linewidth=0.8)
    if names:
        points_with_interval(axes, range(len(names)), values)
    axes.set_xticks(range(len(names)), [name.removeprefix(prefix).replace("_", " ") for name in names], rotation=60)
    axes.set(ylabel="change of final held-out accuracy", title="one constant at a time")


def _places(axes: Axes, rows: pd.DataFrame) -> None:
    names, values = [], []
    base = _by_seed(rows[rows["method"] == BASELINE], "final_accuracy") if len(rows) else pd.Series(dtype=float)
    keys = [key for key in ("method", "placement", "weight_kl") if key in rows]
    for chosen, own in rows.groupby(keys, dropna=False, sort=False) if keys else ():
        cell = dict(zip(keys, chosen, strict=True))
        difference = (_by_seed(own, "final_accuracy") - base).dropna()
        if cell["method"] == BASELINE or difference.empty:
            continue
        weighted = {True: "weighted", False: "plain"}.get(cell.get("weight_kl"))
        names.append(f"{cell.get('placement')}, KL {weighted}")
        values.append(mean_interval(difference.to_numpy()))
    axes.axhline(0, color="black", linewidth=0.8)
    if names:
        points_with_interval(axes, range(len(names)), values, color=COLORS[1])
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set(ylabel="accuracy minus GRPO's, same seed", title="where the weight stands (β > 0)")


def training_identifiability(frame: pd.DataFrame) -> Figure | None:
    """All logits shifted by c, the policy unchanged: what the weights are, and how far training ends from c = 0."""
    rows = frame[frame["experiment"] == "identifiability-training"]
    shifts = sorted(float(name.split("/")[1]) for name in set(rows["metric"]) if name.startswith("weight_mean/"))
    if not shifts:
        return None

    def estimates(metric: Callable[[float], str], over: list[float]) -> list[Estimate]:
        return [mean_interval(_by_seed(rows, metric(c)).to_numpy()) for c in over]

    figure, axes = panels(1, 2, 3.6, 2.8)
    at = np.arange(len(shifts))
    names = {"weight_mean": "mean weight", "weight_share_between": "share strictly between L and U"}
    for color, (metric, label) in zip(COLORS, names.items(), strict=False):
        points_with_interval(axes[0, 0], at, estimates(lambda c, m=metric: f"{m}/{c:g}", shifts), label, color)
    axes[0, 0].set(title="weights")
    points_with_interval(
        axes[0, 1], at, estimates(lambda c: f"policy_distance/{c:g}_to_grpo", shifts), "sharpness", COLORS[1]
    )
    for name, label, color in (("grpo_shift", "GRPO, shifted", COLORS[0]), ("grpo_reseeded", "other samples", "gray")):
        value = mean_interval(_by_seed(rows, f"policy_distance/{name}").to_numpy())
        axes[0, 1].axhline(value.value, color=color, linestyle="--", linewidth=1, label=label)
        if math.isfinite(value.low):
            axes[0, 1].axhspan(value.low, value.high, color=color, alpha=0.15, linewidth=0)
    axes[0, 1].set(title="distance of the final policy from GRPO's", ylabel="change of the chance to answer right")
    for panel in axes[0]:
        panel.set_xticks(at, [f"{c:g}" for c in shifts])
        panel.set_xlabel("shift c of all logits")
        panel.legend()
    return figure


FIGURES = {
    "training_curves": training_curves,
    "training_improvement": training_improvement,
    "training_learning_rates": training_learning_rates,
    "training_sensitivity": training_sensitivity,
    "training_identifiability": training_identifiability,
    "training_embedded": training_embedded,
}
"""Each takes the measurements and returns a figure, or None where they do not hold what it draws."""
