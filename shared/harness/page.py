"""What the report shows -> `index.html`, one file that needs nothing but the figures beside it, and `REPORT.md`.

The templates are Jinja2's and lie in `templates/`; HTML is escaped by the engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from grpo_replications.shared.harness.page_model import SOURCES, PaperView
from grpo_replications.shared.harness.rendering import Block, Details, Heading, Paragraph, Table, to_markdown
from grpo_replications.shared.harness.verdicts import (
    CONDITIONAL,
    EQUIVALENT,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
)

TEMPLATES = Path(__file__).parent / "templates"
MEANINGS = {
    REPRODUCED: "The criterion is met, with the whole interval.",
    CONDITIONAL: "It is met for some of the settings, which are named.",
    NOT_REPRODUCED: "The contrary is shown, or an effect of a size that matters is excluded.",
    EQUIVALENT: "The whole interval lies inside the margin, the smallest effect that matters: there is none of that "
    "size. A claim that there is an effect is then not reproduced.",
    INCONCLUSIVE: "The interval does not decide. The reason says how many seeds would, or that no number would.",
    NOT_RUN: "Nothing was measured. The check says why, and which command would.",
}
SIGNS = {
    REPRODUCED: "✓",
    CONDITIONAL: "◐",
    NOT_REPRODUCED: "✗",
    EQUIVALENT: "≈",
    INCONCLUSIVE: "?",
    NOT_RUN: "–",
}
CONTROL_WORDS = {
    REPRODUCED: "hold",
    CONDITIONAL: "hold in part",
    NOT_REPRODUCED: "fail",
    EQUIVALENT: "no effect",
    INCONCLUSIVE: "undecided",
    NOT_RUN: "not run",
}


def to_page(papers: Sequence[PaperView], blocks: Sequence[Block] = ()) -> str:
    """The whole page; `blocks` are sections after the papers."""
    template = _environment(html=True).get_template("report.html")
    return template.render(papers=papers, blocks=blocks, **_words())


def to_report(papers: Sequence[PaperView], blocks: Sequence[Block] = ()) -> str:
    """The same as GitHub Markdown: for each paper a table of claims, then every check in a line or two."""
    template = _environment(html=False).get_template("report.md")
    text = template.render(papers=papers, after=to_markdown(blocks) if blocks else "", **_words())
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def slug(verdict: str) -> str:
    """A verdict as a CSS class and a value of the filter: `not-reproduced`."""
    return verdict.replace(" ", "-")


def breakable(name: str) -> Markup:
    """An id that a browser may break after `/`, never inside a word."""
    return Markup("/<wbr>").join(name.split("/"))


def marked(text: str) -> Markup:
    """Text whose `code` and **bold** marks become elements, and everything else stands for itself."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    html = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", html)
    return Markup(re.sub(r"\[([^\]]+)\]\(([\w./-]+)\)", r'<a href="\2">\1</a>', html))


def markdown(text: str) -> str:
    """Plain text inside a Markdown line or cell: what would be read as markup stands for itself."""
    return re.sub(r"([|*<\\])", r"\\\1", text).replace("\n", " ")


def block_kind(block: Block) -> str:
    """The name by which the templates tell blocks apart."""
    names = {Heading: "heading", Paragraph: "paragraph", Table: "table", Details: "details"}
    return names[type(block)]


def _words() -> dict[str, object]:
    return {"meanings": MEANINGS, "signs": SIGNS, "sources": SOURCES, "control_words": CONTROL_WORDS}


@lru_cache(maxsize=2)
def _environment(html: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
    environment.filters |= {
        "slug": slug,
        "breakable": breakable,
        "marked": marked,
        "md": markdown,
        "kind": block_kind,
    }
    return environment
