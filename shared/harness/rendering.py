"""A report as a list of blocks -> Markdown, HTML or a terminal.

Text inside blocks may use two marks, `code` and `**bold**`; everything else stands for itself.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable

from grpo_replications.shared.harness.answers import Answer
from grpo_replications.shared.harness.claims import PAPER
from grpo_replications.shared.harness.outcomes import ClaimOutcome
from grpo_replications.shared.harness.verdicts import (
    CONDITIONAL,
    EQUIVALENT,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
)

COLORS = {
    REPRODUCED: ("#1a7f37", "green"),
    CONDITIONAL: ("#9a6700", "yellow"),
    NOT_REPRODUCED: ("#cf222e", "red"),
    EQUIVALENT: ("#0969da", "blue"),
    INCONCLUSIVE: ("#6e7781", "cyan"),
    NOT_RUN: ("#8c959f", "bright_black"),
}


@dataclass(frozen=True)
class Heading:
    """A heading of level 1 to 4."""

    text: str
    level: int = 1


@dataclass(frozen=True)
class Paragraph:
    """One paragraph."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table; every row has one text per column."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Image:
    """A figure by relative path, with its title and the path of its printable version."""

    path: str
    title: str
    printable: str | None = None


@dataclass(frozen=True)
class Details:
    """Blocks that are folded under one line of text until a reader opens them."""

    summary: str
    blocks: Sequence[Heading | Paragraph | Table | Image]


Block = Heading | Paragraph | Table | Image | Details


def to_markdown(blocks: Sequence[Block]) -> str:
    """The blocks as GitHub Markdown."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def to_html(blocks: Sequence[Block], title: str) -> str:
    """The blocks as one page that needs nothing but the images it links to."""
    body = "\n".join(_html(block) for block in blocks)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1f2328; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }}
h1, h2, h3 {{ line-height: 1.2; margin-top: 2rem; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.85rem; }}
th, td {{ border: 1px solid #d0d7de; padding: 0.35rem 0.6rem; text-align: left; vertical-align: top; }}
th {{ background: #f6f8fa; }}
code {{ background: #f6f8fa; padding: 0.1em 0.3em; border-radius: 3px; overflow-wrap: anywhere; }}
figure {{ margin: 1.5rem 0; }}
summary {{ cursor: pointer; padding: 0.3rem 0; }}
img {{ max-width: 100%; height: auto; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def markdown_table(table: Table) -> str:
    """One table as GitHub Markdown; vertical bars and line breaks inside cells are escaped."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join("| " + " | ".join(_markdown_cell(cell) for cell in line) + " |" for line in lines)


def aligned_table(table: Table) -> str:
    """The same with cells padded, all but the last column, so that the source too reads as a table."""
    lines = [[_markdown_cell(cell) for cell in line] for line in (table.header, *table.rows)]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(table.header) - 1)]
    lines.insert(1, ["-" * width for width in widths] + ["---"])
    for line in lines:
        line[:-1] = [cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def print_claims(console: Console, outcomes: Sequence[ClaimOutcome], counted: Sequence[tuple[str, str]]) -> None:
    """One line a claim with its answers, then the counts.  Fits narrow terminals.

    Why something was not run is printed once a reason, with a command; single checks are in the report.
    """
    table = RichTable(show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name, least in (("claim", 16), ("as published", 12), ("here", 10)):
        table.add_column(name, overflow="fold", min_width=least)
    skipped: dict[tuple[str, str], int] = {}
    for one in outcomes:
        answers = [own for own in (one.published, one.here) if own is not None]
        if answers:
            own = "" if one.claim.source == PAPER else "[dim]ours:[/] "
            table.add_row(own + _escape(one.claim.statement), _colored(one.published), _colored(one.here))
        for own in answers:
            if own.verdict == NOT_RUN:
                skipped[own.text, own.command] = skipped.get((own.text, own.command), 0) + 1
    console.print(table)
    for (reason, command), number in skipped.items():
        console.print(
            f"[dim]not run: {number} answer{'s' if number > 1 else ''} - {_escape(reason)} ({command})[/]",
            highlight=False,
        )
    for name, text in counted:
        console.print(f"{name}: [bold]{text}[/bold]", highlight=False)


def _colored(answer: Answer | None) -> str:
    if answer is None:
        return "–"
    words = f"[{COLORS[answer.verdict][1]}]{answer.verdict}[/]"
    if answer.verdict == NOT_RUN:
        return words
    return f"{words}\n[dim]{_escape(_shorten(answer.text))}[/]"


def _shorten(text: str, length: int = 160) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return "#" * block.level + " " + block.text
    if isinstance(block, Paragraph):
        return block.text
    if isinstance(block, Table):
        return markdown_table(block)
    if isinstance(block, Details):
        return f"<details>\n<summary>{_folded(block.summary)}</summary>\n\n{to_markdown(block.blocks)}\n</details>"
    link = f" ([PDF]({block.printable}))" if block.printable else ""
    return f"![{block.title}]({block.path})\n\n*{block.title}*{link}"


def _folded(text: str) -> str:
    return text.replace("<", "&lt;")


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Details):
        inner = "\n".join(_html(part) for part in block.blocks)
        return f"<details>\n<summary>{_inline(block.summary)}</summary>\n{inner}\n</details>"
    if isinstance(block, Table):
        header = "".join(f"<th>{_inline(cell)}</th>" for cell in block.header)
        rows = "\n".join("<tr>" + "".join(_html_cell(cell) for cell in row) + "</tr>" for row in block.rows)
        return f'<div class="table"><table>\n<tr>{header}</tr>\n{rows}\n</table></div>'
    path, title = html.escape(block.path), html.escape(block.title)
    link = f' (<a href="{html.escape(block.printable)}">PDF</a>)' if block.printable else ""
    return f'<figure><img src="{path}" alt="{title}" loading="lazy"><figcaption>{title}{link}</figcaption></figure>'


def _html_cell(text: str) -> str:
    """A cell; the verdict that it starts with, if any, is coloured."""
    verdict = re.match(r"\*\*([^*]+)\*\*", text)
    if not verdict or verdict[1] not in COLORS:
        return f"<td>{_inline(text)}</td>"
    colored = f'<b style="color: {COLORS[verdict[1]][0]}">{verdict[1]}</b>'
    return f"<td>{colored}{_inline(text[verdict.end() :])}</td>"


def _inline(text: str) -> str:
    escaped = html.escape(text)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", escaped)
