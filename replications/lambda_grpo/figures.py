"""Measurements -> figures of this replication; nothing is run again. A function returns None where data is missing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grpo_replications.replications.lambda_grpo.arm_figures import prefix, process_sets, speed, sums, table1_lm
from grpo_replications.replications.lambda_grpo.table1_figures import (
    METHOD_COLORS,
    METHOD_LABELS,
    table1_map,
    table1_matched,
    table1_paper,
)
from grpo_replications.replications.lambda_grpo.table2_intervals import DIGIT, Z95, pairs, read_table
from grpo_replications.shared.harness.plots import COLORS, line_with_interval, panels, points_with_interval
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

PAPER_OVERLAP = {
    6: {"path_depth": (1.0, 3.3), "intermediate_proportion": (0.0, 0.8), "flat_share": (None, 6688 / 6700)},
    36: {"path_depth": (3.0, 11.0), "intermediate_proportion": (0.0, 0.8), "flat_share": (None, 1.0)},
}
"""The paper's values at the beginning and at the end of its runs, by group size; about, where read off a figure."""


def overlap(frame: pd.DataFrame) -> Figure | None:
    """Path depth, intermediate proportion and share of non-flat trees over training, as in the paper's figure."""
    rows = frame[(frame["experiment"] == "overlap") & frame["step"].notna()]
    if rows.empty:
        return None
    figure, axes = panels(1, 3, width=3.4, height=2.7)
    titles = {
        "path_depth": "path depth",
        "intermediate_proportion": "intermediate proportion",
        "flat_share": "share of trees that are not flat",
    }
    for axis, (metric, title) in zip(axes[0], titles.items(), strict=True):
        for color, (size, own) in zip(COLORS, rows[rows["metric"] == metric].groupby("group_size"), strict=False):
            curve = own.pivot(index="step", columns="seed", values="value")
            curve = 1 - curve if metric == "flat_share" else curve
            axis.plot(curve.index, curve, color=color, alpha=0.3, linewidth=0.8)
            axis.plot(curve.index, curve.mean(axis=1), color=color, label=f"G = {size:g}")
        axis.set_title(title, loc="left")
        axis.set_xlabel("step")
    sizes = sorted(size for size in PAPER_OVERLAP if size in set(rows["group_size"]))
    colors = dict(zip(sorted(rows["group_size"].unique()), COLORS, strict=False))
    first, last = float(rows["step"].min()), float(rows["step"].max())
    for axis, metric in zip(axes[0], titles, strict=True):
        for place, size in enumerate(sizes):
            away = (0.02 + 0.05 * place) * (last - first)
            for x, y in zip((first - away, last + away), PAPER_OVERLAP[size][metric], strict=True):
                if y is not None:
                    axis.plot(x, y, "D", markersize=5, markerfacecolor="white", markeredgecolor=colors[size])
        axis.plot([], [], "D", markerfacecolor="white", markeredgecolor="#666666", label="paper: begin, end")
    axes[0, 0].legend()
    axes[0, 2].set_ylim(top=1.05)
    return figure


def training(frame: pd.DataFrame) -> Figure | None:
    """Validation accuracy over steps, seeds thin, means with 95 % intervals; its mean over the run; entropy."""
    rows = frame[frame["experiment"] == "training"]
    curves = rows[rows["metric"] == "validation_accuracy"]
    if curves.empty:
        return None
    figure, axes = panels(1, 3, width=3.4, height=2.7)
    for position, method in enumerate(METHOD_LABELS):
        own = curves[curves["method"] == method].pivot(index="step", columns="seed", values="value")
        if own.empty:
            continue
        color, label = METHOD_COLORS[method], METHOD_LABELS[method]
        axes[0, 0].plot(own.index, own, color=color, alpha=0.25, linewidth=0.7)
        line_with_interval(axes[0, 0], own.index, _over_seeds(own), f"{label} ({own.shape[1]} seeds)", color)
        entropy = rows[(rows["metric"] == "entropy") & (rows["method"] == method)]
        entropy = entropy.pivot(index="step", columns="seed", values="value")
        band = _over_seeds(entropy)
        line_with_interval(axes[0, 2], entropy.index, band._replace(low=np.maximum(band.low, 0)), label, color)
        means = rows[(rows["metric"] == "mean_accuracy") & (rows["method"] == method)]["value"].to_numpy()
        jitter = np.linspace(-0.1, 0.1, len(means))
        axes[0, 1].plot(position + jitter, means, "o", color=color, alpha=0.5, markersize=4)
        points_with_interval(axes[0, 1], [position], [mean_interval(means)], color="black", marker="_")
    axes[0, 0].set_title("accuracy on held-out sums", loc="left")
    axes[0, 0].set_xlabel("step")
    axes[0, 0].legend(loc="lower right")
    axes[0, 1].set_title("accuracy, mean over the run", loc="left")
    axes[0, 1].set_xticks(range(len(METHOD_LABELS)), METHOD_LABELS.values())
    axes[0, 1].set_xlim(-0.5, 1.5)
    axes[0, 2].set_title("entropy per token (nats)", loc="left")
    axes[0, 2].set_xlabel("step")
    return figure


def theorem(frame: pd.DataFrame) -> Figure | None:
    """Largest relative error of every check beside the controls that must fail, on one logarithmic scale."""
    rows = frame[frame["experiment"] == "theorem"]
    if rows.empty:
        return None
    names = {
        "value_error": "L_PRM = L_GRPO, value",
        "gradient_error": "L_PRM = L_GRPO, gradient",
        "set_contribution_error": "a set counts |λ| times in GRPO",
        "set_contribution_error_lambda": "a set counts once in λ-GRPO",
        "two_updates_unclipped": "second update, no clipping",
        "control_two_updates": "control: second update, clipped",
        "control_sequence_norm": "control: normalized by sequence",
    }
    figure, axes = panels(1, 1, width=6.5, height=3.0)
    axis = axes[0, 0]
    floor = np.finfo(float).eps / 10
    sources = {"random": "random groups, recurrent policy", "rollouts": "completions of a language model"}
    for color, (source, label) in zip(COLORS, sources.items(), strict=False):
        own = rows[rows["source"] == source]
        points = [(v, i) for i, name in enumerate(names) for v in own[own["metric"] == name]["value"]]
        if points:
            values, places = zip(*points, strict=True)
            axis.plot(np.maximum(values, floor), places, "o", color=color, alpha=0.6, label=label)
    axis.set_xscale("log")
    axis.set_yticks(range(len(names)), names.values())
    axis.invert_yaxis()
    axis.axvline(1e-10, color="black", linestyle="--", linewidth=1)
    axis.text(1.6e-10, -0.25, "checks must stay left of this line, controls right of it", fontsize=7)
    axis.set_xlabel("largest relative error over groups (float64)")
    axis.legend(loc="lower left")
    return figure


def table2_intervals(frame: pd.DataFrame) -> Figure | None:
    """The 20 printed differences λ-GRPO minus GRPO with the 95 % intervals that the printed standard errors imply."""
    if frame[frame["experiment"] == "table2-intervals"].empty:
        return None
    comparisons = list(pairs(read_table()))
    figure, axes = panels(1, 1, width=9.0, height=3.4)
    axis = axes[0, 0]
    benchmarks = list(dict.fromkeys(pair.ours.benchmark for pair in comparisons))
    for color, benchmark in zip(COLORS, benchmarks, strict=False):
        chosen = [(place, pair) for place, pair in enumerate(comparisons) if pair.ours.benchmark == benchmark]
        estimates = []
        for _, pair in chosen:
            reach = Z95 * float(np.hypot(pair.ours.interval, pair.grpo.interval)) / DIGIT
            difference = pair.difference / DIGIT
            estimates.append(Estimate(difference, difference - reach, difference + reach, 1))
        points_with_interval(axis, [place for place, _ in chosen], estimates, label=benchmark, color=color)
    axis.axhline(0.0, color="black", linewidth=0.8)
    settings = list(dict.fromkeys((pair.ours.model, pair.ours.beta) for pair in comparisons))
    width = len(benchmarks)
    axis.set_xticks(
        [width * i + (width - 1) / 2 for i in range(len(settings))],
        [f"{model.split('/')[-1].removeprefix('DeepSeek-R1-')}\nβ = {beta:g}" for model, beta in settings],
    )
    axis.set_title("printed accuracies: λ-GRPO minus GRPO, one training run each", loc="left")
    figure.legend(*axis.get_legend_handles_labels(), ncols=len(benchmarks), loc="outside lower center")
    return figure


def _over_seeds(curve: pd.DataFrame) -> Estimate:
    """Mean over seeds (columns) at each step (rows), with its 95 % interval, which one seed has not."""
    return mean_interval(curve.to_numpy())


FIGURES: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    "theorem": theorem,
    "table1_map": table1_map,
    "table1_paper": table1_paper,
    "table1_matched": table1_matched,
    "table1_lm": table1_lm,
    "process_sets": process_sets,
    "prefix": prefix,
    "speed": speed,
    "sums": sums,
    "overlap": overlap,
    "training": training,
    "table2_intervals": table2_intervals,
}
