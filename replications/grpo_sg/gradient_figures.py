"""Figures of `token-gradients`, `identifiability` and `sharpness-bound`, from measurements alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.captions import MEAN_INTERVAL, NO_NUMBER, runs
from grpo_replications.shared.harness.plots import (
    GREY,
    NOT_NEGATIVE,
    PAPER_COLOR,
    PROBABILITY,
    caption,
    line_with_interval,
    look,
    panels,
    points_with_interval,
    series,
    titled,
    zero_line,
)
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

_LEVELS = {
    "logits": "logits",
    "hidden_last": "last hidden state",
    "hidden_middle": "middle layer",
    "parameters": "parameters",
}
_METHODS = ("grpo", "sharpness", "sharpness-mean1")
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
    figure, axes = panels(2, 2, height=1.35)
    tokens = rows[rows["metric"].str.startswith("token_")].pivot_table(index="step", columns="metric", values="value")
    pooled = rows[rows["metric"].str.startswith("pooled_")].groupby("metric")["value"].first()
    _exact_curve(axes[0, 0], tokens)
    _by_quartile(axes[0, 1], pooled, "norm", relative=True)
    axes[0, 1].set_yscale("log")
    axes[0, 1].set_ylabel("over mean")
    axes[1, 0].plot(1 - tokens["token_complement"], tokens["token_weight"], "o", color=GREY, markersize=2, alpha=0.6)
    axes[1, 0].set_xlabel("π of the token")
    axes[1, 0].set_ylabel("w")
    _by_quartile(axes[1, 1], pooled, "share_gain", scale=100)
    axes[1, 1].set_ylabel("points")
    zero_line(axes[1, 1])
    for axis in axes[:, 1]:
        axis.set_xticks(_QUARTILES, ["least\nprobable", "second", "third", "most\nprobable"])
        axis.legend()
    titled(
        axes,
        "norm of ∇ log π by the logits, exact",
        "mean norm by quartile of probability",
        "SG's weight of a token, from its raw logit",
        "SG's change of a quartile's share in the norms",
    )
    return caption(
        figure,
        "Gradients of single sampled tokens, SmolLM2-135M: (a) norm by the logits against 1 − π, (b) mean norm by "
        "quartile of probability, over the mean of the four, at four places of the model, (c) SG's weights, (d) what "
        "they change.",
        "Lines in (a): the paper's bounds (claim on token gradients), 1 − π and √2 (1 − π).",
        f"{runs([len(tokens)], 'tokens')} in (a) and (c), from {runs([rows['seed'].nunique()]).removeprefix('n = ')}; "
        "bars: 95 % intervals by resampling completions.",
    )


def _exact_curve(axes: Axes, tokens: pd.DataFrame) -> Axes:
    line = np.linspace(0, 1, 50)
    axes.plot(tokens["token_complement"], tokens["token_logits"], "o", color=GREY, markersize=2, label="tokens")
    axes.plot(line, line, color=PAPER_COLOR, linewidth=0.9, label="paper: 1 − π")
    axes.plot(line, np.sqrt(2) * line, color=PAPER_COLOR, linestyle="--", linewidth=0.9, label="paper: √2 (1 − π)")
    axes.set_xlabel("1 − π")
    axes.set_ylabel("norm")
    axes.legend()
    return axes


def _by_quartile(axes: Axes, pooled: pd.Series, name: str, scale: float = 1.0, relative: bool = False) -> Axes:
    for place, (level, label) in enumerate(_LEVELS.items()):
        keys = [f"pooled_{level}_{name}_q{q}" for q in _QUARTILES]
        if any(key not in pooled for key in keys):
            continue
        unit = float(np.mean([pooled[key] for key in keys])) if relative else 1 / scale
        estimates = [Estimate(*(pooled[key + end] / unit for end in ("", "_low", "_high")), 0) for key in keys]
        style = series(place, label)
        points_with_interval(axes, _QUARTILES + 0.14 * (place - 1.5), estimates, style.label, style.color, style.marker)
    return axes


# --- identifiability --------------------------------------------------------------------------------------------------


def identifiability(frame: pd.DataFrame) -> Figure | None:
    """Weights and gradient direction against a shift of all logits, which leaves the policy; means over seeds, 95 %."""
    rows = frame[frame["experiment"] == "identifiability"]
    if rows.empty:
        return None
    figure, axes = panels(1, 3, height=1.35)
    bounds = {"share_lower": "at L = 1", "share_between": "between", "share_upper": "at U = 1.4"}
    for place, (name, label) in enumerate(bounds.items()):
        _against_shift(axes[0, 0], rows, name, label, place, PROBABILITY, at_zero=name)
    changes = {"weight_change": "mean |w(c) − w(0)|", "variation": "total variation"}
    for place, (name, label) in enumerate(changes.items(), len(bounds)):
        _against_shift(axes[0, 1], rows, name, label, place, NOT_NEGATIVE)
    for axis in axes[0, :2]:
        axis.set_ylim(bottom=0)
        axis.legend()
    axes[0, 1].set_xlabel("constant c added to all logits")
    _effects(axes[0, 2], rows)
    titled(
        axes,
        "share of the weights",
        "weights against those at c = 0",
        "how far the weighted gradient turns, over GRPO's",
    )
    return caption(
        figure,
        "A constant c added to all logits leaves the policy as it is and changes SG's weights "
        "(SmolLM2-135M): (a) share "
        "of weights at the bounds, (b) change of the weights, (c) angle to the weighted gradient at c = 0 over that of "
        "plain GRPO, also for a scale s and for log π.",
        f"{NO_NUMBER} Its weights (Eq. 20) are a function of the raw logit.",
        f"{runs([rows['seed'].nunique()])} a point; bands and bars: {MEAN_INTERVAL}.",
    )


def _against_shift(
    axes: Axes,
    rows: pd.DataFrame,
    name: str,
    label: str,
    place: int,
    limits: tuple[float, float],
    at_zero: str | None = None,
) -> Axes:
    """A line over the shifts; at 0 the metric `at_zero`, or 0 where there is none: nothing differs from itself."""
    values = _suffixed(rows, f"{name}_shift_")
    count = rows["seed"].nunique()
    own = rows.loc[rows["metric"] == at_zero, "value"].to_numpy() if at_zero else np.zeros(count)
    values[0.0] = own
    shifts, style = sorted(values), series(place, label)
    estimates = [mean_interval(values[c]) for c in shifts]
    value, low, high = (np.array([e[i] for e in estimates], dtype=float) for i in range(3))
    band = Estimate(value, low, high, count)
    return line_with_interval(axes, shifts, band, style.label, style.color, style.line, style.marker, limits)


def _effects(axes: Axes, rows: pd.DataFrame) -> Axes:
    shifts, scales = _suffixed(rows, "effect_shift_"), _suffixed(rows, "effect_scale_")
    entries = [(f"c={c:+g}".replace("-", "−"), shifts[c]) for c in sorted(shifts)]
    entries += [(f"s={s:g}", scales[s]) for s in sorted(scales)]
    entries.append(("log π", rows.loc[rows["metric"] == "effect_matched", "value"].to_numpy()))
    entries = [(label, values) for label, values in entries if len(values)]
    style = look("sharpness")
    estimates = [mean_interval(values) for _, values in entries]
    points_with_interval(axes, range(len(entries)), estimates, "", style.color, style.marker, NOT_NEGATIVE)
    plain = look("grpo")
    axes.axhline(1.0, color=plain.color, linestyle="--", linewidth=0.9, label="as far as plain GRPO")
    axes.set_xticks(range(len(entries)), [label for label, _ in entries], rotation=90)
    axes.set_ylim(bottom=0)
    axes.legend()
    return axes


def _suffixed(rows: pd.DataFrame, prefix: str) -> dict[float, np.ndarray]:
    """Values over seeds of every metric `<prefix><number>`, by the number."""
    own = rows[rows["metric"].str.startswith(prefix)]
    return {float(name.removeprefix(prefix)): group["value"].to_numpy() for name, group in own.groupby("metric")}


# --- the bound --------------------------------------------------------------------------------------------------------


def sharpness_bound(frame: pd.DataFrame) -> Figure | None:
    """Terms of the bound at the end of training, rank correlations of gradient norm and gap, and what weights change.

    Above: rise of the empirical loss within a radius (line, 95 % band over seeds), its first-order value (dotted) and
    the gap that they would have to exceed (dashed), for plain GRPO. Middle, below: means over seeds with 95 %
    intervals.
    """
    rows = frame[frame["experiment"] == "sharpness-bound"]
    if rows.empty:
        return None
    rows = rows[rows["step"] == rows["step"].max()]
    figure, axes = panels(1, 3, height=1.4)
    plain = rows[rows["method"] == "grpo"]
    size = plain["train_size"].max()
    words = {"sums": "right answers", "shuffled": "shuffled answers"}
    for place, (labels, own) in enumerate(plain[plain["train_size"] == size].groupby("labels")):
        _rises(axes[0, 0], own, f"rise of L_S, {words.get(labels, labels)}", place)
    axes[0, 0].plot([], [], color="#555555", linestyle=":", label="first order, ρ‖∇L_S‖")
    axes[0, 0].plot([], [], color="#555555", linestyle="--", label="gap L_D − L_S")
    axes[0, 0].set_xscale("log")
    axes[0, 0].set_yscale("log")
    axes[0, 0].set_xlabel("radius ρ")
    learned = rows[rows["labels"] == "sums"]
    ranks = {"rank_gradient_norm": "plain", "rank_gradient_norm_given_loss": "given L_S"}
    _over_cells(axes[0, 1], learned, list(ranks), list(ranks.values()))
    zero_line(axes[0, 1])
    _differences(axes[0, 2], learned)
    titled(
        axes,
        f"loss within a radius, {size:g} training prompts, GRPO",
        "rank correlation of ‖∇L_S‖ and gap",
        "trained with weights against GRPO, in %",
    )
    for axis in axes[0]:
        axis.legend()
    return caption(
        figure,
        "Terms of the generalization bound on a small policy at the end of training: (a) rise of the training loss L_S "
        "within a radius ρ, its first-order value and the gap to the expected loss L_D, (b) whether runs with larger "
        "gradients have larger gaps, (c) what the weights change.",
        "The paper's Theorem 3.3 bounds the gap by a term in the gradient norm; it prints no number.",
        f"{runs(rows.groupby(['labels', 'method', 'train_size'])['seed'].nunique())} a point; bands and bars: "
        f"{MEAN_INTERVAL}.",
    )


def _rises(axes: Axes, rows: pd.DataFrame, label: str, place: int) -> Axes:
    found, style = _suffixed(rows, "sharpness_"), series(place, label)
    radii = sorted(found)
    estimates = [mean_interval(found[radius]) for radius in radii]
    value, low, high = (np.array([e[i] for e in estimates], dtype=float) for i in range(3))
    floor = (1e-6, np.inf)  # keeps the band on a logarithmic axis
    line_with_interval(axes, radii, Estimate(value, low, high, 0), label, style.color, "-", style.marker, floor)
    first = _suffixed(rows, "first_order_")
    axes.plot(radii, [first[radius].mean() for radius in radii], color=style.color, linestyle=":")
    gap = rows.loc[rows["metric"] == "gap", "value"].mean()
    axes.axhline(gap, color=style.color, linestyle="--", linewidth=1)
    return axes


def _over_cells(axes: Axes, rows: pd.DataFrame, metrics: Sequence[str], labels: Sequence[str]) -> Axes:
    cells = sorted(rows.groupby(["train_size", "method"]).groups)
    for place, (metric, label) in enumerate(zip(metrics, labels, strict=True)):
        own, style = rows[rows["metric"] == metric], series(place + 2, label)
        estimates = [
            mean_interval(own.loc[(own["train_size"] == n) & (own["method"] == method), "value"].to_numpy())
            for n, method in cells
        ]
        x = np.arange(len(cells)) + 0.2 * (place - 0.5)
        points_with_interval(axes, x, estimates, style.label, style.color, style.marker, (-1.0, 1.0))
    axes.set_xticks(range(len(cells)), [_cell_label(method, n) for n, method in cells])
    return axes


def _cell_label(method: str, prompts: float) -> str:
    return look(method).label.replace(", ", ",\n") + f"\n{prompts:g}"


def _differences(axes: Axes, rows: pd.DataFrame) -> Axes:
    """Gap and gradient norm of policies trained with the weights minus those of GRPO, relative, seeds paired."""
    labels, place = [], 0
    for method in (name for name in _METHODS if name != "grpo" and name in set(rows["method"])):
        for n in sorted(rows["train_size"].unique()):
            for i, metric in enumerate(("gap", "gradient_norm")):
                own = rows[(rows["metric"] == metric) & (rows["train_size"] == n)]
                table = own.pivot_table(index="seed", columns="method", values="value")[[method, "grpo"]].dropna()
                relative = 100 * (table[method] - table["grpo"]) / table["grpo"].mean()
                name = {"gap": "gap L_D − L_S", "gradient_norm": "‖∇L_S‖"}[metric] if not place else ""
                style = series(4 + i, name)
                estimate = mean_interval(relative.to_numpy())
                limits = (-100.0, np.inf) if metric == "gradient_norm" else (-np.inf, np.inf)
                points_with_interval(
                    axes, [place + 0.3 * i - 0.15], [estimate], style.label, style.color, style.marker, limits
                )
            labels.append(_cell_label(method, n))
            place += 1
    zero_line(axes)
    axes.set_xticks(range(place), labels)
    axes.set_xlabel("method and training prompts")
    return axes


FIGURES: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    "token_gradients": token_gradients,
    "identifiability": identifiability,
    "sharpness_bound": sharpness_bound,
}
