"""Figures of Table 1 with a tabular policy: measurements -> matplotlib figures, nothing is run again.

Every function takes the measurements frame (columns experiment, n, r_neg, method, optimizer, lr, seed, metric, value)
and returns None where the frame lacks what the figure shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from grpo_replications.replications.lambda_grpo.table1 import PAPER_SEEDS, paper_table
from grpo_replications.shared.harness.plots import COLORS, heatmap, line_with_interval, panels, points_with_interval
from grpo_replications.shared.statistics.estimates import Estimate, k_seed_mean_distribution, mean_interval

CELL = ["optimizer", "n", "r_neg", "lr"]
METHOD_COLORS = {"grpo": COLORS[0], "lambda-grpo": COLORS[1]}
METHOD_LABELS = {"grpo": "GRPO", "lambda-grpo": "λ-GRPO"}
OPTIMIZER_LABELS = {"sgd": "SGD", "adam": "Adam"}
DRAWS = 1_000
MARGIN = 0.02  # smallest difference of target frequencies that matters, as in the checks


def table1_map(frame: pd.DataFrame) -> Figure | None:
    """λ-GRPO minus GRPO in mean target frequency for each row of Table 1, optimizer and learning rate.

    Above as a map (hatched: the 95 % interval of the paired difference contains 0, or the difference is too small to
    matter), below as lines with that interval.
    """
    seeds = _paired_seeds(frame, ["grpo", "lambda-grpo"])
    if seeds is None:
        return None
    differences = _mean_estimates(seeds["lambda-grpo"] - seeds["grpo"])
    optimizers = _optimizers(differences)
    reach = float(differences["value"].abs().max())
    figure, axes = panels(2, len(optimizers), width=5.2, height=2.7)
    for column, optimizer in enumerate(optimizers):
        cells = differences.loc[optimizer]
        _map_of_cells(axes[0, column], cells, reach)
        axes[0, column].set_title(OPTIMIZER_LABELS[optimizer], loc="left")
        axes[0, column].set_xlabel("learning rate (not to scale)")
        for color, (n, r_neg) in zip(COLORS, _table_rows(cells)):
            line = cells.loc[(n, r_neg)]
            line_with_interval(axes[1, column], line.index, _columns(line), _row_label(n, r_neg), color)
        _rate_axis(axes[1, column], cells.index.unique("lr"))
        axes[1, column].axhline(0.0, color="black", linewidth=0.8)
        axes[1, column].set_ylim(-1.1 * reach, 1.1 * reach)
    axes[1, 0].set_ylabel("target frequency,\nλ-GRPO minus GRPO")
    axes[1, -1].legend(ncols=2, loc="lower right")
    return figure


def table1_paper(frame: pd.DataFrame) -> Figure | None:
    """The paper's two numbers of each row beside our five-seed means, at every learning rate and at each method's best.

    A point is our mean over all seeds, its bar the central 95 % of the means of five of them: what a study of the
    paper's size would find. Dashed lines in the methods' colors are the paper's numbers.
    """
    seeds = _paired_seeds(frame, ["grpo", "lambda-grpo"])
    if seeds is None:
        return None
    best = _best_seeds(frame)
    rows = _table_rows(seeds)
    prefixes = sorted({n for n, _ in rows})
    columns = max(sum(n == prefix for n, _ in rows) for prefix in prefixes)
    figure, axes = panels(len(prefixes), columns, width=5.6, height=2.8, sharey=True)
    for axis in axes.flat:
        axis.set_visible(False)
    for i, prefix in enumerate(prefixes):
        for j, (n, r_neg) in enumerate(row for row in rows if row[0] == prefix):
            axes[i, j].set_visible(True)
            _paper_panel(axes[i, j], seeds, best, n, r_neg)
        axes[i, 0].set_ylabel("target frequency")
    axes[0, 0].set_ylim(-0.05, 1.05)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=4, loc="outside upper center")
    return figure


def table1_matched(frame: pd.DataFrame) -> Figure | None:
    """λ-GRPO minus GRPO at one learning rate, as it is and with λ-GRPO's step rescaled to GRPO's length.

    Where the second line leaves zero, the direction of λ-GRPO's update matters; the gap between the lines is what the
    length of its steps does. Under Adam, gradients are rescaled before Adam's own scaling.
    """
    seeds = _paired_seeds(frame, ["grpo", "lambda-grpo", "lambda-grpo-matched"])
    if seeds is None:
        return None
    lines = [
        (_mean_estimates(seeds[method] - seeds["grpo"]), color, label)
        for method, color, label in (
            ("lambda-grpo", METHOD_COLORS["lambda-grpo"], "λ-GRPO"),
            ("lambda-grpo-matched", COLORS[2], "λ-GRPO at GRPO's step size"),
        )
    ]
    optimizers, rows = _optimizers(seeds), _table_rows(seeds)
    figure, axes = panels(len(optimizers), len(rows), width=2.2, height=2.3, sharey=True)
    for i, optimizer in enumerate(optimizers):
        for j, (n, r_neg) in enumerate(rows):
            for estimates, color, label in lines:
                line = estimates.loc[(optimizer, n, r_neg)]
                line_with_interval(axes[i, j], line.index, _columns(line), label, color)
            axes[i, j].axhline(0.0, color="black", linewidth=0.8)
            _rate_axis(axes[i, j], line.index)
            axes[i, j].set_title(f"{OPTIMIZER_LABELS[optimizer]}, {_row_label(n, r_neg)}")
        axes[i, 0].set_ylabel("target frequency\nminus GRPO's")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=2, loc="outside upper center")
    return figure


def _paired_seeds(frame: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame | None:
    """Target frequencies with a row per cell and seed and a column per method, where all methods were run."""
    if not {*CELL, "method"} <= set(frame.columns):
        return None
    chosen = frame[(frame["experiment"] == "table1-tabular") & (frame["metric"] == "target_frequency")]
    wide = chosen.pivot(index=[*CELL, "seed"], columns="method", values="value")
    if not set(methods) <= set(wide.columns):
        return None
    wide = wide[list(methods)].dropna().sort_index()
    return None if wide.empty else wide


def _best_seeds(frame: pd.DataFrame) -> pd.Series:
    """Target frequencies of table1-best by (optimizer, n, r_neg, method, seed); empty where it was not run."""
    chosen = frame[(frame["experiment"] == "table1-best") & (frame["metric"] == "target_frequency")]
    return chosen.set_index(["optimizer", "n", "r_neg", "method", "seed"])["value"].sort_index()


def _mean_estimates(values: pd.Series) -> pd.DataFrame:
    """Mean over seeds with its 95 % interval for each cell: columns value, low, high, n."""
    cells = values.groupby(level=values.index.names[:-1])
    columns = ["value", "low", "high", "n"]
    return pd.DataFrame(
        {cell: mean_interval(group.to_numpy(), draws=DRAWS)[: len(columns)] for cell, group in cells}, index=columns
    ).T.rename_axis(values.index.names[:-1])


def _five_seed_estimate(values: np.ndarray) -> Estimate:
    """Our mean with the central 95 % of five-seed means in place of an interval for the mean."""
    low, high = np.quantile(k_seed_mean_distribution(values, PAPER_SEEDS, DRAWS), [0.025, 0.975])
    return Estimate(float(values.mean()), float(low), float(high), len(values))


def _paper_panel(axes: Axes, seeds: pd.DataFrame, best: pd.Series, n: int, r_neg: float) -> None:
    """One row of Table 1: the paper's numbers as lines, our five-seed means at rates and at each method's best."""
    paper = paper_table()
    places: list[tuple[str, str, float | None]] = []
    for optimizer in _optimizers(seeds):
        rates = seeds.loc[(optimizer, n, r_neg)].index.unique("lr")
        places += [(optimizer, f"{rate:g}".removeprefix("0"), rate) for rate in rates]
        if (optimizer, n, r_neg) in best.index.droplevel(["method", "seed"]):
            places.append((optimizer, "best", None))
    names = [optimizer for optimizer, _, _ in places]
    x = np.arange(len(places)) + 0.6 * np.cumsum([0, *(a != b for a, b in pairwise(names))])  # a gap between optimizers
    for method, shift in (("grpo", -0.15), ("lambda-grpo", 0.15)):
        estimates = [
            _five_seed_estimate(
                (best.loc[(o, n, r_neg, method)] if lr is None else seeds.loc[(o, n, r_neg, lr), method]).to_numpy()
            )
            for o, _, lr in places
        ]
        points_with_interval(
            axes, x + shift, estimates, f"{METHOD_LABELS[method]}, range of our five-seed means", METHOD_COLORS[method]
        )
        if (n, r_neg, method) in paper:
            color, label = METHOD_COLORS[method], f"{METHOD_LABELS[method]}, paper"
            axes.axhline(paper[n, r_neg, method], color=color, linestyle="--", linewidth=1.2, label=label)
    axes.set_xticks(x, [label for _, label, _ in places], fontsize=6)
    axes.grid(axis="x", visible=False)
    for optimizer in dict.fromkeys(names):
        first, last = names.index(optimizer), len(names) - 1 - names[::-1].index(optimizer)
        axes.text(
            (x[first] + x[last]) / 2,
            -0.17,
            f"{OPTIMIZER_LABELS[optimizer]}, learning rate",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=8,
        )
        if first:
            axes.axvline((x[first - 1] + x[first]) / 2, color="#bbbbbb", linewidth=0.8)
    axes.set_title(_row_label(n, r_neg))


def _map_of_cells(axes: Axes, cells: pd.DataFrame, reach: float) -> None:
    """Heat map of differences, rows of Table 1 by learning rate; hatched where undecided or below `MARGIN`."""
    rows, rates = _table_rows(cells), list(cells.index.unique("lr"))
    grid = cells.reindex(
        pd.MultiIndex.from_tuples([(*row, lr) for row in rows for lr in rates], names=cells.index.names)
    )
    values = grid["value"].to_numpy(dtype=float).reshape(len(rows), len(rates))
    labels = [_row_label(*row) for row in rows]
    heatmap(axes, values, labels, [f"{lr:g}" for lr in rates], centre=0.0, limits=(-reach, reach), text="{:+.2f}")
    contains_zero = (grid["low"] <= 0) & (grid["high"] >= 0)
    undecided = (contains_zero | (grid["value"].abs() < MARGIN)).to_numpy().reshape(values.shape)
    for row, column in np.argwhere(undecided):
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch="////", edgecolor="#aaaaaa", linewidth=0))
    if undecided.any():
        mark = Patch(
            fill=False, hatch="////", edgecolor="#aaaaaa", label=f"95 % interval contains 0, or below {MARGIN:g}"
        )
        axes.legend(handles=[mark], loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)


def _columns(estimates: pd.DataFrame) -> Estimate:
    value, low, high = (estimates[name].to_numpy(dtype=float) for name in ("value", "low", "high"))
    return Estimate(value, low, high, int(estimates["n"].min()))


def _optimizers(cells: pd.DataFrame) -> list[str]:
    present = set(cells.index.get_level_values("optimizer"))
    return [optimizer for optimizer in OPTIMIZER_LABELS if optimizer in present]


def _table_rows(cells: pd.DataFrame) -> list[tuple[int, float]]:
    """(n, r_neg) in the order of the paper's Table 1."""
    pairs = set(zip(cells.index.get_level_values("n"), cells.index.get_level_values("r_neg")))
    return sorted(((int(n), float(r_neg)) for n, r_neg in pairs), key=lambda row: (row[0], -row[1]))


def _row_label(n: int, r_neg: float) -> str:
    return f"n={n}, r_neg={r_neg:g}".replace("-", "−")


def _rate_axis(axes: Axes, rates: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    decades = [rate for rate in rates if np.isclose(np.log10(rate) % 1, 0)]
    ticks = decades if len(decades) > 1 else [min(rates), max(rates)]
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
    axes.minorticks_off()
