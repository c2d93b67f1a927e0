"""Figures of the closed forms: Big-Math's gradient mass, the group-size law, silent groups by G, and DAPO's log."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.replications.sigma_identity.dapo_log import read_log
from grpo_replications.shared.harness.captions import runs
from grpo_replications.shared.harness.plots import (
    GREEN,
    GREY,
    caption,
    group_size_axis,
    look,
    panels,
    paper_line,
    paper_mark,
    series,
    titled,
)
from grpo_replications.shared.planning.solve_rates import BIG_MATH, load_solve_rates
from grpo_replications.shared.theory.closed_forms import group_size_law as law

CLAIM = "sigma-identity"
FIDELITIES = (90, 95, 99)
METHODS = {"grpo": "grpo", "dr-grpo": "dr_grpo"}  # name -> name in metrics
GROWTH_LABELS = {"exponential": "T exp.", "geometric": "log T exp.", "reciprocal": "1/T exp.", "linear": "T linear"}
START_LABELS = {"all": "all p", "interior": "0 < p < 1", "clipped": "p clipped"}


def big_math(frame: pd.DataFrame) -> Figure | None:
    """Problems by solve rate; the share of the gradient in each tenth of difficulty; mass on extreme prompts by G."""
    rows = frame[frame["experiment"] == "big-math"]
    if rows.empty:
        return None
    figure, axes = panels(1, 3, height=1.35)
    rates = load_solve_rates(BIG_MATH)
    axes[0, 0].bar(rates.rates, rates.counts / 1000, width=1 / 64, color=GREY)
    axes[0, 0].set_ylabel("thousands")
    axes[0, 0].set_xlabel("solve rate p of Llama-3.1-8B")
    tenths = np.arange(10) / 10 + 0.05
    for offset, hatch, (method, metric) in zip((-0.02, 0.02), ("", "////"), METHODS.items(), strict=True):
        mass = rows[rows["metric"] == f"gradient_mass_{metric}"].groupby("step")["value"].first()
        style = look(method)
        axes[0, 1].bar(
            tenths + offset, mass, width=0.04, color=style.color, hatch=hatch, edgecolor="white", linewidth=0,
            label=style.label,
        )  # fmt: skip
    axes[0, 1].set_xlabel("solve rate p")
    axes[0, 1].legend()
    _extreme_mass(axes[0, 2], rows)
    titled(axes, "Big-Math: problems", "share of gradient mass by tenth, infinite G", "mass on p < .1 or p > .9")
    printed = [_printed(rows, f"big-math/mass-extreme-{method}") for method in METHODS]
    values = " and ".join(f"{look(method).label} {value:.3f}" for method, value in zip(METHODS, printed) if value)
    return caption(
        figure,
        "Gradient mass on Big-Math by the closed forms (no model is trained): (a) problems by solve rate, (b) share of "
        "each tenth of difficulty in the expected gradient, (c) share of the extreme prompts by group size.",
        f"Diamonds in (c): the paper's shares for infinite groups (its Big-Math section): {values or 'not given'}.",
        f"{runs([rates.counts.sum()], 'problems')}, 64 rollouts each; exact sums, no interval.",
    )


def _extreme_mass(axis: Axes, rows: pd.DataFrame) -> None:
    """Gradient mass on prompts with p < .1 or > .9 against G, with the infinite-G values as lines."""
    sizes = sorted(rows["group_size"].dropna().unique())
    for method, metric in METHODS.items():
        style = look(method)
        finite = rows[rows["metric"] == f"mass_extreme_{metric}_finite"].groupby("group_size")["value"].first()
        limit = rows.loc[rows["metric"] == f"mass_extreme_{metric}", "value"].iloc[0]
        axis.plot(finite.index, finite, color=style.color, marker=style.marker, label=f"{style.label} at G")
        axis.axhline(limit, color=style.color, linestyle=":", label=f"{style.label}, infinite G")
        if (printed := _printed(rows, f"big-math/mass-extreme-{method}")) is not None:
            paper_mark(axis, sizes[-1] * 1.4, printed, f"paper, {style.label}", style.color)
    group_size_axis(axis, sizes)
    axis.set_ylim(bottom=0)
    axis.legend()


def group_size_law(frame: pd.DataFrame) -> Figure | None:
    """Exact smallest G for three fidelities against p, the law's curve, and the paper's table."""
    rows = frame[frame["experiment"] == "closed-forms"]
    if rows.empty:
        return None
    figure, axes = panels(1, 1, height=2.2)
    axis = axes[0, 0]
    grid = np.linspace(0.015, 0.985, 400)
    for place, percent in enumerate(FIDELITIES):
        style = series(place)
        own = rows[(rows["metric"] == f"group_size_{percent}") & rows["p"].between(0.015, 0.985)]
        exact = own.groupby("p")["value"].first()
        axis.plot(grid, law(grid, 1 - percent / 100), color=style.color, linewidth=0.9)
        axis.plot(
            exact.index, exact, style.marker, color=style.color, markersize=2.2, zorder=6, label=f"{percent} %, exact"
        )
        for p in exact.index:
            # The table has one row for p and 1 - p.
            if (printed := _printed(rows, f"cor2/p{min(p, 1 - p):.2f}/{percent}")) is not None:
                paper_mark(axis, p, printed, label="paper's table")
    axis.plot([], [], color="#555555", linewidth=0.9, label="lines: the law")
    axis.set_yscale("log")
    axis.set_xlabel("solve rate p")
    axis.set_ylabel("smallest group size G")
    axis.set_title("group size for a share of the infinite-group update", loc="left")
    axis.legend()
    return caption(
        figure,
        "Smallest group size whose expected update reaches 90, 95 and 99 % of that of infinite groups, by solve rate: "
        "exact, and the law 1/(8ε p(1−p)).",
        "Diamonds: the paper's table of exact group sizes (Corollary 2), which has one row for p and 1 − p.",
        f"{runs([exact.index.nunique()], 'solve rates')}; exact numbers, no interval.",
    )


def silent_fraction(frame: pd.DataFrame) -> Figure | None:
    """Expected share of silent groups on Big-Math by G: rates exact, drawn from the rollouts, fitted to the counts."""
    rows = frame[frame["experiment"] == "big-math"]
    if rows.empty:
        return None
    figure, axes = panels(1, 1, height=2.0)
    axis = axes[0, 0]
    labels = {
        "silent_fraction": "solve rates k/64 taken as exact",
        "silent_fraction_without_replacement": "drawn from the 64 rollouts (unbiased)",
    }
    for place, (metric, label) in enumerate(labels.items()):
        style = series(place, label)
        own = rows[rows["metric"] == metric].groupby("group_size")["value"].first()
        axis.plot(
            own.index, own, color=style.color, linestyle=style.line, marker=style.marker, markersize=2.2, zorder=6,
            label=label,
        )  # fmt: skip
        for size in own.index:
            if (printed := _printed(rows, f"big-math/{metric.replace('_', '-')}/g{size:g}")) is not None:
                paper_mark(axis, size, printed)
    floor = rows.loc[rows["metric"] == "silent_at_every_group_size", "value"].iloc[0]
    paper_line(axis, floor, f"paper's floor: {100 * floor:.1f} %, never or always solved")
    sizes = sorted({*rows["group_size"].dropna().unique(), *_mixture(axis, frame)})
    group_size_axis(axis, sizes)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("share of groups")
    axis.set_title("silent groups on Big-Math", loc="left")
    axis.legend()
    return caption(
        figure,
        "Expected share of silent groups on Big-Math by group size, under three readings of the 64 rollouts behind a "
        "solve rate.",
        "Diamonds: the paper's shares (its section on silent groups); dashed: its floor for every group size.",
        f"{runs(rows.loc[rows['metric'] == 'problems', 'value'], 'problems')}, 64 rollouts each; band: "
        "95 % interval of "
        "the fitted distribution of solve rates.",
    )


def _mixture(axis: Axes, frame: pd.DataFrame) -> list[int]:
    """The silent share under the fitted distribution of solve rates, with its interval; the sizes it is known at."""
    rows = frame[frame["experiment"] == "rate-mixture"]
    values = rows.groupby("metric")["value"].first()
    sizes = sorted(int(metric.split("/")[1]) for metric in values.index if metric.startswith("silent/"))
    if sizes:
        share, low, high = (
            [values[f"{name}/{size}"] for size in sizes] for name in ("silent", "silent_low", "silent_high")
        )
        axis.fill_between(sizes, low, high, color=GREEN, alpha=0.3, linewidth=0)
        axis.plot(sizes, share, color=GREEN, linestyle="-.", label="solve rates fitted to the counts (band)")
    return sizes


def dapo_log(frame: pd.DataFrame) -> Figure | None:
    """DAPO's points with the authors' fit and our others, and R^2 with bootstrap intervals of every reading."""
    names = ("dapo-log", "dapo-log-generic", "dapo-log-authors")
    rows, generic, authors = (frame[frame["experiment"] == name] for name in names)
    if rows.empty:
        return None
    figure, axes = panels(1, 2, height=2.0, gridspec_kw={"height_ratios": [1.6, 2.4]})
    steps, shares = read_log()
    paper_mark(axes[0, 0], steps, shares, "DAPO's Fig. 3b, the points that the paper fits")
    axes[0, 0].lines[-1].set_markersize(2.2)
    chosen = rows[(rows["start"] == "all") & (rows["plateau"] == "fixed") & (rows["metric"] == "fitted_share")]
    for place, (growth, label) in enumerate(GROWTH_LABELS.items()):
        own, style = chosen[chosen["growth"] == growth], series(place, f"{label}, all p")
        axes[0, 0].plot(own["step"], own["value"], color=style.color, linestyle=style.line, label=style.label)
    theirs = authors[authors["metric"] == "fitted_share"].sort_values("step")
    if len(theirs):
        axes[0, 0].plot(theirs["step"], theirs["value"], color="black", linewidth=1.6, label="authors' script")
    curve = (
        generic[(generic["metric"] == "fitted_share") & (generic["form"] == "exponential")] if len(generic) else generic
    )
    if len(curve):
        axes[0, 0].plot(curve["step"], curve["value"], color="black", linestyle=":", label="generic, 2 parameters")
    axes[0, 0].set_xlabel("training step")
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].legend()
    readings = _readings(axes[0, 1], rows, generic, authors)
    titled(axes, "share of prompts with 32 of 32 right", "R² (filled: plateau .57, open: fitted)")
    if axes[0, 1].get_legend_handles_labels()[1]:
        axes[0, 1].legend()
    return caption(
        figure,
        "DAPO's log: (a) its points with the fit of p → p^(1/T) as the authors' script makes it and as "
        "we read it, (b) "
        f"R² of {readings} readings: how T grows, which rates p the fit starts from, and whether the "
        "plateau is fitted.",
        "Dashed and grey in (b): the paper's R² of .92 with its interval, and .98 of a generic curve "
        "(section on DAPO's "
        "log).",
        f"{runs([len(steps)], 'points')} of one training run; lines in (b): 95 % bootstrap intervals over points, of "
        "the authors' script 10 to 90 %.",
    )


def _readings(axis: Axes, rows: pd.DataFrame, generic: pd.DataFrame, authors: pd.DataFrame) -> int:
    """One line per reading: R^2 with its interval; filled where the plateau is fixed, open where it is fitted."""
    names: list[str] = []
    if len(authors):
        values = authors[authors["step"].isna()].groupby("metric")["value"].first()
        axis.plot([values["r2_low"], values["r2_high"]], [0, 0], color="black", linewidth=1.6)
        axis.plot(values["r2"], 0, "o", color="black", markersize=4)
        names.append("authors' script")
    for start, start_label in START_LABELS.items():
        for place, (growth, label) in enumerate(GROWTH_LABELS.items()):
            own, style = rows[(rows["start"] == start) & (rows["growth"] == growth)], series(place)
            for shift, plateau, fill in ((-0.17, "fixed", style.color), (0.17, "fitted", "white")):
                _interval(axis, own[own["plateau"] == plateau], len(names) + shift, style.color, fill, style.marker)
            names.append(f"{label}, {start_label}")
    for form in ("exponential", "hyperbolic"):
        if len(generic):
            _interval(axis, generic[generic["form"] == form], len(names), "black", "black", "o")
        names.append(f"generic, {form[:5]}.")
    low, high = (_printed(rows, f"dapo-log/authors/r2-{end}") for end in ("low", "high"))
    if low is not None and high is not None:
        axis.axvspan(low, high, color="#e4e4e4", zorder=0, label="paper's interval")
    for name in ("r2", "r2-generic"):
        if (printed := _printed(rows, f"dapo-log/authors/{name}")) is not None:
            paper_line(axis, printed, "paper" if name == "r2" else None, across=True)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    return len(names)


def _interval(axis: Axes, rows: pd.DataFrame, place: float, color: str, fill: str, marker: str) -> None:
    values = rows[rows["step"].isna()].groupby("metric")["value"].first()
    if "r2" in values:
        axis.plot([values["r2_low_pairs"], values["r2_high_pairs"]], [place, place], color=color, linewidth=0.9)
        axis.plot(values["r2"], place, marker, color=color, markerfacecolor=fill, markersize=3)


def _printed(frame: pd.DataFrame, claim: str) -> float | None:
    """The paper's number of a claim of this replication, where the frame comes with its claims."""
    return frame.attrs.get("paper", {}).get(f"{CLAIM}/{claim}")


FIGURES: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    "big_math": big_math,
    "group_size_law": group_size_law,
    "silent_fraction": silent_fraction,
    "dapo_log": dapo_log,
}
