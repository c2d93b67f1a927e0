"""Figures of `relabelling` and `silent-forecast`, from measurements alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.plots import COLORS, group_size_axis, panels, points_with_interval
from grpo_replications.shared.statistics.estimates import mean_interval

_FAMILIES = {"tolerance": "error at most c", "at-least": "number at least t"}
_METHODS = {"plug-in": "k/8 for p", "beta": "Beta fit", "mixture": "mixture", "subsets": "subsets"}


def relabelling(frame: pd.DataFrame) -> Figure | None:
    """||Delta||^2 against p within prompts; the slope of log norm on log sigma by G, measured and by the formula.

    Left: a point per seed, prompt and verifier, in units of the prompt's own mean over its family; negative estimates,
    which are unbiased, are drawn too. Right: means over seeds with 95 % intervals.
    """
    rows = frame[frame["experiment"] == "relabelling"]
    if rows.empty:
        return None
    figure, axes = panels(1, 2, width=4.2, height=2.9)
    for color, (family, label) in zip(COLORS, _FAMILIES.items(), strict=False):
        points = _by_verifier(rows, family)
        axes[0, 0].plot(points["rate"], points["relative"], "o", color=color, alpha=0.5, markersize=3, label=label)
    axes[0, 0].axhline(1.0, color="black", linewidth=0.8)
    p = np.linspace(0.05, 0.95, 91)
    axes[0, 0].plot(p, 0.25 / (p * (1 - p)), "--", color="black", linewidth=0.8, label="random right set, 1/(4p(1-p))")
    axes[0, 0].set_ylim(-0.5, 4)
    axes[0, 0].set_xlabel("solve rate p under the verifier")
    axes[0, 0].set_title("||Delta||^2 over the prompt's mean", loc="left")
    axes[0, 0].legend()
    _slopes(axes[0, 1], rows)
    return figure


def silent_forecast(frame: pd.DataFrame) -> Figure | None:
    """Error of forecasts from a log of groups of 8, by method and size, one panel for each kind of policy."""
    rows = frame[frame["experiment"] == "silent-forecast"]
    if rows.empty:
        return None
    engines = sorted(rows["engine"].unique())
    figure, axes = panels(1, len(engines), width=4.2, height=2.9, sharey=True)
    for axis, engine in zip(axes[0], engines, strict=True):
        own = rows[rows["engine"] == engine]
        sizes: set[float] = set()
        for i, (method, label) in enumerate(_METHODS.items()):
            found = _numbered(own, f"error/{method}/")
            if found:
                sizes |= set(found)
                shift = 1.06 ** (i - 1.5)
                estimates = [mean_interval(values) for values in found.values()]
                points_with_interval(axis, [size * shift for size in found], estimates, label, COLORS[i])
        axis.axhline(0.0, color="black", linewidth=0.8)
        if sizes:
            group_size_axis(axis, sizes)
        axis.set_title(f"forecast minus truth, {engine}", loc="left")
        axis.legend()
    return figure


FIGURES = {"relabelling": relabelling, "silent_forecast": silent_forecast}


def _slopes(axes: Axes, rows: pd.DataFrame) -> Axes:
    sizes: set[float] = set()
    for color, (name, label) in zip(COLORS, {"measured": "measured", "formula": "formula"}.items(), strict=False):
        found = _numbered(rows, f"slope/{name}/")
        if found:
            sizes |= set(found)
            points_with_interval(axes, list(found), [mean_interval(values) for values in found.values()], label, color)
    axes.axhline(1.0, color="black", linestyle="--", linewidth=0.8, label="norm = sigma ||Delta||")
    if sizes:
        group_size_axis(axes, sizes)
    axes.set_ylim(0, 1.1)
    axes.set_title("slope of log norm on log sigma", loc="left")
    axes.legend()
    return axes


def _by_verifier(rows: pd.DataFrame, family: str) -> pd.DataFrame:
    """Columns `rate` and `relative`, ||Delta||^2 over its mean within seed and prompt, one row a verifier."""
    name = rows["metric"].str.extract(rf"^(rate|delta_squared)/(\d+)/{family}/(\w+)$")
    name.columns = ["kind", "prompt", "verifier"]
    named = pd.concat([rows[["seed", "value"]], name], axis=1).dropna()
    table = named.pivot(index=["seed", "prompt", "verifier"], columns="kind", values="value").reset_index()
    if table.empty:
        return pd.DataFrame({"rate": [], "relative": []})
    table["relative"] = table["delta_squared"] / table.groupby(["seed", "prompt"])["delta_squared"].transform("mean")
    return table


def _numbered(rows: pd.DataFrame, prefix: str) -> dict[float, np.ndarray]:
    """Values over seeds of the metrics `prefix` + number, by number."""
    own = rows[rows["metric"].str.startswith(prefix)]
    groups = own.groupby(own["metric"].str.removeprefix(prefix).astype(float))
    return {number: values["value"].to_numpy() for number, values in groups}
