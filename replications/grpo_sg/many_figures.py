"""Figures of the experiments on many small transformers at once; 95 % intervals over seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grpo_replications.shared.harness.plots import COLORS, panels, points_with_interval
from grpo_replications.shared.statistics.estimates import mean_interval

MARGIN = 0.027
"""The paper's smallest gain on mathematics, as a solve rate."""
_WEIGHTINGS = {
    "sharpness-raw": "SG, as published",
    "sharpness": "SG",
    "sharpness-logprob": "SG on log π",
    "advantage-reweighting": "AR, α = .2",
    "advantage-reweighting-0.3": "AR, α = .3",
    "sharpness-reverse": "reverse of SG",
}
_ARMS = {
    ("sharpness", 1.0): "SG",
    ("sharpness", 4.0): "SG, contrast ×4",
    ("sharpness-reverse", 1.0): "reverse",
    ("sharpness-reverse", 4.0): "reverse, ×4",
    ("advantage-reweighting", 1.0): "AR, α = .2",
}
_METHODS = {"grpo": "GRPO", "sharpness": "SG", "advantage-reweighting": "AR", "lopti": "Lopti", "80/20": "80/20"}


def _values(rows: pd.DataFrame, metric: str) -> pd.Series:
    """Values without a step by seed."""
    chosen = rows[(rows["metric"] == metric) & rows["step"].isna()]
    return chosen.set_index("seed")["value"].astype(float).sort_index()


def many_same_batch(frame: pd.DataFrame) -> Figure | None:
    """One batch's gradient under every weighting: length over GRPO's, and angle to it beside that of two halves."""
    rows = frame[frame["experiment"] == "many-same-batch"]
    if rows.empty:
        return None
    figure, axes = panels(1, 2)
    names = [name for name in _WEIGHTINGS if f"norm_ratio/{name}" in set(rows["metric"])]
    lengths = [mean_interval(_values(rows, f"norm_ratio/{name}").to_numpy()) for name in names]
    axes[0, 0].axhline(1.0, color="black", linewidth=0.8)
    points_with_interval(axes[0, 0], range(len(names)), lengths, "", COLORS[0])
    axes[0, 0].set_xticks(range(len(names)), [_WEIGHTINGS[name] for name in names], rotation=60)
    axes[0, 0].set(title="gradient norm over GRPO's")
    turned = {name: label for name, label in _WEIGHTINGS.items() if f"angle/{name}" in set(rows["metric"])}
    turned |= {"sharpness-ar": "SG to AR", "halves": "two halves of a batch"}
    angles = [mean_interval(_values(rows, f"angle/{name}").to_numpy()) for name in turned]
    points_with_interval(axes[0, 1], range(len(turned)), angles, "", COLORS[1])
    axes[0, 1].set_xticks(range(len(turned)), list(turned.values()), rotation=60)
    axes[0, 1].set(title="angle to GRPO's gradient (degrees)", ylim=(0, 100))
    return figure


def many_generalization(frame: pd.DataFrame) -> Figure | None:
    """Trained on few problems: held-out solve rate and gap at the end, minus GRPO's of the same seed."""
    rows = frame[frame["experiment"] == "many-generalization"]
    if rows.empty or "contrast" not in rows:
        return None
    base = rows[rows["method"] == "grpo"]
    found = {
        label: own
        for (method, contrast), label in _ARMS.items()
        if len(own := rows[(rows["method"] == method) & (rows["contrast"] == contrast)])
    }
    figure, axes = panels(1, 2)
    titles = {
        "final_solve_rate": "held-out solve rate minus GRPO's",
        "final_gap": "gap minus GRPO's",
    }
    for place, (metric, title) in enumerate(titles.items()):
        differences = [(_values(own, metric) - _values(base, metric)).dropna() for own in found.values()]
        panel = axes[0, place]
        panel.axhspan(-MARGIN, MARGIN, color="#dddddd", linewidth=0)
        panel.axhline(0.0, color="black", linewidth=0.8)
        estimates = [mean_interval(difference.to_numpy()) for difference in differences]
        points_with_interval(panel, range(len(found)), estimates, "", COLORS[0])
        panel.set_xticks(range(len(found)), list(found), rotation=60)
        panel.set(title=title)
    return figure


def many_rates(frame: pd.DataFrame) -> Figure | None:
    """Held-out solve rate at the end by learning rate, every method with two updates a rollout."""
    rows = frame[frame["experiment"] == "many-rates"]
    if rows.empty or rows["lr"].nunique() < 2:
        return None
    figure, axes = panels(1, 1)
    rates = sorted(float(rate) for rate in rows["lr"].unique())
    methods = [method for method in _METHODS if method in set(rows["method"])]
    for place, method in enumerate(methods):
        own = rows[rows["method"] == method]
        cells = [_values(own[own["lr"] == rate], "final_solve_rate").to_numpy() for rate in rates]
        shifted = np.array(rates) * 1.03 ** (place - len(methods) / 2)
        estimates = [mean_interval(cell) for cell in cells]
        points_with_interval(axes[0, 0], shifted, estimates, _METHODS[method], COLORS[place])
        axes[0, 0].plot(shifted, [estimate.value for estimate in estimates], color=COLORS[place], linewidth=0.8)
    axes[0, 0].set(xscale="log", xlabel="learning rate", ylabel="held-out solve rate at the end")
    axes[0, 0].set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes[0, 0].minorticks_off()
    axes[0, 0].legend()
    return figure


FIGURES = {
    "many_same_batch": many_same_batch,
    "many_generalization": many_generalization,
    "many_rates": many_rates,
}
"""Each takes the measurements and returns a figure, or None where they do not hold what it draws."""
