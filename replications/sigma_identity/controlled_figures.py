"""Figures of the controlled run: measurements -> matplotlib figures, nothing is run again.

Every function takes the measurements frame (columns experiment, method, clip, group_size, seed, step, metric, value)
and returns None where the frame lacks what the figure shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.captions import MEAN_INTERVAL, NO_NUMBER, runs
from grpo_replications.shared.harness.plots import (
    NOT_NEGATIVE,
    PROBABILITY,
    caption,
    group_size_axis,
    line_with_interval,
    look,
    panels,
    paper_line,
    paper_mark,
    points_with_interval,
    series,
    titled,
)
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

SHOWN = ("grpo", "dr-grpo", "dapo")
CLIP = 0.02  # the paper's run
PAPER_HARDEST = {"grpo": 0.99, "dr-grpo": 0.88}
LATTICE = 64  # rollouts behind a solve rate
READING_LABELS = {
    ("hardest_final", CLIP): "p ≤ q (authors)",
    ("hardest_final_quarter", CLIP): "lowest ¼, ties at random",
    ("hardest_final_below", CLIP): "p < q",
    ("hardest_final", 0.0): "p ≤ q, not clipped",
}
MEAN_FIELD_LABEL = "p ≤ q, no noise"
SECTION = "controlled run, M = 6,000, G = 8, 150 steps"


def trajectories(frame: pd.DataFrame) -> Figure | None:
    """Mean solve rate, silent fraction and hardest quartile over steps, with what the closed forms say."""
    chosen = _runs(frame)
    curves = chosen[chosen["step"].notna() & chosen["seed"].isna()]
    methods = [method for method in SHOWN if _has(curves, method, "curve_mean_p")]
    if not methods:
        return None
    figure, axes = panels(1, 3, height=1.3, sharex=True)
    for method in methods:
        style = look(method)
        plain = {"color": style.color, "linestyle": style.line, "label": style.label}
        mean, silent = (_curve(curves, method, name) for name in ("curve_mean_p", "curve_silent"))
        axes[0, 0].plot(mean.index, mean, **plain)
        axes[0, 0].plot(*_line(curves, method, "mean_field_mean_p"), color=style.color, linestyle=(0, (1, 3)))
        axes[0, 1].plot(silent.index[::4], silent[::4], style.marker, color=style.color, markersize=2.5)
        axes[0, 1].plot(*_line(curves, method, "curve_predicted_silent"), color=style.color, linewidth=0.8)
        hardest, low, high = (_curve(curves, method, f"curve_hardest{end}") for end in ("", "_low", "_high"))
        band = Estimate(hardest.to_numpy(), low.to_numpy(), high.to_numpy(), 0)
        line_with_interval(axes[0, 2], hardest.index, band, style.label, style.color, style.line, limits=PROBABILITY)
        axes[0, 2].plot(*_line(curves, method, "mean_field_hardest"), color=style.color, linestyle=(0, (1, 3)))
        if method in PAPER_HARDEST:
            paper_mark(axes[0, 2], hardest.index[-1], PAPER_HARDEST[method], f"paper, {style.label}", style.color)
    titled(
        axes, "mean solve rate", "share of silent groups (lines: predicted)", "mean p of the initially hardest quartile"
    )
    for axis in axes[0]:
        axis.set_ylim(0, 1.03)
    axes[0, 2].set_xlabel("step")
    axes[0, 0].legend()
    axes[0, 2].legend()
    return caption(
        figure,
        "Controlled run on Bernoulli-logit prompts: (a) mean solve rate, (b) share of silent groups with the mean of "
        "p^G + (1−p)^G, (c) the prompts that were hardest at the start. Fine dots: the same without sampling noise.",
        f"Diamonds in (c): the paper's values after the last step ({SECTION}): "
        + ", ".join(f"{look(method).label} {value:g}" for method, value in PAPER_HARDEST.items())
        + ".",
        f"{_seeds(chosen)} a method; bands in (c): central 95 % of seeds (not of their mean).",
    )


def hardest_quartile(frame: pd.DataFrame) -> Figure | None:
    """Where the paper's 0.88 falls: Dr. GRPO's hardest quartile over seeds, and under other readings of the words."""
    chosen = _runs(frame, clip=None)
    chosen = chosen[chosen["method"] == "dr-grpo"]
    metrics = ["hardest_final", "hardest_rate"]
    seeds = chosen[chosen["seed"].notna() & chosen["metric"].isin(metrics) & (chosen["clip"] == CLIP)]
    wide = seeds.pivot(index="seed", columns="metric", values="value")
    if not set(metrics) <= set(wide.columns):
        return None
    figure, axes = panels(1, 2, height=1.45)
    _histogram(axes[0, 0], wide["hardest_final"], (wide["hardest_rate"] * LATTICE).round().astype(int))
    _readings(axes[0, 1], chosen)
    paper = PAPER_HARDEST["dr-grpo"]
    low = int((wide["hardest_final"].round(2) <= paper).sum())
    titled(axes, f"Dr. GRPO: {low} of {len(wide)} seeds round to {paper} or less", "other readings of the same words")
    return caption(
        figure,
        "Where the paper's number for Dr. GRPO falls: (a) final mean p of the initially hardest "
        "quartile over seeds, by "
        "the largest initial rate that the quartile holds, (b) under other readings of “hardest "
        "quartile”; q is the 25 % quantile.",
        f"Dashed: the paper's {paper} ({SECTION}); grey: what rounds to it.",
        f"{_seeds(chosen)}; bars in (b): central 95 % of seeds (not of their mean).",
    )


def difficulty_bins(frame: pd.DataFrame) -> Figure | None:
    """Share of the first step's gradient by bin of initial solve rate: sampled against the closed form at finite G."""
    chosen = _runs(frame)
    methods = [method for method in SHOWN if _has(chosen, method, "mass_share")]
    if not methods:
        return None
    figure, axes = panels(1, len(methods), height=1.2, sharex=True, sharey=True)
    printed = frame.attrs.get("paper", {})
    titles = []
    for axis, method in zip(axes[0], methods, strict=True):
        style = look(method)
        share, low, high, expected = (
            _curve(chosen, method, f"mass_share{end}") for end in ("", "_low", "_high", "_expected")
        )
        centers = (share.index + 0.5) / len(share)
        reach = np.maximum([share - low, high - share], 0)
        bars = {"capsize": 1.5, "error_kw": {"elinewidth": 0.8}}
        axis.bar(centers, share, 0.8 / len(share), yerr=reach, color=style.color, label="sampled", **bars)
        axis.plot(centers, expected, "_", color="black", markersize=11, markeredgewidth=1.0, label="closed form")
        outer = share.iloc[0] + share.iloc[-1]
        paper = printed.get(f"sigma-identity/controlled-run/outer-mass/{method}")
        beside = f"; paper {100 * paper:.1f} %" if paper is not None else ""
        titles.append(f"{style.label}: {100 * outer:.1f} % in the outer two{beside}")
        axis.set_ylabel("share of |g|")
    axes[0, 0].set_ylim(bottom=0)
    axes[0, -1].set_xlabel("initial solve rate")
    axes[0, 0].legend()
    titled(axes, *titles)
    return caption(
        figure,
        "Controlled run: share of the first step's gradient in ten bins of the initial solve rate, sampled and by the "
        "closed form at G = 8.",
        f"The paper's share of the outer two bins stands in the titles ({SECTION}); it prints none for DAPO.",
        f"{_seeds(chosen)} a method; bars: central 95 % of seeds (not of their mean).",
    )


def group_sizes(frame: pd.DataFrame) -> Figure | None:
    """Length of the first step, steps and completions to the same mean solve rate, by group size."""
    if not {"method", "group_size"} <= set(frame.columns):
        return None
    chosen = frame[(frame["experiment"] == "controlled-group-size") & frame["seed"].notna()]
    if chosen.empty:
        return None
    figure, axes = panels(1, 3, height=1.3, sharex=True)
    for axis, metric in zip(axes[0], ("fidelity", "steps_to_target", "samples_to_target"), strict=True):
        for method, own in chosen[chosen["metric"] == metric].groupby("method"):
            style = look(method)
            groups = own.groupby("group_size")["value"]
            estimates = [mean_interval(values.to_numpy(), draws=1000) for _, values in groups]
            points_with_interval(
                axis, list(groups.groups), estimates, style.label, style.color, style.marker, NOT_NEGATIVE
            )
            if metric == "fidelity":
                expected = chosen[(chosen["metric"] == "fidelity_expected") & (chosen["method"] == method)]
                line = expected.groupby("group_size")["value"].mean()
                axis.plot(line.index, line, color=style.color, linestyle=style.line, linewidth=0.8)
        if metric == "fidelity":
            axis.plot([], [], color="#555555", linewidth=0.8, label="lines: closed form")
        group_size_axis(axis, chosen["group_size"])
    titled(
        axes,
        "length of the first step, share of its limit",
        "steps to the same mean solve rate",
        "completions per prompt to the same rate",
    )
    for axis in axes[0, :2]:
        axis.set_xlabel("")
    axes[0, 1].set_ylim(bottom=0)
    axes[0, 2].set_yscale("log")
    axes[0, 2].set_yticks([200, 500, 1000, 2000, 5000], ["200", "500", "1,000", "2,000", "5,000"])
    axes[0, 2].minorticks_off()
    axes[0, 0].set_ylim(0, 1.03)
    axes[0, 0].legend()
    absent = _not_reached(chosen)
    return caption(
        figure,
        "Controlled run at six group sizes: (a) length of the first step, (b) steps and (c) completions "
        "per prompt until "
        f"the mean solve rate that GRPO reaches.{absent}",
        f"{NO_NUMBER} Its run has G = 8 alone ({SECTION}); the closed form is its Proposition 2.",
        f"{runs(chosen.groupby(['method', 'group_size'])['seed'].nunique())} a point; bars: {MEAN_INTERVAL}, mostly "
        "smaller than the marks.",
    )


def _not_reached(rows: pd.DataFrame) -> str:
    """Words on the methods and group sizes that never reached the target within the run."""
    wanted = rows[["method", "group_size"]].drop_duplicates()
    reached = rows.loc[rows["metric"] == "steps_to_target"].dropna(subset=["value"])
    found = set(zip(reached["method"], reached["group_size"], strict=True))
    absent = [(m, g) for m, g in wanted.itertuples(index=False) if (m, g) not in found]
    names = ", ".join(f"{look(method).label} at G = {size:g}" for method, size in sorted(absent))
    return f" Absent, as it is not reached within the run: {names}." if names else ""


def _histogram(axes: Axes, values: pd.Series, rates: pd.Series) -> None:
    """Results of all seeds, stacked by the largest initial rate that a seed's hardest quartile holds."""
    kinds = sorted(rates.unique())
    edges = np.arange(np.floor(min(values.min(), 0.875) * 400), np.ceil(values.max() * 400) + 1) / 400
    axes.hist(
        [values[rates == kind] for kind in kinds],
        edges,
        stacked=True,
        color=[series(place + 3).color for place in range(len(kinds))],
        hatch=[("", "////", "....", "xxxx")[place % 4] for place in range(len(kinds))],
        edgecolor="white",
        linewidth=0,
        label=[f"p ≤ {kind}/{LATTICE} ({(rates == kind).mean():.0%} of seeds)" for kind in kinds],
    )
    paper = PAPER_HARDEST["dr-grpo"]
    axes.axvspan(paper - 0.005, paper + 0.005, color="#dddddd", zorder=0)
    paper_line(axes, paper, "paper (grey: rounds to it)", across=True)
    axes.set_xlabel("final mean p of the hardest quartile")
    axes.set_ylabel("seeds")
    axes.legend()


def _readings(axes: Axes, rows: pd.DataFrame) -> None:
    """Mean and central 95 % over seeds of each reading, beside the paper's number."""
    labels, estimates = [], []
    for (metric, clip), label in READING_LABELS.items():
        own = rows["metric"].eq(metric) & rows["clip"].eq(clip) & rows["seed"].notna()
        values = rows.loc[own, "value"].to_numpy()
        if len(values):
            labels.append(label)
            low, high = np.quantile(values, [0.025, 0.975])
            estimates.append(Estimate(float(values.mean()), float(low), float(high), len(values)))
    still = rows.loc[rows["metric"].eq("mean_field_hardest_final") & rows["clip"].eq(CLIP), "value"]
    for value in still:
        labels.append(MEAN_FIELD_LABEL)
        estimates.append(Estimate(value, value, value, 0))
    style = look("dr-grpo")
    points_with_interval(
        axes, range(len(labels)), estimates, "ours, 95 % of seeds", style.color, style.marker, PROBABILITY, across=True
    )
    paper_line(axes, PAPER_HARDEST["dr-grpo"], across=True)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlabel("final mean p")
    axes.legend()


def _seeds(rows: pd.DataFrame) -> str:
    return runs(rows[rows["seed"].notna()].groupby("method")["seed"].nunique())


def _runs(frame: pd.DataFrame, clip: float | None = CLIP) -> pd.DataFrame:
    """Rows of the controlled run, with the paper's clipping or with any; empty where it was not run."""
    if not {"method", "clip"} <= set(frame.columns):
        return frame.iloc[:0].assign(method="", clip=np.nan)
    rows = frame[frame["experiment"] == "controlled-run"]
    return rows if clip is None else rows[rows["clip"] == clip]


def _has(rows: pd.DataFrame, method: str, metric: str) -> bool:
    return bool(((rows["method"] == method) & (rows["metric"] == metric)).any())


def _curve(rows: pd.DataFrame, method: str, metric: str) -> pd.Series:
    """One metric of one method by step."""
    own = rows[(rows["method"] == method) & (rows["metric"] == metric)]
    return own.set_index("step")["value"].sort_index()


def _line(rows: pd.DataFrame, method: str, metric: str) -> tuple[Sequence[float], Sequence[float]]:
    curve = _curve(rows, method, metric)
    return curve.index.to_numpy(), curve.to_numpy()


FIGURES: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    "controlled_trajectories": trajectories,
    "controlled_hardest_quartile": hardest_quartile,
    "controlled_difficulty_bins": difficulty_bins,
    "controlled_group_sizes": group_sizes,
}
