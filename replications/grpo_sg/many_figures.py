"""Figures of the experiments on many small transformers at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.captions import DIFFERENCE_INTERVAL, MEAN_INTERVAL, NO_NUMBER, runs
from grpo_replications.shared.harness.plots import (
    PROBABILITY,
    Look,
    caption,
    look,
    panels,
    paper_line,
    points_with_interval,
    titled,
    zero_line,
)
from grpo_replications.shared.statistics.curves import peak_of_curves
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

GAIN = 2.7
"""The paper's smallest average gain on mathematics, in points."""
PUZZLE_GAIN = 16
"""The smaller of the paper's two gains on Knights & Knaves, in points: .75 to .91."""
_WEIGHTINGS = {
    "sharpness-raw": Look("SG, not rescaled", look("sharpness").color, "o", "-"),
    "sharpness": look("sharpness-mean1"),
    "sharpness-logprob": look("sharpness-logprob"),
    "advantage-reweighting": Look("AR, α = .2", look("advantage-reweighting").color, "^", "-"),
    "advantage-reweighting-0.3": Look("AR, α = .3", look("advantage-reweighting").color, "v", "-"),
    "sharpness-reverse": look("sharpness-reverse"),
}
_OTHERS = {"sharpness-ar": Look("SG to AR", "black", "d", "-"), "halves": Look("two halves", "black", "s", "-")}
_ARMS = {
    ("sharpness", 1.0): "SG",
    ("sharpness", 4.0): "SG, contrast ×4",
    ("sharpness-reverse", 1.0): "SG reversed",
    ("sharpness-reverse", 4.0): "reversed, contrast ×4",
    ("advantage-reweighting", 1.0): "AR, α = .2",
}
_METHODS = ("grpo", "sharpness", "advantage-reweighting", "lopti", "80/20")


def many_same_batch(frame: pd.DataFrame) -> Figure | None:
    """One batch's gradient under every weighting: length over GRPO's, and angle to it beside that of two halves."""
    rows = frame[frame["experiment"] == "many-same-batch"]
    if rows.empty:
        return None
    found = set(rows["metric"])
    lengths = {name: one for name, one in _WEIGHTINGS.items() if f"norm_ratio/{name}" in found}
    angles = {name: one for name, one in {**_WEIGHTINGS, **_OTHERS}.items() if f"angle/{name}" in found}
    figure, axes = panels(2, 1, height=1.25)
    _list_of(axes[0, 0], list(lengths.values()), [_mean(rows, f"norm_ratio/{name}") for name in lengths])
    zero_line(axes[0, 0], 1.0, across=True)
    _list_of(axes[1, 0], list(angles.values()), [_mean(rows, f"angle/{name}") for name in angles])
    axes[1, 0].set_xscale("log")
    titled(axes, "gradient norm over GRPO's", "angle to GRPO's gradient, degrees")
    return caption(
        figure,
        "Small transformer on running sums: the gradient of the same batch under every weighting at mean weight 1 "
        "(except where not rescaled): (a) its norm, (b) its angle to GRPO's, SG's to AR's, and that of two halves of a "
        "batch under GRPO.",
        "The paper says that norms are smaller; it prints no number for this.",
        f"{runs([rows['seed'].nunique()])}, each a run of plain GRPO; bars: {MEAN_INTERVAL}.",
    )


def many_generalization(frame: pd.DataFrame) -> Figure | None:
    """Trained on few problems: held-out solve rate and gap at the end, minus GRPO's of the same seed."""
    rows = frame[frame["experiment"] == "many-generalization"]
    if rows.empty or "contrast" not in rows:
        return None
    base = rows[rows["method"] == "grpo"]
    arms = {key: own for key in _ARMS if len(own := rows[(rows["method"] == key[0]) & (rows["contrast"] == key[1])])}
    looks = [Look(_ARMS[key], look(key[0]).color, look(key[0]).marker, "-") for key in arms]
    figure, axes = panels(2, 1, height=1.1)
    for axis, metric in zip(axes.flat, ("final_solve_rate", "final_gap"), strict=True):
        pairs = [(_values(own, metric) - _values(base, metric)).dropna() for own in arms.values()]
        _list_of(axis, looks, [mean_interval(100 * pair.to_numpy()) for pair in pairs])
        zero_line(axis, across=True)
    paper_line(axes[0, 0], GAIN, f"paper's smallest gain on maths: {GAIN:g}", across=True)
    axes[0, 0].legend()
    titled(axes, "held-out solve rate minus GRPO's, points", "gap (trained minus held-out) minus GRPO's, points")
    return caption(
        figure,
        "Small transformer on running sums, trained on 64 problems: (a) held-out solve rate at the end and (b) its "
        "distance to the solve rate of the problems trained on, minus GRPO's of the same seed.",
        f"Dashed: the paper's smallest average gain on mathematics, {GAIN:g} points (claim 4, models of 3B and more).",
        f"{runs([base['seed'].nunique()])}, paired; bars: {DIFFERENCE_INTERVAL}.",
    )


def many_rates(frame: pd.DataFrame) -> Figure | None:
    """Held-out solve rate at the end by learning rate, every method with two updates a rollout."""
    rows = frame[frame["experiment"] == "many-rates"]
    if rows.empty or rows["lr"].nunique() < 2:
        return None
    figure, axes = panels(1, 1, height=2.0)
    _by_rate(axes[0, 0], rows)
    titled(axes, "held-out solve rate at the end")
    return caption(
        figure,
        "Small transformer on running sums: held-out solve rate after training, by learning rate; every method makes "
        "two updates a rollout.",
        NO_NUMBER,
        f"{runs([rows['seed'].nunique()])} a point; bars: {MEAN_INTERVAL}.",
    )


def many_puzzles(frame: pd.DataFrame) -> Figure | None:
    """Knights & Knaves in symbols: solve rates by learning rate, and each method's best one minus GRPO's."""
    rows = frame[frame["experiment"] == "many-puzzles"]
    if rows.empty or rows["lr"].nunique() < 2 or "grpo" not in set(rows["method"]):
        return None
    figure, axes = panels(2, 1, height=1.3)
    _by_rate(axes[0, 0], rows)
    axes[0, 0].axhline(_mean(rows, "start_solve_rate").value, color="grey", linewidth=0.8, linestyle=":", label="start")
    axes[0, 0].legend(ncols=3)
    methods = [method for method in _METHODS if method in set(rows["method"])]
    curves = [rows[(rows["method"] == m) & (rows["metric"] == "final_solve_rate")] for m in methods]
    peaks = peak_of_curves(100 * np.stack([one.pivot(index="lr", columns="seed", values="value") for one in curves]))
    gains = [peaks.difference(i, 0) for i in range(1, len(methods))]
    _list_of(axes[1, 0], [look(method) for method in methods[1:]], gains)
    zero_line(axes[1, 0], across=True)
    paper_line(axes[1, 0], PUZZLE_GAIN, f"paper's smaller gain of SG: {PUZZLE_GAIN:g}", across=True)
    axes[1, 0].legend()
    titled(axes, "held-out solve rate at the end", "best solve rate minus GRPO's, points")
    return caption(
        figure,
        "Small transformer on Knights & Knaves in symbols: (a) share of sampled answers to held-out puzzles that are "
        "right after training, by learning rate; dotted: before; (b) each method at its best rate, minus GRPO.",
        f"Dashed: the smaller of the paper's two gains on Knights & Knaves, {PUZZLE_GAIN:g} points (7B model).",
        f"{runs([rows['seed'].nunique()])} a point; bars: {MEAN_INTERVAL} (a), joint bootstrap of whole curves (b).",
    )


def _by_rate(axes: Axes, rows: pd.DataFrame) -> None:
    """Final solve rate of every method by learning rate, the methods side by side, with a legend."""
    rates = sorted(float(rate) for rate in rows["lr"].unique())
    methods = [method for method in _METHODS if method in set(rows["method"])]
    for place, method in enumerate(methods):
        own, style = rows[rows["method"] == method], look(method)
        estimates = [_mean(own[own["lr"] == rate], "final_solve_rate") for rate in rates]
        shifted = np.array(rates) * 1.04 ** (place - len(methods) / 2)
        points_with_interval(axes, shifted, estimates, style.label, style.color, style.marker, limits=PROBABILITY)
        axes.plot(shifted, [one.value for one in estimates], color=style.color, linestyle=style.line)
    axes.set(xscale="log", xlabel="learning rate")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.legend()


def _values(rows: pd.DataFrame, metric: str) -> pd.Series:
    """Values without a step by seed."""
    chosen = rows[(rows["metric"] == metric) & rows["step"].isna()]
    return chosen.set_index("seed")["value"].astype(float).sort_index()


def _mean(rows: pd.DataFrame, metric: str) -> Estimate:
    return mean_interval(_values(rows, metric).to_numpy())


def _list_of(axes: Axes, looks: Sequence[Look], estimates: Sequence[Estimate]) -> None:
    """One line a look, the first on top, with its estimate along the x axis."""
    for place, (one, estimate) in enumerate(zip(looks, estimates, strict=True)):
        points_with_interval(axes, [place], [estimate], "", one.color, one.marker, across=True)
    axes.set_yticks(range(len(looks)), [one.label for one in looks])
    axes.set_ylim(len(looks) - 0.5, -0.5)


FIGURES = {
    "many_same_batch": many_same_batch,
    "many_generalization": many_generalization,
    "many_rates": many_rates,
    "many_puzzles": many_puzzles,
}
"""Each takes the measurements and returns a figure, or None where they do not hold what it draws."""
