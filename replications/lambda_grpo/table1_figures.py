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

from grpo_replications.replications.lambda_grpo.arm_figures import OPTIMIZERS, row_label
from grpo_replications.replications.lambda_grpo.table1 import PAPER_SEEDS, paper_table
from grpo_replications.shared.harness.captions import MEAN_INTERVAL, NO_NUMBER, runs
from grpo_replications.shared.harness.figure_layout import SMALL_TYPE
from grpo_replications.shared.harness.plots import (
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
from grpo_replications.shared.statistics.estimates import Estimate, k_seed_mean_distribution, mean_interval

CELL = ["optimizer", "n", "r_neg", "lr"]
METHODS = ("grpo", "lambda-grpo")
DRAWS = 1_000
MARGIN = 0.02  # smallest difference of target frequencies that matters, as in the checks


def table1_map(frame: pd.DataFrame) -> Figure | None:
    """λ-GRPO minus GRPO in mean target frequency for each row of Table 1, optimizer and learning rate.

    Above as a map (hatched: the 95 % interval of the paired difference contains 0, or the difference is too small to
    matter), below as lines with that interval.
    """
    seeds = _paired_seeds(frame, METHODS)
    if seeds is None:
        return None
    differences = _mean_estimates(seeds["lambda-grpo"] - seeds["grpo"])
    optimizers = _optimizers(differences)
    reach = float(differences["value"].abs().max())
    figure, axes = panels(2, len(optimizers), height=1.35)
    for column, optimizer in enumerate(optimizers):
        cells = differences.loc[optimizer]
        _map_of_cells(axes[0, column], cells, reach)
        for place, (n, r_neg) in enumerate(_table_rows(cells)):
            line, style = cells.loc[(n, r_neg)], series(place)
            axis = axes[1, column]
            line_with_interval(
                axis, line.index, _columns(line), row_label(n, r_neg), style.color, style.line, style.marker
            )
        for axis in axes[:, column]:
            _rate_axis(axis, cells.index.unique("lr"))
        zero_line(axes[1, column])
        axes[1, column].set_ylim(-1.1 * reach, 1.1 * reach)
        axes[1, column].set_ylabel("difference")
    titled(
        axes,
        *(f"tabular policy, {OPTIMIZERS[name]}: map of differences" for name in optimizers),
        *(f"tabular policy, {OPTIMIZERS[name]}: the same as lines" for name in optimizers),
    )
    axes[1, 0].legend()
    printed = paper_table()
    gaps = [value - printed[n, r, "grpo"] for (n, r, method), value in printed.items() if method == "lambda-grpo"]
    return caption(
        figure,
        "Target frequency of λ-GRPO minus GRPO (tabular policy, no language model) for each row of Table 1 and each "
        f"learning rate. Hatched: the interval contains 0, or the difference is below {MARGIN:g}.",
        f"The paper's Table 1 (GPT-2-small at 1e−5) has differences from {min(gaps):+.2f} to {max(gaps):+.2f}; its "
        "learning rate lies on another scale than a table's.",
        f"{_seeds(seeds)} a cell, paired; bands: {MEAN_INTERVAL}.",
    )


def table1_paper(frame: pd.DataFrame) -> Figure | None:
    """The paper's two numbers of each row beside our five-seed means, at every learning rate and at each method's best.

    A point is our mean over all seeds, its bar the central 95 % of the means of five of them: what a study of the
    paper's size would find. Dashed lines that end in diamonds of the methods' colours are the paper's numbers.
    """
    seeds = _paired_seeds(frame, METHODS)
    if seeds is None:
        return None
    best = _best_seeds(frame)
    rows = _table_rows(seeds)
    figure, axes = panels(len(rows), 1, height=0.85, sharex=True, sharey=True)
    for axis, row in zip(axes[:, 0], rows, strict=True):
        _paper_panel(axis, seeds, best, *row)
        axis.set_title(row_label(*row), loc="left")
    axes[0, 0].set_ylim(-0.05, 1.05)
    axes[0, 0].set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    for axis in axes[:-1, 0]:
        axis.tick_params(labelbottom=False)
    figure.supylabel("target frequency")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center")
    printed = paper_table()
    return caption(
        figure,
        "Table 1 with a tabular policy (no language model): mean target frequency at every learning rate, and at the "
        "rate that is best for each method on other seeds.",
        "Dashed lines with diamonds: the paper's two numbers of the row (Table 1, GPT-2-small, "
        f"{PAPER_SEEDS} seeds), from {min(printed.values()):.2f} to {max(printed.values()):.2f}.",
        f"{_seeds(seeds)} a point; bars: range of five-seed means (central 95 % of the means of {PAPER_SEEDS} of our "
        "seeds), what a study of the paper's size would report.",
    )


def table1_matched(frame: pd.DataFrame) -> Figure | None:
    """λ-GRPO minus GRPO at one learning rate, as it is and with λ-GRPO's step rescaled to GRPO's length.

    Where the second line leaves zero, the direction of λ-GRPO's update matters; the gap between the lines is what the
    length of its steps does. Under Adam, gradients are rescaled before Adam's own scaling.
    """
    seeds = _paired_seeds(frame, [*METHODS, "lambda-grpo-matched"])
    if seeds is None:
        return None
    lines = {
        method: _mean_estimates(seeds[method] - seeds["grpo"]) for method in ("lambda-grpo", "lambda-grpo-matched")
    }
    optimizers, rows = _optimizers(seeds), _table_rows(seeds)
    figure, axes = panels(len(optimizers), len(rows), width=1.1, height=1.0, sharey=True)
    for i, optimizer in enumerate(optimizers):
        for axis, (n, r_neg) in zip(axes[i], rows, strict=True):
            for method, estimates in lines.items():
                line, style = estimates.loc[(optimizer, n, r_neg)], look(method)
                line_with_interval(axis, line.index, _columns(line), style.label, style.color, style.line)
            zero_line(axis)
            _rate_axis(axis, line.index)
            axis.set_xlabel("")
            axis.set_title(row_label(n, r_neg), loc="left")
            if axis.get_subplotspec().is_first_col():
                axis.set_ylabel(f"{OPTIMIZERS[optimizer]}: difference")
    figure.supxlabel("learning rate")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center")
    return caption(
        figure,
        "Target frequency minus GRPO's at the same learning rate (tabular policy, no language model): λ-GRPO as it is, "
        "and with its step rescaled to the length of GRPO's. Where the second line leaves zero, the direction of the "
        "update matters.",
        f"{NO_NUMBER} Its Table 1 compares the methods at one rate.",
        f"{_seeds(seeds)} a point, paired; bands: {MEAN_INTERVAL}.",
    )


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


def _seeds(values: pd.DataFrame) -> str:
    return runs(values.groupby(level=CELL).size())


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
    x = np.arange(len(places)) + 0.8 * np.cumsum([0, *(a != b for a, b in pairwise(names))])  # a gap between optimizers
    for method, shift in (("grpo", -0.16), ("lambda-grpo", 0.16)):
        style = look(method)
        estimates = [
            _five_seed_estimate(
                (best.loc[(o, n, r_neg, method)] if lr is None else seeds.loc[(o, n, r_neg, lr), method]).to_numpy()
            )
            for o, _, lr in places
        ]
        points_with_interval(axes, x + shift, estimates, style.label, style.color, style.marker)
        if (value := paper.get((n, r_neg, method))) is not None:
            axes.axhline(value, color=style.color, linestyle="--", linewidth=0.8)
            paper_mark(axes, x[-1] + 1.0, value, f"paper, {style.label}", style.color)
    axes.set_xticks(x, [label for _, label, _ in places], rotation=90)
    axes.grid(axis="x", visible=False)
    words = []
    for optimizer in dict.fromkeys(names):
        first = names.index(optimizer)
        words.append(OPTIMIZERS[optimizer])
        if first:
            axes.axvline((x[first - 1] + x[first]) / 2, color="#bbbbbb", linewidth=0.8)
    axes.set_xlabel(f"learning rate ({', then '.join(words)})" if axes.get_subplotspec().is_last_row() else "")


def _map_of_cells(axes: Axes, cells: pd.DataFrame, reach: float) -> None:
    """Heat map of differences, rows of Table 1 by learning rate to scale; hatched where undecided or below `MARGIN`."""
    rows, rates = _table_rows(cells), list(cells.index.unique("lr"))
    grid = cells.reindex(
        pd.MultiIndex.from_tuples([(*row, lr) for row in rows for lr in rates], names=cells.index.names)
    )
    values = grid["value"].to_numpy(dtype=float).reshape(len(rows), len(rates))
    edges = _edges_between(rates)
    colours = axes.pcolormesh(edges, np.arange(len(rows) + 1) - 0.5, values, cmap="PuOr", vmin=-reach, vmax=reach)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.grid(False)
    axes.set_yticks(range(len(rows)), [row_label(*row) for row in rows])
    contains_zero = (grid["low"] <= 0) & (grid["high"] >= 0)
    undecided = (contains_zero | (grid["value"].abs() < MARGIN)).to_numpy().reshape(values.shape)
    for (row, column), value in np.ndenumerate(values):
        if not np.isfinite(value):
            continue
        if undecided[row, column]:
            corner, width = (edges[column], row - 0.5), edges[column + 1] - edges[column]
            axes.add_patch(Rectangle(corner, width, 1, fill=False, hatch="////", edgecolor="#c4c4c4", linewidth=0))
        red, green, blue, _ = colours.cmap(colours.norm(value))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        words = f"{value:.2f}".replace("0.", ".").replace("-.00", ".00").replace("-", "−")
        place = {"ha": "center", "va": "center", "fontsize": SMALL_TYPE, "color": "white" if dark else "black"}
        axes.text(float(np.sqrt(edges[column] * edges[column + 1])), row, words, **place)
    if undecided.any():
        mark = Patch(fill=False, hatch="////", edgecolor="#aaaaaa", label=f"interval contains 0, or below {MARGIN:g}")
        axes.legend(handles=[mark])


def _edges_between(rates: Sequence[float]) -> np.ndarray:
    """Edges of cells on a logarithmic axis, halfway between neighbouring rates `(n,)`: `(n + 1,)`."""
    logs = np.log(np.asarray(rates, dtype=float))
    inner = (logs[1:] + logs[:-1]) / 2
    first, last = (inner[0], inner[-1]) if len(inner) else (logs[0] + 0.5, logs[0] - 0.5)
    return np.exp([2 * logs[0] - first, *inner, 2 * logs[-1] - last])


def _columns(estimates: pd.DataFrame) -> Estimate:
    value, low, high = (estimates[name].to_numpy(dtype=float) for name in ("value", "low", "high"))
    return Estimate(value, low, high, int(estimates["n"].min()))


def _optimizers(cells: pd.DataFrame) -> list[str]:
    present = set(cells.index.get_level_values("optimizer"))
    return [optimizer for optimizer in OPTIMIZERS if optimizer in present]


def _table_rows(cells: pd.DataFrame) -> list[tuple[int, float]]:
    """(n, r_neg) in the order of the paper's Table 1."""
    pairs = set(zip(cells.index.get_level_values("n"), cells.index.get_level_values("r_neg")))
    return sorted(((int(n), float(r_neg)) for n, r_neg in pairs), key=lambda row: (row[0], -row[1]))


def _rate_axis(axes: Axes, rates: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    decades = [rate for rate in rates if np.isclose(np.log10(rate) % 1, 0)]
    ticks = decades if len(decades) > 1 else [min(rates), max(rates)]
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
    axes.minorticks_off()
