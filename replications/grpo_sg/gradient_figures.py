"""Figures of `token-gradients`, `identifiability` and `sharpness-bound`, from measurements alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.plots import COLORS, line_with_interval, panels, points_with_interval
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

_LEVELS = {
    "logits": "logits",
    "hidden_last": "last hidden state",
    "hidden_middle": "middle layer",
    "parameters": "parameters",
}
_METHODS = {"grpo": "GRPO", "sharpness": "SG", "sharpness-mean1": "SG, mean 1"}
_QUARTILES = np.arange(1, 5)


# --- token gradients --------------------------------------------------------------------------------------------------


def token_gradients(frame: pd.DataFrame) -> Figure | None:
    """Gradient norms of single tokens and what the weights do to them; intervals by resampling completions.

    The exact norm by the logits between its bounds; mean norms by quartile of probability, over
    their mean; weights against probability; change of each quartile's share in the sum of norms.
    """
    rows = frame[frame["experiment"] == "token-gradients"]
    if rows.empty:
        return None
    figure, axes = panels(2, 2, width=3.7, height=2.8)
    tokens = rows[rows["metric"].str.startswith("token_")].pivot_table(index="step", columns="metric", values="value")
    pooled = rows[rows["metric"].str.startswith("pooled_")].groupby("metric")["value"].first()
    _exact_curve(axes[0, 0], tokens)
    _by_quartile(axes[0, 1], pooled, "norm", relative=True)
    axes[0, 1].set_yscale("log")
    axes[0, 1].set_title("mean norm by probability quartile\n(1 = mean of the four)", loc="left")
    axes[1, 0].plot(1 - tokens["token_complement"], tokens["token_weight"], "o", markersize=3, alpha=0.6)
    axes[1, 0].set_title("weight of a token against its probability", loc="left")
    axes[1, 0].set_xlabel("π of the token")
    axes[1, 0].set_ylabel("w (from the raw logit)")
    _by_quartile(axes[1, 1], pooled, "share_gain", scale=100)
    axes[1, 1].axhline(0.0, color="black", linewidth=0.8)
    axes[1, 1].set_title("weights: change of the share in the sum\nof norms, in percentage points", loc="left")
    for axis in axes[:, 1]:
        axis.set_xticks(_QUARTILES, ["least\nprobable", "2", "3", "most\nprobable"])
    axes[0, 1].legend()
    return figure


def _exact_curve(axes: Axes, tokens: pd.DataFrame) -> Axes:
    line = np.linspace(0, 1, 50)
    axes.plot(line, line, color="black", linewidth=0.9, label="1 − π")
    axes.plot(line, np.sqrt(2) * line, color="black", linestyle="--", linewidth=0.9, label="√2 (1 − π)")
    axes.plot(tokens["token_complement"], tokens["token_logits"], "o", markersize=3, alpha=0.6, label="sampled tokens")
    axes.set_title("norm of ∇ log π by the logits, exact", loc="left")
    axes.set_xlabel("1 − π")
    axes.legend()
    return axes


def _by_quartile(axes: Axes, pooled: pd.Series, name: str, scale: float = 1.0, relative: bool = False) -> Axes:
    for place, (level, label) in enumerate(_LEVELS.items()):
        keys = [f"pooled_{level}_{name}_q{q}" for q in _QUARTILES]
        if any(key not in pooled for key in keys):
            continue
        unit = float(np.mean([pooled[key] for key in keys])) if relative else 1 / scale
        estimates = [Estimate(*(pooled[key + end] / unit for end in ("", "_low", "_high")), 0) for key in keys]
        points_with_interval(axes, _QUARTILES + 0.12 * (place - 1.5), estimates, label=label, color=COLORS[place])
    return axes


# --- identifiability --------------------------------------------------------------------------------------------------


def identifiability(frame: pd.DataFrame) -> Figure | None:
    """Weights and gradient direction against a shift of all logits, which leaves the policy; means over seeds, 95 %."""
    rows = frame[frame["experiment"] == "identifiability"]
    if rows.empty:
        return None
    figure, axes = panels(1, 3, width=3.5, height=2.8)
    bounds = {"share_lower": "at L = 1", "share_between": "between", "share_upper": "at U = 1.4"}
    for color, (name, label) in zip(COLORS, bounds.items(), strict=False):
        _against_shift(axes[0, 0], rows, name, label, color, at_zero=name)
    axes[0, 0].set_title("share of the weights", loc="left")
    changes = {"weight_change": "mean |w(c) − w(0)|", "variation": "total variation"}
    for color, (name, label) in zip(COLORS[3:], changes.items(), strict=False):
        _against_shift(axes[0, 1], rows, name, label, color)
    axes[0, 1].set_title("weights against those at c = 0", loc="left")
    for axis in axes[0, :2]:
        axis.set_xlabel("constant c added to all logits")
        axis.legend()
    _effects(axes[0, 2], rows)
    return figure


def _against_shift(
    axes: Axes, rows: pd.DataFrame, name: str, label: str, color: str, at_zero: str | None = None
) -> Axes:
    """A line over the shifts; at 0 the metric `at_zero`, or 0 where there is none: nothing differs from itself."""
    values = _suffixed(rows, f"{name}_shift_")
    count = rows["seed"].nunique()
    own = rows.loc[rows["metric"] == at_zero, "value"].to_numpy() if at_zero else np.zeros(count)
    values[0.0] = own
    shifts = sorted(values)
    estimates = [mean_interval(values[c]) for c in shifts]
    value, low, high = (np.array([e[i] for e in estimates], dtype=float) for i in range(3))
    return line_with_interval(axes, shifts, Estimate(value, low, high, count), label, color)


def _effects(axes: Axes, rows: pd.DataFrame) -> Axes:
    shifts, scales = _suffixed(rows, "effect_shift_"), _suffixed(rows, "effect_scale_")
    entries = [(f"c = {c:+g}".replace("-", "−"), shifts[c]) for c in sorted(shifts)]
    entries += [(f"s = {s:g}", scales[s]) for s in sorted(scales)]
    entries.append(("log π", rows.loc[rows["metric"] == "effect_matched", "value"].to_numpy()))
    entries = [(label, values) for label, values in entries if len(values)]
    points_with_interval(axes, range(len(entries)), [mean_interval(values) for _, values in entries])
    axes.axhline(1.0, color="black", linestyle="--", linewidth=0.9, label="as far as plain GRPO")
    axes.set_xticks(range(len(entries)), [label for label, _ in entries], rotation=90)
    axes.set_ylim(bottom=0)
    axes.set_title("how far the weighted gradient turns", loc="left")
    axes.legend()
    return axes


def _suffixed(rows: pd.DataFrame, prefix: str) -> dict[float, np.ndarray]:
    """Values over seeds of every metric `<prefix><number>`, by the number."""
    own = rows[rows["metric"].str.startswith(prefix)]
    return {float(name.removeprefix(prefix)): group["value"].to_numpy() for name, group in own.groupby("metric")}


# --- the bound --------------------------------------------------------------------------------------------------------


def sharpness_bound(frame: pd.DataFrame) -> Figure | None:
    """Terms of the bound at the end of training, rank correlations of gradient norm and gap, and what weights change.

    Left: rise of the empirical loss within a radius (line, 95 % band over seeds), its first-order value (dotted) and
    the gap that they would have to exceed (dashed), for plain GRPO. Middle, right: means over seeds with 95 %
    intervals.
    """
    rows = frame[frame["experiment"] == "sharpness-bound"]
    if rows.empty:
        return None
    rows = rows[rows["step"] == rows["step"].max()]
    figure, axes = panels(1, 3, width=3.8, height=2.8)
    plain = rows[rows["method"] == "grpo"]
    size = plain["train_size"].max()
    for color, (labels, own) in zip(COLORS, plain[plain["train_size"] == size].groupby("labels"), strict=False):
        _rises(axes[0, 0], own, {"sums": "sums", "shuffled": "shuffled answers"}.get(labels, labels), color)
    axes[0, 0].set_xscale("log")
    axes[0, 0].set_yscale("log")
    axes[0, 0].set_xlabel("radius ρ")
    axes[0, 0].set_title(f"rise of L_S within ρ; dashed: the gap\n({size:g} training prompts, GRPO)", loc="left")
    axes[0, 0].legend()
    learned = rows[rows["labels"] == "sums"]
    ranks = {"rank_gradient_norm": "plain", "rank_gradient_norm_given_loss": "given L_S"}
    _over_cells(axes[0, 1], learned, list(ranks), list(ranks.values()))
    axes[0, 1].axhline(0.0, color="black", linewidth=0.8)
    axes[0, 1].set_title("rank correlation of ‖∇L_S‖ and gap", loc="left")
    _differences(axes[0, 2], learned)
    return figure


def _rises(axes: Axes, rows: pd.DataFrame, label: str, color: str) -> Axes:
    found = _suffixed(rows, "sharpness_")
    radii = sorted(found)
    estimates = [mean_interval(found[radius]) for radius in radii]
    value, low, high = (np.array([e[i] for e in estimates], dtype=float) for i in range(3))
    floor = 1e-6  # keeps the band on a logarithmic axis
    line_with_interval(axes, radii, Estimate(value, np.maximum(low, floor), high, 0), label, color)
    first = _suffixed(rows, "first_order_")
    axes.plot(radii, [first[radius].mean() for radius in radii], color=color, linestyle=":")
    axes.axhline(rows.loc[rows["metric"] == "gap", "value"].mean(), color=color, linestyle="--", linewidth=1)
    return axes


def _over_cells(axes: Axes, rows: pd.DataFrame, metrics: Sequence[str], labels: Sequence[str]) -> Axes:
    cells = sorted(rows.groupby(["train_size", "method"]).groups)
    for place, (metric, label) in enumerate(zip(metrics, labels, strict=True)):
        own = rows[rows["metric"] == metric]
        estimates = [
            mean_interval(own.loc[(own["train_size"] == n) & (own["method"] == method), "value"].to_numpy())
            for n, method in cells
        ]
        x = np.arange(len(cells)) + 0.2 * (place - 0.5)
        points_with_interval(axes, x, estimates, label=label, color=COLORS[place])
    axes.set_xticks(range(len(cells)), [f"{_METHODS.get(method, method)}\nn = {n:g}" for n, method in cells])
    axes.tick_params(axis="x", labelsize=6)
    axes.legend()
    return axes


def _differences(axes: Axes, rows: pd.DataFrame) -> Axes:
    """Gap and gradient norm of policies trained with the weights minus those of GRPO, relative, seeds paired."""
    labels, place = [], 0
    for method in (name for name in _METHODS if name != "grpo" and name in set(rows["method"])):
        for n in sorted(rows["train_size"].unique()):
            for color, metric in zip(COLORS, ("gap", "gradient_norm"), strict=False):
                own = rows[(rows["metric"] == metric) & (rows["train_size"] == n)]
                table = own.pivot_table(index="seed", columns="method", values="value")[[method, "grpo"]].dropna()
                relative = 100 * (table[method] - table["grpo"]) / table["grpo"].mean()
                name = {"gap": "gap L_D − L_S", "gradient_norm": "‖∇L_S‖"}[metric] if not place else ""
                offset = 0.15 if metric == "gradient_norm" else -0.15
                estimate = mean_interval(relative.to_numpy())
                points_with_interval(axes, [place + offset], [estimate], label=name, color=color)
            labels.append(f"{_METHODS[method]}\nn = {n:g}")
            place += 1
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xticks(range(place), labels)
    axes.tick_params(axis="x", labelsize=6)
    axes.set_title("trained with weights against GRPO, in %", loc="left")
    if place:
        axes.legend()
    return axes


FIGURES: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    "token_gradients": token_gradients,
    "identifiability": identifiability,
    "sharpness_bound": sharpness_bound,
}
