"""Figures of the closed forms: Big-Math's gradient mass, the group-size law, silent groups by G, and DAPO's log."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grpo_replications.replications.sigma_identity.dapo_log import read_log
from grpo_replications.shared.harness.plots import COLORS, PAPER_COLOR, group_size_axis, panels, paper_mark
from grpo_replications.shared.planning.solve_rates import BIG_MATH, load_solve_rates
from grpo_replications.shared.theory.closed_forms import group_size_law as law

CLAIM = "sigma-identity"
FIDELITIES = (90, 95, 99)
GROWTH_LABELS = {
    "exponential": "T exponential",
    "geometric": "log T exponential",
    "reciprocal": "1/T exponential",
    "linear": "T linear",
}
START_LABELS = {"all": "start: all rates", "interior": "start: 0 < p < 1", "clipped": "start: clipped to [.02, .98]"}


def big_math(frame: pd.DataFrame) -> Figure | None:
    """Problems by solve rate; the share of the gradient in each tenth of difficulty; mass on extreme prompts by G."""
    rows = frame[frame["experiment"] == "big-math"]
    if rows.empty:
        return None
    figure, axes = panels(1, 3, width=3.4, height=2.8)
    rates = load_solve_rates(BIG_MATH)
    axes[0, 0].bar(rates.rates, rates.counts / 1000, width=1 / 64, color=COLORS[6])
    axes[0, 0].set_title("Big-Math: problems (thousands)", loc="left")
    axes[0, 0].set_xlabel("solve rate of Llama-3.1-8B")
    tenths = np.arange(10) / 10 + 0.05
    for offset, color, method, label in ((-0.02, COLORS[1], "dr_grpo", "Dr. GRPO"), (0.02, COLORS[0], "grpo", "GRPO")):
        mass = rows[rows["metric"] == f"gradient_mass_{method}"].groupby("step")["value"].first()
        axes[0, 1].bar(tenths + offset, mass.to_numpy(), width=0.04, color=color, label=f"{label}, infinite G")
    axes[0, 1].set_title("share of gradient mass by tenth", loc="left")
    axes[0, 1].set_xlabel("solve rate")
    axes[0, 1].set_ylim(0, 0.19)
    axes[0, 1].legend(loc="upper center")
    _extreme_mass(axes[0, 2], rows)
    return figure


def _extreme_mass(axis, rows: pd.DataFrame) -> None:
    """Gradient mass on prompts with p < .1 or > .9 against G, with the infinite-G values as lines."""
    for color, method, label in ((COLORS[0], "grpo", "GRPO"), (COLORS[1], "dr_grpo", "Dr. GRPO")):
        finite = rows[rows["metric"] == f"mass_extreme_{method}_finite"].groupby("group_size")["value"].first()
        limit = rows.loc[rows["metric"] == f"mass_extreme_{method}", "value"].iloc[0]
        axis.plot(finite.index, finite, "o-", color=color, markersize=4, label=f"{label} at G")
        axis.axhline(limit, color=color, linestyle=":", linewidth=1.2, label=f"{label}, infinite G")
    sizes = sorted(rows["group_size"].unique())
    for method in ("grpo", "dr-grpo"):
        if (printed := _printed(rows, f"big-math/mass-extreme-{method}")) is not None:
            paper_mark(axis, sizes[-1] * 1.3, printed, label="paper, infinite G")
    group_size_axis(axis, sizes)
    axis.set_ylim(bottom=0)
    axis.set_title("mass on p < .1 or > .9", loc="left")
    axis.legend(loc="lower left", fontsize=7)


def group_size_law(frame: pd.DataFrame) -> Figure | None:
    """Exact smallest G for three fidelities against p, the law's curve, and the paper's table."""
    rows = frame[frame["experiment"] == "closed-forms"]
    if rows.empty:
        return None
    figure, axes = panels(1, 1, width=5.2, height=3.2)
    axis = axes[0, 0]
    grid = np.linspace(0.015, 0.985, 400)
    for color, percent in zip(COLORS, FIDELITIES, strict=False):
        own = rows[(rows["metric"] == f"group_size_{percent}") & rows["p"].between(0.015, 0.985)]
        exact = own.groupby("p")["value"].first()
        axis.plot(grid, law(grid, 1 - percent / 100), color=color, linewidth=1)
        axis.plot(exact.index, exact, "o", color=color, markersize=3, zorder=6, label=f"{percent} % (line: the law)")
        for p in exact.index:
            # The table has one row for p and 1 - p.
            if (printed := _printed(rows, f"cor2/p{min(p, 1 - p):.2f}/{percent}")) is not None:
                paper_mark(axis, p, printed, label="paper's table")
    axis.set_yscale("log")
    axis.set_xlabel("solve rate p")
    axis.set_ylabel("smallest group size G")
    axis.set_title("group size for a fidelity of GRPO's expected update", loc="left")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def silent_fraction(frame: pd.DataFrame) -> Figure | None:
    """Expected share of silent groups on Big-Math by G: rates exact, drawn from the rollouts, fitted to the counts."""
    rows = frame[frame["experiment"] == "big-math"]
    if rows.empty:
        return None
    figure, axes = panels(1, 1, width=4.6, height=3.0)
    axis = axes[0, 0]
    labels = {
        "silent_fraction": "solve rates k/64 taken as exact",
        "silent_fraction_without_replacement": "groups drawn from the 64 rollouts (unbiased)",
    }
    for color, (metric, label) in zip(COLORS, labels.items(), strict=False):
        own = rows[rows["metric"] == metric].groupby("group_size")["value"].first()
        axis.plot(own.index, own, "o-", color=color, markersize=3, zorder=6, label=label)
        for size in own.index:
            if (printed := _printed(rows, f"big-math/{metric.replace('_', '-')}/g{size:g}")) is not None:
                paper_mark(axis, size, printed)
    floor = rows.loc[rows["metric"] == "silent_at_every_group_size", "value"].iloc[0]
    label = f"never or always solved in 64 rollouts, {100 * floor:.1f} %: the paper's floor"
    axis.axhline(floor, color=PAPER_COLOR, linestyle=":", linewidth=1, label=label)
    sizes = sorted({*rows["group_size"].unique(), *_mixture(axis, frame)})
    group_size_axis(axis, sizes)
    axis.set_ylim(0, 0.9)
    axis.set_title("silent groups on Big-Math", loc="left")
    axis.legend(loc="upper right", fontsize=7)
    return figure


def _mixture(axis, frame: pd.DataFrame) -> list[int]:
    """The silent share under the fitted distribution of solve rates, with its interval; the sizes it is known at."""
    rows = frame[frame["experiment"] == "rate-mixture"]
    values = rows.groupby("metric")["value"].first()
    sizes = sorted(int(metric.split("/")[1]) for metric in values.index if metric.startswith("silent/"))
    if sizes:
        share, low, high = (
            [values[f"{name}/{size}"] for size in sizes] for name in ("silent", "silent_low", "silent_high")
        )
        axis.fill_between(sizes, low, high, color=COLORS[2], alpha=0.3, linewidth=0)
        axis.plot(sizes, share, color=COLORS[2], linewidth=1.2, label="solve rates fitted to the counts (95 % band)")
    return sizes


def dapo_log(frame: pd.DataFrame) -> Figure | None:
    """DAPO's points with the authors' fit and our others, and R^2 with bootstrap intervals of every reading."""
    names = ("dapo-log", "dapo-log-generic", "dapo-log-authors")
    rows, generic, authors = (frame[frame["experiment"] == name] for name in names)
    if rows.empty:
        return None
    figure, axes = panels(1, 2, width=4.6, height=3.2)
    steps, shares = read_log()
    axes[0, 0].plot(steps, shares, "o", color=PAPER_COLOR, markersize=2.5, label="DAPO, Fig. 3b")
    chosen = rows[(rows["start"] == "interior") & (rows["plateau"] == "fixed") & (rows["metric"] == "fitted_share")]
    for color, (growth, label) in zip(COLORS, GROWTH_LABELS.items(), strict=False):
        own = chosen[chosen["growth"] == growth]
        axes[0, 0].plot(own["step"], own["value"], color=color, linewidth=0.9, label=f"{label}, 0 < p < 1")
    theirs = authors[authors["metric"] == "fitted_share"].sort_values("step")
    if len(theirs):
        axes[0, 0].plot(theirs["step"], theirs["value"], color="black", linewidth=2, label="as in the authors' script")
    curve = (
        generic[(generic["metric"] == "fitted_share") & (generic["form"] == "exponential")] if len(generic) else None
    )
    if curve is not None and len(curve):
        axes[0, 0].plot(curve["step"], curve["value"], color=PAPER_COLOR, linestyle="--", label="generic, 2 parameters")
    axes[0, 0].set_title("share of prompts with 32 of 32 right", loc="left")
    axes[0, 0].set_xlabel("training step")
    axes[0, 0].legend(loc="lower right")
    _readings(axes[0, 1], rows, generic, authors)
    return figure


def _readings(axis, rows: pd.DataFrame, generic: pd.DataFrame, authors: pd.DataFrame) -> None:
    """One line per reading: R^2 with its interval; filled where the plateau is fixed, open where it is fitted."""
    names: list[str] = []
    if len(authors):
        values = authors[authors["step"].isna()].groupby("metric")["value"].first()
        axis.plot([values["r2_low"], values["r2_high"]], [0, 0], color="black", linewidth=2)
        axis.plot(values["r2"], 0, "o", color="black", markersize=5)
        names.append("authors' script (10–90 %)")
    for start, start_label in START_LABELS.items():
        for color, (growth, label) in zip(COLORS, GROWTH_LABELS.items(), strict=False):
            own = rows[(rows["start"] == start) & (rows["growth"] == growth)]
            for shift, plateau, fill in ((-0.15, "fixed", color), (0.15, "fitted", "white")):
                _interval(axis, own[own["plateau"] == plateau], len(names) + shift, color, fill)
            names.append(f"{label}, {start_label.removeprefix('start: ')}")
    for form in ("exponential", "hyperbolic"):
        if len(generic):
            _interval(axis, generic[generic["form"] == form], len(names), PAPER_COLOR, PAPER_COLOR)
        names.append(f"generic, {form}")
    low, high = (_printed(rows, f"dapo-log/authors/r2-{end}") for end in ("low", "high"))
    if low is not None and high is not None:
        axis.axvspan(low, high, color="#e4e4e4", zorder=0)
    for name in ("r2", "r2-generic"):
        if (printed := _printed(rows, f"dapo-log/authors/{name}")) is not None:
            axis.axvline(printed, color=PAPER_COLOR, linestyle="--", linewidth=0.8)
    axis.set_yticks(range(len(names)), names, fontsize=6.5)
    axis.invert_yaxis()
    axis.set_xlabel("R² (dashed and grey: paper's .92 with its interval, .98)")
    axis.set_title("filled: plateau .57; open: plateau fitted", loc="left")


def _interval(axis, rows: pd.DataFrame, place: float, color: str, fill: str) -> None:
    values = rows[rows["step"].isna()].groupby("metric")["value"].first()
    if "r2" in values:
        axis.plot([values["r2_low_pairs"], values["r2_high_pairs"]], [place, place], color=color, linewidth=1.2)
        axis.plot(values["r2"], place, "o", color=color, markerfacecolor=fill, markersize=4)


def _printed(frame: pd.DataFrame, claim: str) -> float | None:
    """The paper's number of a claim of this replication, where the frame comes with its claims."""
    return frame.attrs.get("paper", {}).get(f"{CLAIM}/{claim}")


FIGURES: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    "big_math": big_math,
    "group_size_law": group_size_law,
    "silent_fraction": silent_fraction,
    "dapo_log": dapo_log,
}
