"""Layout of a finished figure: legends above their panels, plain ticks; and what would make it unreadable in print."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogFormatter, NullFormatter
from matplotlib.transforms import Bbox

WIDTH = 3.3  # inches, one column of a paper
TYPE = 7.0  # points
SMALL_TYPE = 6.5  # points: ticks and legends, and the least that may be used
_GAP = 2.0  # points between a legend and what stands above and below it
_TOLERANCE = 1.0  # pixels by which extents may touch


def finish(figure: Figure) -> Figure:
    """Lay the figure out once: legends above their panels in as many columns as fit, the figure higher by as much.

    A legend that `axes.legend()` or `figure.legend()` made from labels of lines is made anew; one with handles of its
    own is only moved. Titles stand on the left, above the legend. A figure that is laid out already stays as it is.
    """
    engine = figure.get_layout_engine()
    if not isinstance(engine, ConstrainedLayoutEngine):
        return figure
    axes = [axis for axis in figure.axes if axis.get_visible()]
    for axis in axes:
        if centred := axis.get_title("center"):
            axis.set_title("", loc="center")
            axis.set_title(centred, loc="left")
        _plain_ticks(axis.xaxis)
        _plain_ticks(axis.yaxis)
    own = [axis for axis in axes if axis.get_legend() is not None]
    for axis in own:
        axis.get_legend().set_in_layout(False)
    engine.execute(figure)
    added: dict[int, float] = {}
    for axis in own:
        row = axis.get_subplotspec().rowspan.start if axis.get_subplotspec() else 0
        added[row] = max(added.get(row, 0.0), _legend_above(axis))
    shared = sum(_shared_legend(figure, legend) for legend in list(figure.legends))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + (sum(added.values()) + shared) / 72)
    engine.execute(figure)
    for axis in axes:
        _title_within(axis)
    figure.set_layout_engine("none")
    return figure


def faults(figure: Figure) -> list[str]:
    """What makes a figure that is laid out unreadable at 3.3 inches: one line each, nothing where all is well."""
    found = []
    legends = _legends(figure)
    for legend in legends:
        legend.draw(figure.canvas.get_renderer())  # its words have no place before
    width = float(figure.get_size_inches()[0])
    if width > WIDTH + 0.01:
        found.append(f"{width:.1f} inches wide, not {WIDTH:g}")
    texts = [(text, _box(text)) for text in visible_texts(figure)]
    small = {text.get_text() for text, _ in texts if text.get_fontsize() < SMALL_TYPE}
    found += [f"type below {SMALL_TYPE:g} points: {words!r}" for words in sorted(small)]
    frame = figure.bbox
    for text, box in texts:
        if box.x0 < frame.x0 - 1 or box.x1 > frame.x1 + 1 or box.y0 < frame.y0 - 1 or box.y1 > frame.y1 + 1:
            found.append(f"cut off: {text.get_text()!r}")
    for (one, a), (other, b) in itertools.combinations(texts, 2):
        if _overlap(a, b):
            found.append(f"{one.get_text()!r} lies over {other.get_text()!r}")
    for legend in legends:
        for axis in figure.axes:
            if axis.get_visible() and _overlap(_box(legend), axis.get_window_extent()):
                found.append(f"a legend lies over the panel {axis.get_title('left')!r}")
    return found


def smallest_type(figure: Figure) -> float:
    """The smallest type of the figure in points, as printed 3.3 inches wide."""
    scale = min(1.0, WIDTH / float(figure.get_size_inches()[0]))
    return round(scale * min((text.get_fontsize() for text in visible_texts(figure)), default=TYPE), 2)


def visible_texts(figure: Figure) -> Iterator[Text]:
    """Every text that is drawn: titles, labels, ticks in view, words in panels and legends."""
    for axis in figure.axes:
        if not axis.get_visible():
            continue
        for one in (axis.xaxis, axis.yaxis):
            low, high = sorted(one.get_view_interval())
            slack = 1e-9 * (high - low)
            for tick in (*one.get_major_ticks(), *one.get_minor_ticks()):
                if low - slack <= tick.get_loc() <= high + slack:
                    yield from _drawn(tick.label1)
            yield from _drawn(one.label)
            yield from _drawn(one.get_offset_text())
        yield from _drawn(axis.title, axis._left_title, axis._right_title, *axis.texts)
    for legend in _legends(figure):
        yield from _drawn(*legend.get_texts(), legend.get_title())
    yield from _drawn(*figure.texts)  # the common title and labels are among them


def _legends(figure: Figure) -> list[Legend]:
    own = (axis.get_legend() for axis in figure.axes if axis.get_visible())
    return [*figure.legends, *(legend for legend in own if legend is not None)]


def _drawn(*texts: Text) -> Iterator[Text]:
    yield from (text for text in texts if text.get_visible() and text.get_text().strip())


def _box(artist: Text | Legend) -> Bbox:
    return artist.get_window_extent(artist.get_figure(root=True).canvas.get_renderer())


def _overlap(a: Bbox, b: Bbox) -> bool:
    across = min(a.x1, b.x1) - max(a.x0, b.x0)
    upright = min(a.y1, b.y1) - max(a.y0, b.y0)
    return across > _TOLERANCE and upright > _TOLERANCE


def _legend_above(axis: Axes) -> float:
    """Put the legend of a panel above it and the title above the legend; returns the height in points that it takes."""
    figure = axis.get_figure(root=True)
    place, frame = axis.get_window_extent(), figure.bbox
    # Long labels of the y axis leave a narrow panel: the legend then ends where the panel ends.
    from_right = (place.x0 - frame.x0) > 0.3 * frame.width
    room = place.x1 - frame.x0 if from_right else frame.x1 - place.x0
    where = {"loc": "lower right" if from_right else "lower left", "bbox_to_anchor": (float(from_right), 1.0)}
    legend = axis.get_legend()
    labels = [text.get_text() for text in legend.get_texts()]
    known = dict(reversed(list(zip(*reversed(axis.get_legend_handles_labels()), strict=True))))
    if not labels:
        legend.remove()
        return 0.0
    if set(labels) <= set(known):
        options = {**where, "borderaxespad": 0.2, "fontsize": SMALL_TYPE}
        for columns in range(len(labels), 0, -1):
            legend = axis.legend([known[label] for label in labels], labels, ncols=columns, **options)
            if _box(legend).width <= room - 2:
                break
    else:
        legend.set_loc(where["loc"])
        legend.set_bbox_to_anchor(where["bbox_to_anchor"], axis.transAxes)
        legend.set_in_layout(True)
    height = 72 * _box(legend).height / figure.dpi + _GAP
    if title := axis.get_title("left"):
        axis.set_title(title, loc="left", pad=height + _GAP)
    return height


def _title_within(axis: Axes) -> None:
    """End a title with its panel where it would be cut off at the figure's edge."""
    title, frame = axis.get_title("left"), axis.get_figure(root=True).bbox
    if title and _box(axis._left_title).x1 > frame.x1:
        pad = 72 * (_box(axis._left_title).y0 - axis.get_window_extent().y1) / axis.get_figure(root=True).dpi
        axis.set_title("", loc="left")
        axis.set_title(title, loc="right", pad=max(pad, 0.0) + _GAP)


def _shared_legend(figure: Figure, legend: Legend) -> float:
    """Put a legend of the whole figure on top, in as many columns as fit; returns its height in points."""
    labels = [text.get_text() for text in legend.get_texts()]
    known: dict[str, object] = {}
    for axis in figure.axes:
        handles, names = axis.get_legend_handles_labels()
        known = dict(zip(names, handles, strict=True)) | known
    if labels and set(labels) <= set(known):
        for columns in range(len(labels), 0, -1):
            legend.remove()
            legend = figure.legend(
                [known[label] for label in labels], labels, ncols=columns, loc="outside upper center"
            )
            if _box(legend).width <= figure.bbox.width - 4:
                break
    return 72 * _box(legend).height / figure.dpi + _GAP


def _plain_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis as 0.01 or 1e−8: raised exponents would be too small to read."""
    if axis.get_scale() == "log" and isinstance(axis.get_major_formatter(), LogFormatter):
        axis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
        axis.set_minor_formatter(NullFormatter())


def plain_number(value: float) -> str:
    """A number as short as it can be, with a proper minus sign."""
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        exponent = int(np.floor(np.log10(abs(value)) + 1e-9))
        return f"{value / 10.0**exponent:.3g}e{exponent}".replace("-", "−")
    return f"{value:g}".replace("-", "−")
