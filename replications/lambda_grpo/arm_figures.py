"""Figures that compare lambda-GRPO with GRPO and with weights by depth alone: measurements -> matplotlib figures.

Every function takes the measurements frame and returns None where the frame lacks what the figure shows. Bands and bars
are 95 % intervals over seeds: of means by `mean_interval`, of shares of runs by Wilson.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.replications.lambda_grpo.table1 import paper_table
from grpo_replications.shared.harness.captions import MEAN_INTERVAL, NO_NUMBER, runs
from grpo_replications.shared.harness.figure_layout import plain_number
from grpo_replications.shared.harness.plots import (
    NOT_NEGATIVE,
    PROBABILITY,
    caption,
    line_with_interval,
    look,
    panels,
    paper_line,
    paper_mark,
    points_with_interval,
    titled,
    zero_line,
)
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval
from grpo_replications.shared.statistics.proportions import wilson_interval
from grpo_replications.shared.statistics.times import ratio_of_times, restricted_mean_time

ARMS = ("grpo", "lambda-grpo", "mean-depth", "halving-depth")
OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}


def table1_lm(frame: pd.DataFrame) -> Figure | None:
    """Table 1 with a small transformer: target frequency and share of successful runs over the learning rate."""
    rows = frame[frame["experiment"] == "many-table1"]
    cells = rows_of_table1(rows)
    if not cells or rows["lr"].nunique() < 2:
        return None
    figure, axes = _grid_of_rows(cells)
    printed, right = paper_table(), 2.0 * float(rows["lr"].max())
    for column, cell in enumerate(cells):
        own = _of_row(rows, cell)
        _lines_over_rates(axes[0, column], own, "target_frequency", mean_interval)
        _lines_over_rates(axes[1, column], own, "success", _share_of_runs)
        for method in ("grpo", "lambda-grpo"):
            if (value := printed.get((*cell, method))) is not None:
                words = f"paper, {look(method).label}"
                paper_mark(axes[0, column], right, value, words, look(method).color)
    _label_rows(axes, "target frequency", "runs above .5", "learning rate")
    return caption(
        _with_legend(figure, axes[0, 0]),
        "Table 1 with a small transformer under Adam, over the learning rate: mean target frequency (upper panels) and "
        "share of runs that end above one half (lower panels). λ-GRPO is shown beside two controls that know the depth "
        "of a token and no process sets.",
        "The paper's Table 1 (GPT-2-small at a learning rate of 1e−5, five seeds) prints target frequencies only; its "
        f"two numbers of each row are diamonds at the right edge, from {min(printed.values()):.2f} to "
        f"{max(printed.values()):.2f}.",
        f"{_seeds(rows)} a point; bands: {MEAN_INTERVAL}, of shares by Wilson.",
    )


def process_sets(frame: pd.DataFrame) -> Figure | None:
    """Where process sets are no function of depth: target frequency over the learning rate, from a leaning start."""
    rows = frame[frame["experiment"] == "many-table1-leaning"]
    if rows.empty or rows["lr"].nunique() < 2:
        return None
    cells = sorted(int(n) for n in rows["n"].unique())
    figure, axes = panels(1, len(cells), height=1.5, sharey=True)
    for axis, n in zip(axes[0], cells, strict=True):
        _lines_over_rates(axis, rows[rows["n"] == n], "target_frequency", mean_interval)
        axis.set_ylabel("target frequency")
        axis.set_ylim(bottom=0)
    axes[0, -1].set_xlabel("learning rate")
    titled(axes[0], *(f"P(L) = .8 at the start, target holds {n} R" for n in cells))
    return caption(
        _with_legend(figure, axes[0, 0]),
        "A tree on which process sets do not follow depth: the small transformer starts leaning to L, and the target "
        "needs one or two R. Target frequency over the learning rate (Adam).",
        NO_NUMBER,
        f"{_seeds(rows)} a point; bands: {MEAN_INTERVAL}.",
    )


def prefix(frame: pd.DataFrame) -> Figure | None:
    """The flaw at work: probability of the target's prefix and of the target over training, a small transformer.

    At the middle one of the learning rates measured.
    """
    rows = frame[(frame["experiment"] == "many-table1") & frame["step"].notna()]
    cells = rows_of_table1(rows)
    if not cells:
        return None
    rates = sorted(rows["lr"].unique())
    rate = rates[len(rates) // 2]
    rows = rows[rows["lr"] == rate]
    figure, axes = _grid_of_rows(cells)
    for i, metric in enumerate(("prefix_probability", "target_probability")):
        for axis, cell in zip(axes[i], cells, strict=True):
            own = _of_row(rows, cell)
            for method, curve in _by_arm(own[own["metric"] == metric], "step"):
                _line(axis, curve.index, mean_interval(curve.to_numpy()), method)
    _label_rows(axes, "P(prefix)", "P(target)", "step")
    return caption(
        _with_legend(figure, axes[0, 0]),
        f"The flaw at work, small transformer under Adam at a learning rate of {rate:g}: probability of the target's "
        "first n tokens (first half) and of the whole target (second half) over training, for the rows of Table 1.",
        f"{NO_NUMBER} Its section on the flaw says that GRPO pushes a popular prefix down as often as it is shared.",
        f"{_seeds(rows)} a line; bands: {MEAN_INTERVAL}.",
    )


def speed(frame: pd.DataFrame) -> Figure | None:
    """Steps to the target on a tabular policy, each arm at its own fastest rate, and the ratio to GRPO's steps."""
    rows = frame[(frame["experiment"] == "tabular-speed") & (frame["metric"] == "steps_to_threshold")]
    cells = rows_of_table1(rows)
    if not cells:
        return None
    optimizers = [name for name in OPTIMIZERS if name in set(rows["optimizer"])]
    horizon = _horizon(rows)
    figure, axes = panels(2, len(optimizers), height=1.15, sharex=True)
    for column, optimizer in enumerate(optimizers):
        own = rows[rows["optimizer"] == optimizer]
        wide = own.pivot(index=["n", "r_neg", "seed"], columns="method", values="value")
        present = [arm for arm in ARMS if arm in wide]
        for arm, shift in zip(present, _shifts(len(present)), strict=True):
            places = np.arange(len(cells)) + shift
            times = [wide.loc[cell, arm].to_numpy() for cell in cells]
            means = [restricted_mean_time(values, horizon) for values in times]
            _points(axes[0, column], places, means, arm)
            if arm != "grpo":
                ratios = [
                    ratio_of_times(values, wide.loc[cell, "grpo"].to_numpy(), horizon)
                    for cell, values in zip(cells, times, strict=True)
                ]
                # Where every pair of runs is alike the ratio has no interval: a bare point.
                known = [one if np.isfinite(one.high) else one._replace(low=-np.inf) for one in ratios]
                _points(axes[1, column], places, known, arm)
        zero_line(axes[1, column], 1.0)
        paper_line(axes[1, column], 0.5, "paper: under half" if column == 0 else None)
        for i in range(2):
            axes[i, column].set_ylabel(("steps", "ratio")[i])
            axes[i, column].set_xticks(range(len(cells)), [f"n={n}\n{r:g}".replace("-", "−") for n, r in cells])
            axes[i, column].set_ylim(bottom=0)
    titled(
        axes,
        *(f"{OPTIMIZERS[name]}: mean steps until P(target) ≥ .5" for name in optimizers),
        *(f"{OPTIMIZERS[name]}: ratio to GRPO's steps" for name in optimizers),
    )
    axes.flat[-1].set_xlabel("row of Table 1: n, and r_neg below it")
    return caption(
        _with_legend(figure, axes[0, 0], axes[1, 0]),
        "Speed on the tree, tabular policy (no language model), each arm at its own fastest learning rate: mean steps "
        "until the target has a probability of one half, and the ratio to GRPO's steps.",
        "The paper (section on Table 2, language models) reports under half of GRPO's steps to the peak: dashed line.",
        f"{_seeds(rows)} a point, cut off at {horizon:,.0f} steps; bars: 95 % intervals of the restricted mean and of "
        "the ratio over seeds.",
    )


def sums(frame: pd.DataFrame) -> Figure | None:
    """Running sums: mean steps to a solve rate of one half, and solve rate over the run, over the learning rate."""
    rows = frame[frame["experiment"] == "many-sums"]
    if rows.empty or rows["lr"].nunique() < 2:
        return None
    rewards = [name for name in ("right", "trap") if name in set(rows["reward"])]
    titles = {"right": "reward 1 if right, else 0", "trap": "rewards of the synthetic tree"}
    figure, axes = panels(2, len(rewards), height=1.2, sharex=True)
    horizon = _horizon(rows[rows["metric"] == "steps_to_threshold"])
    for column, reward in enumerate(rewards):
        own = rows[rows["reward"] == reward]
        _lines_over_rates(
            axes[0, column], own, "steps_to_threshold", lambda x: restricted_mean_time(x, horizon), NOT_NEGATIVE
        )
        _lines_over_rates(axes[1, column], own, "mean_rate", mean_interval)
        axes[0, column].set_ylim(0, 1.05 * horizon)
        axes[0, column].set_ylabel("steps to one half")
        axes[1, column].set_ylim(bottom=0)
        axes[1, column].set_ylabel("mean solve rate")
    rates = sorted(rows["lr"].unique())
    axes.flat[-1].set_xticks(rates, [plain_number(rate) for rate in rates])
    axes.flat[-1].minorticks_off()
    axes.flat[-1].set_xlabel("learning rate (Adam)")
    titled(axes, *(titles[name] for name in rewards), *(titles[name] for name in rewards))
    return caption(
        _with_legend(figure, axes[0, 0]),
        "Running sums with a small transformer, over the learning rate: mean steps to a solve rate of "
        "one half (above), "
        "and the solve rate averaged over the run (below).",
        "The paper (language models on mathematics) reports under half of GRPO's steps to the peak.",
        f"{_seeds(rows)} a point, cut off at {horizon:,.0f} steps; bands: {MEAN_INTERVAL}.",
    )


def rows_of_table1(rows: pd.DataFrame) -> list[tuple[int, float]]:
    """(n, r_neg) in the order of the paper's Table 1."""
    if rows.empty or "n" not in rows:
        return []
    found = rows[["n", "r_neg"]].dropna().drop_duplicates()
    return sorted(((int(n), float(r)) for n, r in found.itertuples(index=False)), key=lambda row: (row[0], -row[1]))


def row_label(n: int, r_neg: float) -> str:
    """A row of Table 1 in a title."""
    return f"n={n}, r_neg={r_neg:g}".replace("-", "−")


def _grid_of_rows(cells: Sequence[tuple[int, float]]) -> tuple[Figure, np.ndarray]:
    """Two blocks of small panels, one for each row of Table 1."""
    figure, axes = panels(2, len(cells), width=1.1, height=1.0, sharex=True, sharey=True)
    for row in axes:
        for axis, cell in zip(row, cells, strict=True):
            axis.set_title(row_label(*cell), loc="left")
    axes[0, 0].set_ylim(-0.02, 1.02)
    axes[0, 0].set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    return figure, axes


def _label_rows(axes: np.ndarray, above: str, below: str, x: str) -> None:
    """Names of the quantities at the left edge, and of what they are plotted against at the lower one."""
    for row, label in zip(axes, (above, below), strict=True):
        for axis in row:
            if axis.get_subplotspec().is_first_col():
                axis.set_ylabel(label)
            if axis.get_subplotspec().is_last_row():
                axis.set_xlabel(x)


def _of_row(rows: pd.DataFrame, cell: tuple[int, float]) -> pd.DataFrame:
    return rows[(rows["n"] == cell[0]) & (rows["r_neg"] == cell[1])]


def _line(axis: Axes, x: Sequence[float], estimate: Estimate, method: str, limits=PROBABILITY) -> None:
    style = look(method)
    line_with_interval(axis, x, estimate, style.label, style.color, style.line, limits=limits)


def _points(axis: Axes, x: Sequence[float], estimates: Sequence[Estimate], method: str) -> None:
    style = look(method)
    points_with_interval(axis, x, estimates, style.label, style.color, style.marker, NOT_NEGATIVE)


def _lines_over_rates(
    axis: Axes, rows: pd.DataFrame, metric: str, interval: Callable[[np.ndarray], Estimate], limits=PROBABILITY
) -> None:
    for method, curve in _by_arm(rows[(rows["metric"] == metric) & rows["step"].isna()], "lr"):
        estimates = [interval(values) for values in curve.to_numpy()]
        _line(axis, curve.index, _together(estimates), method, limits)
    axis.set_xscale("log")


def _by_arm(rows: pd.DataFrame, index: str) -> Iterable[tuple[str, pd.DataFrame]]:
    """(arm, values with a row per `index` and a column per seed) of every arm that was measured."""
    for method in ARMS:
        own = rows[rows["method"] == method]
        if not own.empty:
            yield method, own.pivot(index=index, columns="seed", values="value").sort_index()


def _seeds(rows: pd.DataFrame) -> str:
    return runs([rows["seed"].nunique()])


def _share_of_runs(values: np.ndarray) -> Estimate:
    return wilson_interval(float(values.sum()), len(values))


def _together(estimates: Sequence[Estimate]) -> Estimate:
    value, low, high = (np.array([getattr(one, name) for one in estimates]) for name in ("value", "low", "high"))
    return Estimate(value, low, high, estimates[0].n)


def _horizon(rows: pd.DataFrame) -> float:
    """Steps of the runs: what a censored run's time is."""
    return float(rows["value"].max())


def _shifts(count: int) -> np.ndarray:
    return (np.arange(count) - (count - 1) / 2) * 0.17


def _with_legend(figure: Figure, *axes: Axes) -> Figure:
    """One legend of the whole figure, of everything that is labelled in `axes`."""
    found: dict[str, object] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    figure.legend(found.values(), found.keys(), loc="outside upper center")
    return figure
