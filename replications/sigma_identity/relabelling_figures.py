"""Figures of `relabelling` and `silent-forecast`, from measurements alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.captions import MEAN_INTERVAL, NO_NUMBER, runs
from grpo_replications.shared.harness.plots import (
    caption,
    group_size_axis,
    panels,
    paper_line,
    points_with_interval,
    series,
    titled,
    zero_line,
)
from grpo_replications.shared.statistics.estimates import mean_interval

_FAMILIES = {"tolerance": "error at most c", "at-least": "number at least t"}
_ENGINES = {"bernoulli-logit": "Bernoulli-logit prompts", "tree": "small transformers on the tree"}
_METHODS = {"plug-in": "k/8 for p", "beta": "Beta fit", "mixture": "mixture", "subsets": "subsets"}


def relabelling(frame: pd.DataFrame) -> Figure | None:
    """||Delta||^2 against p within prompts; the slope of log norm on log sigma by G, measured and by the formula.

    Left: a point per seed, prompt and verifier, in units of the prompt's own mean over its family; negative estimates,
    which are unbiased, are drawn too. Right: means over seeds with 95 % intervals.
    """
    rows = frame[frame["experiment"] == "relabelling"]
    if rows.empty:
        return None
    figure, axes = panels(1, 2, width=3.3, height=1.7)
    for place, (family, label) in enumerate(_FAMILIES.items()):
        points, style = _by_verifier(rows, family), series(place, label)
        axes[0, 0].plot(
            points["rate"], points["relative"], style.marker, color=style.color, alpha=0.5, markersize=2, label=label
        )
    zero_line(axes[0, 0], 1.0)
    p = np.linspace(0.05, 0.95, 91)
    axes[0, 0].plot(p, 0.25 / (p * (1 - p)), ":", color="black", linewidth=0.8, label="random right set")
    axes[0, 0].set_ylim(-0.5, 4)
    axes[0, 0].set_xlabel("solve rate p under the verifier")
    axes[0, 0].legend()
    _slopes(axes[0, 1], rows)
    titled(axes, "‖∇ logit p‖² over the prompt's mean", "slope of log norm on log σ")
    return caption(
        figure,
        "SmolLM2-135M on sums, the same completions judged by many verifiers: (a) squared norm of ∇ logit p by solve "
        "rate, within prompts (1/(4p(1−p)) if the right completions were a random set), (b) how the norm of groups not "
        "used in the fit follows σ, measured and by the formula without free parameters.",
        "Dashed in (b): 1, the paper's sentence that an update's length is σ; it prints no measured number.",
        f"{runs([rows['seed'].nunique()])} (one prompt each, 112 completions); points in (a): one verifier; bars: "
        f"{MEAN_INTERVAL}.",
    )


def silent_forecast(frame: pd.DataFrame) -> Figure | None:
    """Error of forecasts from a log of groups of 8, by method and size, one panel for each kind of policy."""
    rows = frame[frame["experiment"] == "silent-forecast"]
    if rows.empty:
        return None
    engines = sorted(rows["engine"].unique())
    figure, axes = panels(1, len(engines), width=3.3, height=1.5, sharey=True)
    for axis, engine in zip(axes[0], engines, strict=True):
        own = rows[rows["engine"] == engine]
        sizes: set[float] = set()
        for i, (method, label) in enumerate(_METHODS.items()):
            found = _numbered(own, f"error/{method}/")
            if found:
                sizes |= set(found)
                shift = 1.06 ** (i - 1.5)
                estimates, style = [mean_interval(100 * values) for values in found.values()], series(i, label)
                places = [size * shift for size in found]
                points_with_interval(axis, places, estimates, style.label, style.color, style.marker)
        zero_line(axis)
        if sizes:
            group_size_axis(axis, sizes)
    axes[0, 0].legend()
    titled(axes, *(f"forecast minus truth, points; {_ENGINES.get(engine, engine)}" for engine in engines))
    return caption(
        figure,
        "Silent share at other group sizes forecast from a log of groups of 8, minus the exact share, by method.",
        NO_NUMBER,
        f"{runs([rows['seed'].nunique()])} a panel; bars: {MEAN_INTERVAL}.",
    )


FIGURES = {"relabelling": relabelling, "silent_forecast": silent_forecast}


def _slopes(axes: Axes, rows: pd.DataFrame) -> Axes:
    sizes: set[float] = set()
    for place, name in enumerate(("measured", "formula")):
        found, style = _numbered(rows, f"slope/{name}/"), series(place)
        if found:
            sizes |= set(found)
            places = [size * (0.97, 1.03)[place] for size in found]
            estimates = [mean_interval(values) for values in found.values()]
            points_with_interval(axes, places, estimates, name, style.color, style.marker)
    paper_line(axes, 1.0, "norm = σ‖Δ‖ (paper)")
    if sizes:
        group_size_axis(axes, sizes)
    axes.set_ylim(0, 1.1)
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
