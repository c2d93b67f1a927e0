"""Measurements -> figures of this replication; nothing is run again. A function returns None where data is missing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grpo_replications.replications.lambda_grpo.arm_figures import prefix, process_sets, speed, sums, table1_lm
from grpo_replications.replications.lambda_grpo.table1_figures import table1_map, table1_matched, table1_paper
from grpo_replications.replications.lambda_grpo.table2_figure import table2
from grpo_replications.replications.lambda_grpo.table2_intervals import DIGIT, Z95, pairs, read_table
from grpo_replications.shared.harness.captions import MEAN_INTERVAL, runs
from grpo_replications.shared.harness.plots import (
    NOT_NEGATIVE,
    PROBABILITY,
    caption,
    line_with_interval,
    look,
    panels,
    paper_mark,
    points_with_interval,
    series,
    titled,
    zero_line,
)
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

PAPER_OVERLAP = {
    6: {"path_depth": (1.0, 3.3), "intermediate_proportion": (0.0, 0.8), "flat_share": (None, 6688 / 6700)},
    36: {"path_depth": (3.0, 11.0), "intermediate_proportion": (0.0, 0.8), "flat_share": (None, 1.0)},
}
"""The paper's values at the beginning and at the end of its runs, by group size; about, where read off a figure."""
PAPER_STEPS = {6: 1_675, 36: 275}  # of those runs
PAPER_GAIN = 1.1  # the paper's mean validation accuracy over GRPO's: "more than 10 % higher"


def overlap(frame: pd.DataFrame) -> Figure | None:
    """Path depth, intermediate proportion and share of non-flat trees over training, as in the paper's figure."""
    rows = frame[(frame["experiment"] == "overlap") & frame["step"].notna()]
    if rows.empty:
        return None
    figure, axes = panels(1, 3, height=1.15, sharex=True)
    titles = {
        "path_depth": "path depth",
        "intermediate_proportion": "intermediate proportion",
        "flat_share": "share of trees that are not flat",
    }
    first, last = float(rows["step"].min()), float(rows["step"].max())
    sizes = sorted(rows["group_size"].unique())
    for axis, metric in zip(axes[0], titles, strict=True):
        for place, size in enumerate(sizes):
            style = series(place, f"G = {size:g}")
            own = rows[(rows["metric"] == metric) & (rows["group_size"] == size)]
            curve = own.pivot(index="step", columns="seed", values="value")
            curve = 1 - curve if metric == "flat_share" else curve
            done = (curve.index.to_numpy(dtype=float) - first) / max(last - first, 1.0)
            axis.plot(done, curve, color=style.color, linestyle=style.line, alpha=0.35, linewidth=0.6)
            axis.plot(done, curve.mean(axis=1), color=style.color, linestyle=style.line, label=style.label)
            # Side by side in the margins, so that equal values of the paper do not cover each other.
            away = 0.04 + 0.06 * place
            for x, y in zip((-away, 1 + away), PAPER_OVERLAP.get(int(size), {}).get(metric, ()), strict=False):
                if y is not None:
                    paper_mark(axis, x, y, f"paper, G = {size:g}", style.color)
        for low, high in ((-0.14, 0.0), (1.0, 1.14)):
            axis.axvspan(low, high, color="#f0f0f0", linewidth=0, zorder=0)
        axis.set_xlim(-0.14, 1.14)
        axis.set_ylim(0, None if metric == "path_depth" else 1.06)
    axes[0, -1].set_xticks([0, 0.5, 1], ["start", "half", "end"])
    axes[0, -1].set_xlabel("share of the run that is done")
    titled(axes[0], *titles.values())
    axes[0, 0].legend()
    steps = ", ".join(f"{PAPER_STEPS[int(size)]:,} for G = {size:g}" for size in sizes if int(size) in PAPER_STEPS)
    return caption(
        figure,
        "Shared prefixes during training, SmolLM2-135M on addition: mean path depth, intermediate "
        "proportion, and share "
        f"of groups whose tree is not flat, over a run of {last - first + 1:g} steps.",
        "Diamonds in the grey margins: where the runs of the paper's overlap figure begin and end (Qwen-1.5B; steps: "
        f"{steps}); about, as read off the figure.",
        f"{runs(rows.groupby('group_size')['seed'].nunique())} a group size: thin lines; thick: their mean; no "
        "interval.",
    )


def training(frame: pd.DataFrame) -> Figure | None:
    """Validation accuracy over steps, seeds thin, means with 95 % intervals; its mean over the run; entropy."""
    rows = frame[frame["experiment"] == "training"]
    curves = rows[rows["metric"] == "validation_accuracy"]
    if curves.empty:
        return None
    figure, axes = panels(1, 3, height=1.25)
    methods = [method for method in ("grpo", "lambda-grpo") if method in set(curves["method"])]
    for position, method in enumerate(methods):
        style = look(method)
        for axis, metric, limits in (
            (axes[0, 0], "validation_accuracy", PROBABILITY),
            (axes[0, 2], "entropy", NOT_NEGATIVE),
        ):
            own = rows[(rows["metric"] == metric) & (rows["method"] == method)]
            own = own.pivot(index="step", columns="seed", values="value")
            if own.empty:
                continue
            if metric == "validation_accuracy":
                axis.plot(own.index, own, color=style.color, linestyle=style.line, alpha=0.3, linewidth=0.5)
            band = mean_interval(own.to_numpy())
            line_with_interval(axis, own.index, band, style.label, style.color, style.line, limits=limits)
        means = rows[(rows["metric"] == "mean_accuracy") & (rows["method"] == method)]["value"].to_numpy()
        jitter = np.linspace(-0.08, 0.08, len(means))
        axes[0, 1].plot(position + jitter, means, style.marker, color=style.color, alpha=0.5)
        points_with_interval(
            axes[0, 1], [position + 0.2], [mean_interval(means)], "", style.color, style.marker, PROBABILITY
        )
        if method == "grpo" and "lambda-grpo" in methods:
            paper_mark(axes[0, 1], 0.7, PAPER_GAIN * means.mean(), "paper: 10 % above GRPO's mean")
    titled(axes[0], "accuracy on held-out sums", "accuracy, mean over the run", "entropy per token (nats)")
    axes[0, 1].set_xticks(range(len(methods)), [look(method).label for method in methods])
    axes[0, 1].set_xlim(-0.5, len(methods) - 0.5)
    for axis in axes[0]:
        axis.set_ylim(bottom=0)
    for axis in axes[0, [0, 2]]:
        axis.set_xlabel("step")
    axes[0, 0].legend()
    axes[0, 1].legend()
    return caption(
        figure,
        "SmolLM2-135M trained on addition by GRPO and λ-GRPO: (a) accuracy on held-out sums, (b) its mean over the "
        "run, one point a seed, (c) entropy.",
        "The paper (Qwen-1.5B on OpenRS) reports a mean validation accuracy more than 10 % above GRPO's: diamond.",
        f"{runs(curves.groupby('method')['seed'].nunique())} a method: thin lines; bands and bars: {MEAN_INTERVAL}.",
    )


def theorem(frame: pd.DataFrame) -> Figure | None:
    """Largest relative error of every check beside the controls that must fail, on one logarithmic scale."""
    rows = frame[frame["experiment"] == "theorem"]
    if rows.empty:
        return None
    names = {
        "value_error": "L_PRM = L_GRPO, value",
        "gradient_error": "L_PRM = L_GRPO, gradient",
        "set_contribution_error": "GRPO: a set counts |λ| times",
        "set_contribution_error_lambda": "λ-GRPO: a set counts once",
        "two_updates_unclipped": "second update, no clip",
        "control_two_updates": "control: second, clipped",
        "control_sequence_norm": "control: by sequence",
    }
    figure, axes = panels(1, 1, height=2.1)
    axis = axes[0, 0]
    floor = np.finfo(float).eps / 10
    sources = {"random": "random groups, recurrent policy", "rollouts": "completions of a language model"}
    for place, (source, label) in enumerate(sources.items()):
        own = rows[rows["source"] == source]
        points = [(v, i) for i, name in enumerate(names) for v in own[own["metric"] == name]["value"]]
        if points:
            values, places = zip(*points, strict=True)
            style = series(place, label)
            axis.plot(np.maximum(values, floor), places, style.marker, color=style.color, alpha=0.7, label=label)
    axis.set_xscale("log")
    axis.set_yticks(range(len(names)), names.values())
    axis.invert_yaxis()
    axis.axvline(1e-10, color="#555555", linestyle=":", linewidth=1, label="tolerance: controls must exceed it")
    axis.set_xlabel("largest relative error over groups")
    axis.legend()
    groups = rows[rows["metric"] == "groups"]["value"]
    return caption(
        figure,
        "Largest relative error (float64) of the paper's equalities over all groups of a seed, and of "
        "two controls that "
        "must fail.",
        "The paper's theorem says that both objectives are equal, in value and gradient: an error of 0.",
        f"{runs(rows.groupby('source')['seed'].nunique())} of each kind, one point each, {groups.sum():,.0f} groups in "
        "all; no interval: a point is a largest error.",
    )


def table2_intervals(frame: pd.DataFrame) -> Figure | None:
    """The 20 printed differences λ-GRPO minus GRPO with the 95 % intervals that the printed standard errors imply."""
    if frame[frame["experiment"] == "table2-intervals"].empty:
        return None
    by_run: dict[tuple[str, float | None], list] = {}
    for pair in pairs(read_table()):
        by_run.setdefault((pair.ours.model, pair.ours.beta), []).append(pair)
    figure, axes = panels(len(by_run), 1, height=0.95, sharex=True)
    for axis, chosen in zip(axes[:, 0], by_run.values(), strict=True):
        for place, pair in enumerate(chosen):
            reach = Z95 * float(np.hypot(pair.ours.interval, pair.grpo.interval)) / DIGIT
            difference = pair.difference / DIGIT
            estimate = Estimate(difference, difference - reach, difference + reach, 1)
            points_with_interval(axis, [place], [estimate], "", look("lambda-grpo").color, "", across=True)
            paper_mark(axis, difference, place, "paper's difference")
        axis.set_yticks(range(len(chosen)), [pair.ours.benchmark for pair in chosen])
        axis.set_ylim(len(chosen) - 0.5, -0.5)
        zero_line(axis, across=True)
    titled(axes, *(f"{model.split('/')[-1].removeprefix('DeepSeek-R1-')}, β = {beta:g}" for model, beta in by_run))
    axes[-1, 0].set_xlabel("accuracy, λ-GRPO minus GRPO")
    axes[0, 0].legend()
    return caption(
        figure,
        "The printed accuracies of Table 2, λ-GRPO minus GRPO, on five benchmarks for each of four pairs of runs.",
        f"All points are the paper's (Table 2): λ-GRPO is above GRPO in "
        f"{sum(pair.difference > 0 for chosen in by_run.values() for pair in chosen)} of 20 cells.",
        "n = 1 training run a model and method; bars: 95 % intervals from the printed standard errors, which cover the "
        "benchmark's problems and not training.",
    )


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
    "table2": table2,
    "table2_intervals": table2_intervals,
}
