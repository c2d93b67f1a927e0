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

from grpo_replications.shared.harness.plots import COLORS, line_with_interval, panels, points_with_interval
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval
from grpo_replications.shared.statistics.proportions import wilson_interval
from grpo_replications.shared.statistics.times import ratio_of_times, restricted_mean_time

ARMS = {
    "grpo": ("GRPO", COLORS[0]),
    "lambda-grpo": ("λ-GRPO", COLORS[1]),
    "mean-depth": ("λ-GRPO's weights averaged by depth", COLORS[2]),
    "halving-depth": ("fixed weights by depth, 1/8 to 1", COLORS[3]),
}
OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}


def table1_lm(frame: pd.DataFrame) -> Figure | None:
    """Table 1 with a small transformer: target frequency and share of successful runs over the learning rate."""
    rows = frame[frame["experiment"] == "many-table1"]
    cells = _rows_of_table1(rows)
    if not cells or rows["lr"].nunique() < 2:
        return None
    figure, axes = panels(2, len(cells), width=2.3, height=2.4, sharex=True, sharey=True)
    for column, (n, r_neg) in enumerate(cells):
        own = rows[(rows["n"] == n) & (rows["r_neg"] == r_neg)]
        _lines_over_rates(axes[0, column], own, "target_frequency", mean_interval)
        _lines_over_rates(axes[1, column], own, "success", _share_of_runs)
        axes[0, column].set_title(_row_label(n, r_neg), loc="left")
        axes[1, column].set_xlabel("learning rate (Adam)")
    axes[0, 0].set_ylabel("target frequency")
    axes[1, 0].set_ylabel("runs above one half")
    axes[0, 0].set_ylim(-0.02, 1.02)
    return _with_legend(figure, axes[0, 0])


def process_sets(frame: pd.DataFrame) -> Figure | None:
    """Where process sets are no function of depth: target frequency over the learning rate, from a leaning start."""
    rows = frame[frame["experiment"] == "many-table1-leaning"]
    if rows.empty or rows["lr"].nunique() < 2:
        return None
    cells = sorted(int(n) for n in rows["n"].unique())
    figure, axes = panels(1, len(cells), width=3.8, height=2.9, sharey=True)
    for axis, n in zip(axes[0], cells, strict=True):
        _lines_over_rates(axis, rows[rows["n"] == n], "target_frequency", mean_interval)
        axis.set_title(f"P(L) = .8 at the start, target with {n} R", loc="left")
        axis.set_xlabel("learning rate (Adam)")
    axes[0, 0].set_ylabel("target frequency")
    return _with_legend(figure, axes[0, 0])


def prefix(frame: pd.DataFrame) -> Figure | None:
    """The flaw at work: probability of the target's prefix and of the target over training, a small transformer.

    At the middle one of the learning rates measured.
    """
    rows = frame[(frame["experiment"] == "many-table1") & frame["step"].notna()]
    cells = _rows_of_table1(rows)
    if not cells:
        return None
    rates = sorted(rows["lr"].unique())
    rows = rows[rows["lr"] == rates[len(rates) // 2]]
    figure, axes = panels(2, len(cells), width=2.3, height=2.2, sharex=True, sharey=True)
    names = {"prefix_probability": "P(prefix)", "target_probability": "P(target)"}
    for i, (metric, label) in enumerate(names.items()):
        for axis, (n, r_neg) in zip(axes[i], cells, strict=True):
            own = rows[(rows["n"] == n) & (rows["r_neg"] == r_neg) & (rows["metric"] == metric)]
            for method, curve in _by_arm(own, "step"):
                line_with_interval(axis, curve.index, mean_interval(curve.to_numpy()), *ARMS[method])
            axis.set_title(_row_label(n, r_neg), loc="left")
        axes[i, 0].set_ylabel(label)
    for axis in axes[1]:
        axis.set_xlabel(f"step (Adam, lr {rates[len(rates) // 2]:g})")
    axes[0, 0].set_ylim(-0.02, 1.02)
    return _with_legend(figure, axes[0, 0])


def speed(frame: pd.DataFrame) -> Figure | None:
    """Steps to the target on a tabular policy, each arm at its own fastest rate, and the ratio to GRPO's steps."""
    rows = frame[(frame["experiment"] == "tabular-speed") & (frame["metric"] == "steps_to_threshold")]
    cells = _rows_of_table1(rows)
    if not cells:
        return None
    optimizers = [name for name in OPTIMIZERS if name in set(rows["optimizer"])]
    horizon = _horizon(rows)
    figure, axes = panels(2, len(optimizers), width=4.4, height=2.5, sharex=True)
    for column, optimizer in enumerate(optimizers):
        own = rows[rows["optimizer"] == optimizer]
        wide = own.pivot(index=["n", "r_neg", "seed"], columns="method", values="value")
        present = [arm for arm in ARMS if arm in wide]
        for arm, shift in zip(present, _shifts(len(present)), strict=True):
            label, color = ARMS[arm]
            places = np.arange(len(cells)) + shift
            times = [wide.loc[cell, arm].to_numpy() for cell in cells]
            means = [restricted_mean_time(values, horizon) for values in times]
            points_with_interval(axes[0, column], places, means, label, color)
            if arm != "grpo":
                ratios = [
                    ratio_of_times(values, wide.loc[cell, "grpo"].to_numpy(), horizon)
                    for cell, values in zip(cells, times, strict=True)
                ]
                # Where every pair of runs is alike the ratio has no interval: a bare point.
                known = [one if np.isfinite(one.high) else one._replace(low=-np.inf) for one in ratios]
                points_with_interval(axes[1, column], places, known, color=color)
        axes[0, column].set_title(f"{OPTIMIZERS[optimizer]}: mean steps to P(target) ≥ .5", loc="left")
        axes[1, column].set_title("ratio to GRPO's steps", loc="left")
        axes[1, column].axhline(1.0, color="black", linewidth=0.8)
        axes[1, column].axhline(0.5, color="black", linewidth=1, linestyle="--", label="paper: under half")
        axes[1, column].set_xticks(range(len(cells)), [_row_label(*cell).replace(", ", "\n") for cell in cells])
        axes[0, column].set_ylim(bottom=0)
        axes[1, column].set_ylim(bottom=0)
    axes[1, 0].legend(loc="upper left")
    return _with_legend(figure, axes[0, 0])


def sums(frame: pd.DataFrame) -> Figure | None:
    """Running sums: mean steps to a solve rate of one half, and solve rate over the run, over the learning rate."""
    rows = frame[frame["experiment"] == "many-sums"]
    if rows.empty or rows["lr"].nunique() < 2:
        return None
    rewards = [name for name in ("right", "trap") if name in set(rows["reward"])]
    titles = {"right": "reward 1 if right, else 0", "trap": "rewards of the synthetic tree"}
    figure, axes = panels(2, len(rewards), width=3.8, height=2.4, sharex=True)
    horizon = _horizon(rows[rows["metric"] == "steps_to_threshold"])
    for column, reward in enumerate(rewards):
        own = rows[rows["reward"] == reward]
        _lines_over_rates(axes[0, column], own, "steps_to_threshold", lambda x: restricted_mean_time(x, horizon))
        _lines_over_rates(axes[1, column], own, "mean_rate", mean_interval)
        axes[0, column].set_title(titles[reward], loc="left")
        axes[1, column].set_xlabel("learning rate (Adam)")
        axes[0, column].set_ylim(0, 1.05 * horizon)
        axes[1, column].set_ylim(bottom=0)
    axes[0, 0].set_ylabel("steps to a solve rate\nof one half")
    axes[1, 0].set_ylabel("solve rate, mean over\nthe run")
    return _with_legend(figure, axes[0, 0])


def _lines_over_rates(axis: Axes, rows: pd.DataFrame, metric: str, interval: Callable[[np.ndarray], Estimate]) -> None:
    for method, curve in _by_arm(rows[(rows["metric"] == metric) & rows["step"].isna()], "lr"):
        estimates = [interval(values) for values in curve.to_numpy()]
        line_with_interval(axis, curve.index, _together(estimates), *ARMS[method])
    axis.set_xscale("log")


def _by_arm(rows: pd.DataFrame, index: str) -> Iterable[tuple[str, pd.DataFrame]]:
    """(arm, values with a row per `index` and a column per seed) of every arm that was measured."""
    for method in ARMS:
        own = rows[rows["method"] == method]
        if not own.empty:
            yield method, own.pivot(index=index, columns="seed", values="value").sort_index()


def _share_of_runs(values: np.ndarray) -> Estimate:
    return wilson_interval(float(values.sum()), len(values))


def _together(estimates: Sequence[Estimate]) -> Estimate:
    value, low, high = (np.array([getattr(one, name) for one in estimates]) for name in ("value", "low", "high"))
    return Estimate(value, low, high, estimates[0].n)


def _horizon(rows: pd.DataFrame) -> float:
    """Steps of the runs: what a censored run's time is."""
    return float(rows["value"].max())


def _rows_of_table1(rows: pd.DataFrame) -> list[tuple[int, float]]:
    """(n, r_neg) in the order of the paper's Table 1."""
    if rows.empty or "n" not in rows:
        return []
    found = rows[["n", "r_neg"]].dropna().drop_duplicates()
    return sorted(((int(n), float(r)) for n, r in found.itertuples(index=False)), key=lambda row: (row[0], -row[1]))


def _row_label(n: int, r_neg: float) -> str:
    return f"n={n}, r_neg={r_neg:g}".replace("-", "−")


def _shifts(count: int) -> np.ndarray:
    return (np.arange(count) - (count - 1) / 2) * 0.15


def _with_legend(figure: Figure, axis: Axes) -> Figure:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, ncols=min(4, len(labels)), loc="outside upper center")
    return figure
