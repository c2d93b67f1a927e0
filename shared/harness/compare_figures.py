"""Comparisons as one file of HTML: every figure of both sides side by side, every number on an axis shared by both.

The page needs nothing else: pictures are inside it.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment
from matplotlib.figure import Figure

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.compare import Comparison, NumberPair
from grpo_replications.shared.harness.compare_text import listings, side_names, summary, title
from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.plots import COLORS, PAPER_COLOR, panels
from grpo_replications.shared.harness.snapshots import Number, Snapshot

ROWS = 40  # numbers in one picture
ROW_HEIGHT, WIDTH, CHARACTER = 0.26, 5.0, 0.06  # inches: of a row, of axes with legend, of a letter of a name

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ heading }}</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 90rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { border: 1px solid #8886; padding: .3rem .6rem; text-align: left; vertical-align: top; }
.wide { overflow-x: auto; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: 1rem 0 2rem; }
.pair figure, .one { margin: 0; }
figcaption { font-size: .85rem; }
img { max-width: 100%; height: auto; background: white; }
@media (max-width: 50rem) { .pair { grid-template-columns: 1fr; } }
</style>
</head>
<body>
<h1>{{ heading }}</h1>
<p>Bars are 95 % intervals; a black diamond is the number that the paper prints. Differences are in combined standard
errors: those of the difference of two independent estimates.</p>
<ul>{% for part in parts %}<li><a href="#part-{{ loop.index }}">{{ part.title }}</a>: {{ part.summary[0][1] }}</li>
{% endfor %}</ul>
{% for part in parts %}
<h2 id="part-{{ loop.index }}">{{ part.title }}</h2>
<table>{% for what, text in part.summary %}<tr><th>{{ what }}</th><td>{{ text }}</td></tr>{% endfor %}</table>
{% for listing in part.listings %}
<details><summary>{{ listing.title }}: {{ listing.rows | length }}</summary><div class="wide"><table>
<tr>{% for name in listing.header %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in listing.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div></details>
{% endfor %}
<h3>Figures</h3>
{% for figure in part.figures %}
{% if figure.same %}<figure class="one"><img src="{{ figure.a }}" alt="{{ figure.name }}">
<figcaption>{{ figure.name }}: the same on both sides</figcaption></figure>
{% else %}<div class="pair">{% for side, image in ((part.a, figure.a), (part.b, figure.b)) %}<figure>
{% if image %}<img src="{{ image }}" alt="{{ figure.name }}, {{ side }}">{% else %}<p>not drawn</p>{% endif %}
<figcaption>{{ figure.name }}: {{ side }}</figcaption></figure>{% endfor %}</div>{% endif %}
{% else %}<p>None.</p>{% endfor %}
<h3>Numbers</h3>
{% for plot in part.plots %}<figure class="one"><img src="{{ plot.image }}" alt="{{ plot.name }}">
<figcaption>{{ plot.name }}</figcaption></figure>
{% else %}<p>None with an interval or with a number of the paper.</p>{% endfor %}
{% endfor %}
</body>
</html>
"""


def write_page(path: Path, comparisons: Sequence[Comparison], only_changed: bool = False) -> None:
    """Write the page; with `only_changed` only figures that differ and numbers of changed verdicts."""
    heading = " | ".join(side_names(comparisons[0]))
    parts = [_part(one, only_changed) for one in comparisons]
    template = Environment(autoescape=True, trim_blocks=True).from_string(PAGE)
    try:
        write_atomic(path, template.render(heading=heading, parts=parts))
    except OSError as error:
        raise ReplicationError(f"Cannot write {path}: {error.strerror or error}.") from None


def _part(comparison: Comparison, only_changed: bool) -> dict[str, object]:
    a, b = side_names(comparison)
    changed = {one.check for one in comparison.verdicts}
    pairs = [one for one in comparison.numbers if shown(one) and (one.check in changed or not only_changed)]
    figures = list(_figures(comparison.a, comparison.b))
    return {
        "title": title(comparison),
        "a": a,
        "b": b,
        "summary": summary(comparison),
        "listings": listings(comparison, only_changed),
        "figures": [one for one in figures if not (only_changed and one["same"])],
        "plots": [
            {"name": name, "image": _encoded(_png(shared_axis(rows, name, (a, b))))}
            for name, rows in groups(pairs, comparison.b)
        ],
    }


def shown(pair: NumberPair) -> bool:
    """Whether a number has its place on an axis: it has an interval on some side, or a number of the paper."""
    bounded = any(math.isfinite(one.low) and math.isfinite(one.high) for one in (pair.a, pair.b))
    return bounded or not math.isnan(pair.paper_value)


def groups(pairs: Sequence[NumberPair], known: Snapshot) -> Iterator[tuple[str, list[NumberPair]]]:
    """Numbers that share a picture: those of one claim in one unit, at most `ROWS` of them."""
    found: dict[tuple[str, str], list[NumberPair]] = {}
    for pair in pairs:
        found.setdefault((known.checks[pair.check].claim, pair.unit), []).append(pair)
    for (claim, unit), rows in found.items():
        for start in range(0, len(rows), ROWS):
            more = f" ({start + 1} to {min(start + ROWS, len(rows))} of {len(rows)})" if len(rows) > ROWS else ""
            yield f"{claim or 'numbers'}, {unit or 'no unit'}{more}", rows[start : start + ROWS]


def shared_axis(pairs: Sequence[NumberPair], name: str, sides: tuple[str, str]) -> Figure:
    """Every number as two points with intervals, one a side, on one axis, with the paper's number where it has one."""
    height = 0.9 + ROW_HEIGHT * len(pairs)
    prefix = pairs[0].check.partition("/")[0] + "/"
    names = [one.name.removeprefix(prefix) for one in pairs]
    figure, ((axes,),) = panels(1, 1, height=height)
    figure.set_size_inches(WIDTH + CHARACTER * max(map(len, names)), height)  # of a page, not of a column of a paper
    rows = np.arange(len(pairs), dtype=float)
    for side, offset, color, marker in zip((0, 1), (-0.16, 0.16), COLORS, "os"):
        numbers = [(one.a, one.b)[side] for one in pairs]
        axes.errorbar(
            [one.value for one in numbers],
            rows + offset,
            xerr=np.array([_reach(one) for one in numbers]).T,
            fmt=marker,
            color=color,
            markersize=4,
            capsize=2,
            label=sides[side],
        )
    paper = np.array([one.paper_value for one in pairs])
    if np.isfinite(paper).any():
        axes.plot(paper, rows, "D", markersize=5, markerfacecolor="white", markeredgecolor=PAPER_COLOR, label="paper")
    axes.set_yticks(rows, names, fontsize=7)
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.set_xlabel(pairs[0].unit or "value")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _reach(one: Number) -> tuple[float, float]:
    if not (math.isfinite(one.low) and math.isfinite(one.high)):
        return 0.0, 0.0
    return max(one.value - one.low, 0.0), max(one.high - one.value, 0.0)


def _figures(a: Snapshot, b: Snapshot) -> Iterator[dict[str, object]]:
    files = [{path.stem: path for path in sorted((one.directory / "figures").glob("*.png"))} for one in (a, b)]
    for name in sorted(files[0].keys() | files[1].keys()):
        contents = [one[name].read_bytes() if name in one else None for one in files]
        images = [content and _encoded(content) for content in contents]
        yield {"name": name, "a": images[0], "b": images[1], "same": contents[0] == contents[1]}


def _png(figure: Figure) -> bytes:
    import matplotlib.pyplot as plt

    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    plt.close(figure)
    return stream.getvalue()


def _encoded(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"
