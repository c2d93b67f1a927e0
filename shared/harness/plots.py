"""One look for all figures: 3.3 inches wide, 7-point type, one colour and marker per method in every paper.

Helpers take data and axes and return axes; the Agg backend is forced on import. A figure function puts its panels on
`panels`, says in `caption` what is shown, and calls `axes.legend()` where a legend is needed: when the figure is saved,
legends move above their panels, where they cover no data (`figure_layout`).
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_replications.shared.harness.captions import Caption
from grpo_replications.shared.harness.figure_layout import SMALL_TYPE, TYPE, WIDTH, finish
from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.statistics.estimates import Estimate

# Okabe and Ito's palette, told apart with any colour vision; black is kept for the paper's numbers.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
MARKERS = ("o", "s", "^", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (5, 2)), (0, (1, 1)))
PAPER_COLOR = "black"
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, GREY = COLORS
PROBABILITY = (0.0, 1.0)
NOT_NEGATIVE = (0.0, math.inf)


class Look(NamedTuple):
    """How a method, or another series, is drawn: its words in a legend, and what tells it from others."""

    label: str
    color: str
    marker: str = "o"
    line: Any = "-"


METHODS = {
    "grpo": Look("GRPO", BLUE, "o", "-"),
    "lambda-grpo": Look("λ-GRPO", VERMILION, "s", "--"),
    "lambda-grpo-matched": Look("λ-GRPO, GRPO's step length", GREEN, "p", "-."),
    "mean-depth": Look("depth weights, λ-GRPO's mean", PINK, "v", "-."),
    "halving-depth": Look("depth weights, 1/8 to 1", ORANGE, "P", ":"),
    "dr-grpo": Look("Dr. GRPO", VERMILION, "^", "--"),
    "dapo": Look("DAPO", GREEN, "v", "-."),
    "rloo": Look("RLOO", PINK, "X", ":"),
    "sharpness": Look("SG", VERMILION, "X", "--"),
    "sharpness-mean1": Look("SG, mean 1", ORANGE, "p", "-."),
    "sharpness-reverse": Look("SG reversed", PINK, ">", ":"),
    "sharpness-logprob": Look("SG on log π", PINK, "*", LINES[4]),
    "sharpness-prob": Look("SG on π", ORANGE, "*", LINES[4]),
    "advantage-reweighting": Look("AR", GREEN, "^", "-."),
    "lopti": Look("Lopti", SKY, "v", LINES[5]),
    "lopti+ar": Look("Lopti+AR", SKY, "<", LINES[4]),
    "80/20": Look("80/20", GREY, "P", LINES[6]),
}
"""One colour, marker and line per method, in the figures of every paper."""

_STYLE = {
    "font.size": TYPE,
    "axes.titlesize": TYPE,
    "axes.labelsize": TYPE,
    "figure.labelsize": TYPE,
    "legend.fontsize": SMALL_TYPE,
    "xtick.labelsize": SMALL_TYPE,
    "ytick.labelsize": SMALL_TYPE,
    "axes.titlelocation": "left",
    "axes.titlepad": 3.0,
    "axes.labelpad": 2.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.minor.size": 1.0,
    "ytick.minor.size": 1.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 1.0,
    "legend.labelspacing": 0.25,
    "legend.borderpad": 0.1,
    "legend.borderaxespad": 0.2,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.0,
    "lines.markeredgewidth": 0.6,
    "hatch.linewidth": 0.5,
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "axes.prop_cycle": matplotlib.cycler(color=COLORS),
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "svg.hashsalt": "grpo-replications",
    "pdf.fonttype": 42,
}


def style() -> None:
    """Make the common look the default of every figure drawn from now on."""
    plt.rcdefaults()
    plt.rcParams.update(_STYLE)


class CaptionedFigure(Figure):
    """A figure that carries its caption."""

    caption: Caption | None = None


def panels(rows: int, columns: int, width: float = WIDTH, height: float = 1.5, **options: Any) -> tuple[Figure, Any]:
    """A figure of 3.3 inches with `rows x columns` panels, `height` inches each, and its axes `(rows, columns)`.

    `width`: what a panel needs at least. Panels that do not fit side by side go below each other, in the same order,
    so that `panels(1, 3)` is a stack of three and `panels(2, 3, width=1.1)` has two rows. The height of legends comes
    on top when the figure is saved. `options` go to `matplotlib.pyplot.subplots`.
    """
    style()
    across = min(columns, max(1, int(WIDTH / width + 1e-9)))
    while columns % across:
        across -= 1
    down = rows * columns // across
    figure, axes = plt.subplots(
        down, across, figsize=(WIDTH, height * down), squeeze=False, FigureClass=CaptionedFigure, **options
    )
    return figure, axes.reshape(rows, columns)


def titled(axes: np.ndarray | Sequence[Axes], *titles: str) -> None:
    """Titles of a figure's panels, with letters that the caption refers to where there are several."""
    places = list(np.ravel(np.asarray(axes, dtype=object)))
    for letter, axis, title in zip("abcdefghijkl", places, titles, strict=False):
        axis.set_title(f"({letter}) {title}" if len(titles) > 1 else title, loc="left")


def caption(figure: Figure, shows: str, paper: str, sample: str) -> Figure:
    """Give a figure its caption and return it: what is shown; the paper's figure or table and value; n and interval."""
    figure.caption = Caption(shows, paper, sample)  # type: ignore[attr-defined]
    return figure


def look(method: str) -> Look:
    """The look of a method, the same in every figure; an unknown one is grey and keeps its name."""
    return METHODS.get(method) or Look(method, GREY, "*", ":")


def series(place: int, label: str = "") -> Look:
    """The look of the `place`-th of several series that are no methods: colour, marker and line differ."""
    return Look(label, COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)], LINES[place % len(LINES)])


def save(figure: Figure, path: Path) -> list[Path]:
    """Lay a figure out, write `path.png` and `path.pdf` (any ending of `path` is replaced) and close it.

    Neither file holds a date or a version, so that equal figures are equal files. A file is there as a whole or not at
    all: where the disk is full, `OSError` is raised and what was there before stays.
    """
    png, pdf = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.pdf")
    if path.suffix in (".png", ".pdf"):
        png, pdf = path.with_suffix(".png"), path.with_suffix(".pdf")
    undated = {"Creator": None, "Producer": None, "CreationDate": None, "ModDate": None}
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        finish(figure)
        for target, metadata in ((png, {"Software": None}), (pdf, undated)):
            content = io.BytesIO()
            figure.savefig(content, format=target.suffix[1:], metadata=metadata)
            write_atomic(target, content.getvalue())
    finally:
        plt.close(figure)
    return [png, pdf]


def line_with_interval(
    axes: Axes,
    x: Sequence[float] | np.ndarray,
    estimate: Estimate,
    label: str = "",
    color: str | None = None,
    line: Any = "-",
    marker: str = "",
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Axes:
    """A line through `estimate.value` `(len(x),)` and a band from `low` to `high`; where infinite, no band.

    `limits`: what the quantity can be (`PROBABILITY`, `NOT_NEGATIVE`); the band goes no further.
    """
    (drawn,) = axes.plot(x, estimate.value, label=label or None, color=color, linestyle=line, marker=marker)
    low, high = np.asarray(estimate.low, dtype=float), np.asarray(estimate.high, dtype=float)
    finite = np.isfinite(low) & np.isfinite(high)
    low, high = np.clip(low, *limits), np.clip(high, *limits)
    axes.fill_between(x, low, high, where=finite, color=drawn.get_color(), alpha=0.18, linewidth=0)
    return axes


def points_with_interval(
    axes: Axes,
    x: Sequence[float] | np.ndarray,
    estimates: Sequence[Estimate],
    label: str = "",
    color: str | None = None,
    marker: str = "o",
    limits: tuple[float, float] = (-math.inf, math.inf),
    across: bool = False,
) -> Axes:
    """One point with its interval per estimate, at `x`; an infinite interval is drawn as a bare point.

    `limits` as for `line_with_interval`. `across`: the values lie on the x axis and `x` are places on the y axis.
    """
    value, low, high = (np.array([float(one[i]) for one in estimates], dtype=float) for i in range(3))
    finite = np.isfinite(low) & np.isfinite(high)
    low, high = (np.where(finite, np.clip(end, *limits), value) for end in (low, high))
    reach = np.maximum([value - low, high - value], 0)
    options: dict[str, Any] = {"fmt": marker, "capsize": 1.5, "elinewidth": 0.8, "capthick": 0.8}
    options |= {"label": label or None, "color": color}
    if across:
        axes.errorbar(value, x, xerr=reach, **options)
    else:
        axes.errorbar(x, value, yerr=reach, **options)
    return axes


def group_size_axis(axes: Axes, sizes: Iterable[float]) -> Axes:
    """The x axis of `axes` for group sizes: logarithmic to base 2, with a tick at each of `sizes` (in any order)."""
    ticks = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{size:g}" for size in ticks])
    axes.minorticks_off()
    axes.set_xlabel("group size G")
    return axes


def paper_mark(
    axes: Axes,
    x: float | Sequence[float],
    y: float | Sequence[float],
    label: str | None = "paper",
    color: str = "white",
) -> Axes:
    """The paper's own number on our axes: a diamond with a black edge, the same in every figure; one legend entry.

    `color` fills it where the paper has a number for each of several methods.
    """
    known = axes.get_legend_handles_labels()[1]
    axes.plot(
        np.atleast_1d(x),
        np.atleast_1d(y),
        linestyle="none",
        marker="D",
        markersize=4,
        markerfacecolor=color,
        markeredgecolor=PAPER_COLOR,
        markeredgewidth=0.8,
        zorder=5,
        clip_on=False,
        label=None if label in known else label,
    )
    return axes


def paper_line(axes: Axes, y: float, label: str | None = "paper", across: bool = False) -> Axes:
    """The paper's number where it has no place of its own: a dashed black line; `across`: at an x, from low to high."""
    options: dict[str, Any] = {"color": PAPER_COLOR, "linestyle": "--", "linewidth": 0.9, "label": label}
    axes.axvline(y, **options) if across else axes.axhline(y, **options)
    return axes


def zero_line(axes: Axes, value: float = 0.0, across: bool = False) -> Axes:
    """A thin solid grey line where nothing differs."""
    options: dict[str, Any] = {"color": "#555555", "linewidth": 0.6, "zorder": 1}
    axes.axvline(value, **options) if across else axes.axhline(value, **options)
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
        words = text.format(values[row, column]).replace("-", "−")
        axes.text(column, row, words, ha="center", va="center", fontsize=SMALL_TYPE, color="white" if dark else "black")
    return axes
