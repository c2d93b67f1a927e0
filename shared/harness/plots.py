"""One look for all figures.  Helpers take data and axes and return axes; the Agg backend is forced on import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.statistics.estimates import Estimate

# Okabe and Ito's palette, told apart with any colour vision; black is kept for the paper's numbers.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
PAPER_COLOR = "black"
DOTS_PER_INCH = 150

_STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "figure.dpi": DOTS_PER_INCH,
    "savefig.dpi": DOTS_PER_INCH,
    "axes.prop_cycle": matplotlib.cycler(color=COLORS),
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "grpo-replications",
    "pdf.fonttype": 42,
}


def style() -> None:
    """Make the common look the default of every figure drawn from now on."""
    plt.rcdefaults()
    plt.rcParams.update(_STYLE)


def panels(rows: int, columns: int, width: float = 3.0, height: float = 2.4, **options: Any) -> tuple[Figure, Any]:
    """A figure of `rows x columns` panels, `width x height` inches each, and its axes `(rows, columns)`."""
    style()
    return plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False, **options)


def save(figure: Figure, path: Path) -> list[Path]:
    """Write `path.png` and `path.pdf` (any ending of `path` is replaced) and close the figure.

    Neither file holds a date or a version, so that equal figures are equal files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    png, pdf = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.pdf")
    if path.suffix in (".png", ".pdf"):
        png, pdf = path.with_suffix(".png"), path.with_suffix(".pdf")
    figure.savefig(png, metadata={"Software": None})
    figure.savefig(pdf, metadata={"Creator": None, "Producer": None, "CreationDate": None, "ModDate": None})
    plt.close(figure)
    return [png, pdf]


def line_with_interval(
    axes: Axes, x: Sequence[float] | np.ndarray, estimate: Estimate, label: str = "", color: str | None = None
) -> Axes:
    """A line through `estimate.value` `(len(x),)` and a band from `low` to `high`; where infinite, no band."""
    (line,) = axes.plot(x, estimate.value, label=label or None, color=color)
    finite = np.isfinite(estimate.low) & np.isfinite(estimate.high)
    axes.fill_between(x, estimate.low, estimate.high, where=finite, color=line.get_color(), alpha=0.2, linewidth=0)
    return axes


def points_with_interval(
    axes: Axes,
    x: Sequence[float] | np.ndarray,
    estimates: Sequence[Estimate],
    label: str = "",
    color: str | None = None,
    marker: str = "o",
) -> Axes:
    """One point with its interval per estimate, at `x`; an infinite interval is drawn as a bare point."""
    value = np.array([estimate.value for estimate in estimates], dtype=float)
    low = np.array([estimate.low for estimate in estimates], dtype=float)
    high = np.array([estimate.high for estimate in estimates], dtype=float)
    reach = np.where(np.isfinite([value - low, high - value]), [value - low, high - value], 0.0)
    axes.errorbar(
        x, value, yerr=np.maximum(reach, 0), fmt=marker, markersize=4, capsize=2, label=label or None, color=color
    )
    return axes


def group_size_axis(axes: Axes, sizes: Iterable[float]) -> Axes:
    """The x axis of `axes` for group sizes: logarithmic to base 2, with a tick at each of `sizes` (in any order)."""
    ticks = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{size:g}" for size in ticks])
    axes.set_xlabel("group size G")
    return axes


def paper_mark(axes: Axes, x: float | Sequence[float], y: float | Sequence[float], label: str | None = "paper") -> Axes:
    """The paper's own number on our axes: a black diamond, the same in every figure; one legend entry per axes."""
    known = axes.get_legend_handles_labels()[1]
    axes.plot(
        np.atleast_1d(x),
        np.atleast_1d(y),
        linestyle="none",
        marker="D",
        markersize=5,
        markerfacecolor="white",
        markeredgecolor=PAPER_COLOR,
        zorder=5,
        label=None if label in known else label,
    )
    return axes


def paper_line(axes: Axes, y: float, label: str | None = "paper") -> Axes:
    """The paper's number where it has no x of its own: a dashed black line across the axes."""
    axes.axhline(y, color=PAPER_COLOR, linestyle="--", linewidth=1, label=label)
    return axes


def heatmap(
    axes: Axes,
    values: np.ndarray,
    row_labels: Sequence[Any],
    column_labels: Sequence[Any],
    centre: float | None = None,
    limits: tuple[float, float] | None = None,
    text: str = "{:.2f}",
) -> Axes:
    """`values` `(rows, columns)` as coloured cells with their numbers; nan is left blank.

    With `centre` the colours diverge from it: orange below, blue above.
    """
    finite = values[np.isfinite(values)]
    low, high = limits or ((float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0))
    if centre is not None and limits is None:
        reach = max(high - centre, centre - low, 1e-12)
        low, high = centre - reach, centre + reach
    image = axes.imshow(values, aspect="auto", cmap="PuOr" if centre is not None else "Blues", vmin=low, vmax=high)
    axes.set_xticks(range(len(column_labels)), [str(label) for label in column_labels])
    axes.set_yticks(range(len(row_labels)), [str(label) for label in row_labels])
    axes.grid(False)
    for row, column in np.argwhere(np.isfinite(values)):
        red, green, blue, _ = image.cmap(image.norm(values[row, column]))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        words = text.format(values[row, column])
        axes.text(column, row, words, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    return axes
