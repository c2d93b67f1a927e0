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

from grpo_replications.shared.harness.plots import (
    COLORS,
    PAPER_COLOR,
    group_size_axis,
    line_with_interval,
    panels,
    paper_line,
    paper_mark,
    points_with_interval,
)
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval

METHOD_COLORS = {"grpo": COLORS[0], "dr-grpo": COLORS[1], "dapo": COLORS[2], "rloo": COLORS[3]}
METHOD_LABELS = {"grpo": "GRPO", "dr-grpo": "Dr. GRPO", "dapo": "DAPO", "rloo": "RLOO"}
SHOWN = ("grpo", "dr-grpo", "dapo")
CLIP = 0.02  # the paper's run
PAPER_HARDEST = {"grpo": 0.99, "dr-grpo": 0.88}
LATTICE = 64  # rollouts behind a solve rate
READING_LABELS = {
    ("hardest_final", CLIP): "p ≤ quantile\n(authors)",
    ("hardest_final_quarter", CLIP): "lowest quarter,\nties at random",
    ("hardest_final_below", CLIP): "p < quantile",
    ("hardest_final", 0.0): "p ≤ quantile,\nnot clipped",
}
MEAN_FIELD_LABEL = "p ≤ quantile,\nno noise"


def trajectories(frame: pd.DataFrame) -> Figure | None:
    """Mean solve rate, silent fraction and hardest quartile over steps, with what the closed forms say."""
    runs = _runs(frame)
    curves = runs[runs["step"].notna() & runs["seed"].isna()]
    methods = [method for method in SHOWN if _has(curves, method, "curve_mean_p")]
    if not methods:
        return None
    figure, axes = panels(1, 3, width=3.4, height=2.8)
    for method in methods:
        color, label = METHOD_COLORS[method], METHOD_LABELS[method]
        mean, silent = (_curve(curves, method, name) for name in ("curve_mean_p", "curve_silent"))
        axes[0, 0].plot(mean.index, mean, color=color, label=label)
        axes[0, 0].plot(*_line(curves, method, "mean_field_mean_p"), color=color, linestyle=":")
        axes[0, 1].plot(silent.index[::2], silent[::2], "o", markersize=3, color=color, label=label)
        axes[0, 1].plot(*_line(curves, method, "curve_predicted_silent"), color=color, linewidth=1)
        hardest, low, high = (_curve(curves, method, f"curve_hardest{end}") for end in ("", "_low", "_high"))
        band = Estimate(hardest.to_numpy(), low.to_numpy(), high.to_numpy(), 0)
        line_with_interval(axes[0, 2], hardest.index, band, label, color)
        axes[0, 2].plot(*_line(curves, method, "mean_field_hardest"), color=color, linestyle=":")
        if method in PAPER_HARDEST:
            paper_mark(axes[0, 2], hardest.index[-1], PAPER_HARDEST[method])
    titles = (
        "mean solve rate\n(dotted: no sampling noise)",
        "share of silent groups\n(line: mean of $p^G + (1-p)^G$)",
        "initially hardest quartile\n(band: 95 % of seeds; dotted: no noise)",
    )
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, loc="left")
        axis.set_xlabel("step")
        axis.set_ylim(0, 1.02)
    axes[0, 2].legend(loc="lower right")
    return figure


def hardest_quartile(frame: pd.DataFrame) -> Figure | None:
    """Where the paper's 0.88 falls: Dr. GRPO's hardest quartile over seeds, and under other readings of the words."""
    runs = _runs(frame, clip=None)
    runs = runs[runs["method"] == "dr-grpo"]
    seeds = runs[runs["seed"].notna() & runs["metric"].isin(["hardest_final", "hardest_rate"]) & (runs["clip"] == CLIP)]
    wide = seeds.pivot(index="seed", columns="metric", values="value")
    if not {"hardest_final", "hardest_rate"} <= set(wide.columns):
        return None
    figure, axes = panels(1, 2, width=5.2, height=3.0)
    _histogram(axes[0, 0], wide["hardest_final"], (wide["hardest_rate"] * LATTICE).round().astype(int))
    _readings(axes[0, 1], runs)
    return figure


def difficulty_bins(frame: pd.DataFrame) -> Figure | None:
    """Share of the first step's gradient by bin of initial solve rate: sampled against the closed form at finite G."""
    runs = _runs(frame)
    methods = [method for method in SHOWN if _has(runs, method, "mass_share")]
    if not methods:
        return None
    figure, axes = panels(1, len(methods), width=3.2, height=2.6, sharey=True)
    for axis, method in zip(axes[0], methods, strict=True):
        share, low, high, expected = (
            _curve(runs, method, f"mass_share{end}") for end in ("", "_low", "_high", "_expected")
        )
        centers = (share.index + 0.5) / len(share)
        reach = np.maximum([share - low, high - share], 0)
        label = "sampled, 95 % of seeds"
        axis.bar(centers, share, 0.8 / len(share), yerr=reach, capsize=2, color=METHOD_COLORS[method], label=label)
        axis.plot(centers, expected, "_", color=PAPER_COLOR, markersize=12, label="closed form")
        outer = share.iloc[0] + share.iloc[-1]
        axis.set_title(f"{METHOD_LABELS[method]}: {100 * outer:.1f} % in the outer two", loc="left")
        axis.set_xlabel("initial solve rate")
        axis.set_ylim(0, 1.45 * float(high.max()))
        axis.legend(loc="upper right")
    axes[0, 0].set_ylim(0, None)
    axes[0, 0].set_ylabel("share of |g|")
    return figure


def group_sizes(frame: pd.DataFrame) -> Figure | None:
    """Length of the first step, steps and completions to the same mean solve rate, by group size."""
    if not {"method", "group_size"} <= set(frame.columns):
        return None
    runs = frame[(frame["experiment"] == "controlled-group-size") & frame["seed"].notna()]
    if runs.empty:
        return None
    figure, axes = panels(1, 3, width=3.2, height=2.6)
    shown = {
        "fidelity": "length of the first step\n(share of its limit for large G)",
        "steps_to_target": "steps to the same mean solve rate\n(missing: not reached in the run)",
        "samples_to_target": "completions per prompt to the same rate",
    }
    for axis, (metric, title) in zip(axes[0], shown.items(), strict=True):
        for method, own in runs[runs["metric"] == metric].groupby("method"):
            groups = own.groupby("group_size")["value"]
            estimates = [mean_interval(values.to_numpy(), draws=1000) for _, values in groups]
            points_with_interval(axis, list(groups.groups), estimates, METHOD_LABELS[method], METHOD_COLORS[method])
            if metric == "fidelity":
                expected = runs[(runs["metric"] == "fidelity_expected") & (runs["method"] == method)]
                line = expected.groupby("group_size")["value"].mean()
                axis.plot(line.index, line, color=METHOD_COLORS[method], linewidth=1)
        if metric == "fidelity":
            axis.plot([], [], color=PAPER_COLOR, linewidth=1, label="lines: closed form")
        group_size_axis(axis, runs["group_size"])
        axis.set_title(title, loc="left")
    axes[0, 1].set_ylim(0, None)
    axes[0, 2].set_yscale("log")
    axes[0, 2].set_yticks([200, 500, 1000, 2000, 5000], ["200", "500", "1,000", "2,000", "5,000"])
    axes[0, 2].minorticks_off()
    axes[0, 0].set_ylim(0, 1.02)
    axes[0, 0].legend(loc="lower right")
    return figure


def _histogram(axes: Axes, values: pd.Series, rates: pd.Series) -> None:
    """Results of all seeds, stacked by the largest initial rate that a seed's hardest quartile holds."""
    kinds = sorted(rates.unique())
    edges = np.arange(np.floor(min(values.min(), 0.875) * 400), np.ceil(values.max() * 400) + 1) / 400
    axes.hist(
        [values[rates == kind] for kind in kinds],
        edges,
        stacked=True,
        color=[COLORS[(5, 0, 4, 3, 6)[i % 5]] for i in range(len(kinds))],
        label=[f"p ≤ {kind}/{LATTICE} ({(rates == kind).mean():.0%} of seeds)" for kind in kinds],
    )
    paper = PAPER_HARDEST["dr-grpo"]
    axes.axvspan(paper - 0.005, paper + 0.005, ymax=0.6, color="#dddddd", zorder=0)
    axes.axvline(paper, ymax=0.6, color=PAPER_COLOR, linestyle="--", linewidth=1, label="paper, and what rounds to it")
    low = int((values.round(2) <= paper).sum())
    title = f"Dr. GRPO: {low} of {len(values)} seeds ({low / len(values):.1%}) round to {paper} or less"
    axes.set_title(title, loc="left", fontsize=8)
    axes.set_xlabel("final mean p of the hardest quartile")
    axes.set_ylabel("seeds")
    axes.set_ylim(0, 1.7 * axes.get_ylim()[1])
    axes.legend(loc="upper left")


def _readings(axes: Axes, runs: pd.DataFrame) -> None:
    """Mean and central 95 % over seeds of each reading, beside the paper's number."""
    labels, estimates = [], []
    for (metric, clip), label in READING_LABELS.items():
        chosen = runs["metric"].eq(metric) & runs["clip"].eq(clip) & runs["seed"].notna()
        values = runs.loc[chosen, "value"].to_numpy()
        if len(values):
            labels.append(label)
            low, high = np.quantile(values, [0.025, 0.975])
            estimates.append(Estimate(float(values.mean()), float(low), float(high), len(values)))
    still = runs.loc[runs["metric"].eq("mean_field_hardest_final") & runs["clip"].eq(CLIP), "value"]
    for value in still:
        labels.append(MEAN_FIELD_LABEL)
        estimates.append(Estimate(value, value, value, 0))
    points_with_interval(axes, range(len(labels)), estimates, "ours, 95 % of seeds", METHOD_COLORS["dr-grpo"])
    paper_line(axes, PAPER_HARDEST["dr-grpo"])
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_title("other readings of the same words", loc="left")
    axes.set_ylabel("final mean p")
    axes.legend(loc="lower left")


def _runs(frame: pd.DataFrame, clip: float | None = CLIP) -> pd.DataFrame:
    """Rows of the controlled run, with the paper's clipping or with any; empty where it was not run."""
    if not {"method", "clip"} <= set(frame.columns):
        return frame.iloc[:0].assign(method="", clip=np.nan)
    runs = frame[frame["experiment"] == "controlled-run"]
    return runs if clip is None else runs[runs["clip"] == clip]


def _has(runs: pd.DataFrame, method: str, metric: str) -> bool:
    return bool(((runs["method"] == method) & (runs["metric"] == metric)).any())


def _curve(runs: pd.DataFrame, method: str, metric: str) -> pd.Series:
    """One metric of one method by step."""
    own = runs[(runs["method"] == method) & (runs["metric"] == metric)]
    return own.set_index("step")["value"].sort_index()


def _line(runs: pd.DataFrame, method: str, metric: str) -> tuple[Sequence[float], Sequence[float]]:
    curve = _curve(runs, method, metric)
    return curve.index.to_numpy(), curve.to_numpy()


FIGURES: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    "controlled_trajectories": trajectories,
    "controlled_hardest_quartile": hardest_quartile,
    "controlled_difficulty_bins": difficulty_bins,
    "controlled_group_sizes": group_sizes,
}
