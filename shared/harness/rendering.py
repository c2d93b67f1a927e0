"""A report as a list of blocks -> Markdown, HTML or a terminal.

Text inside blocks may use two marks, `code` and `**bold**`; everything else stands for itself.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable

from shared.harness.outcomes import ClaimLine, count_verdicts
from shared.harness.verdicts import CONDITIONAL, INCONCLUSIVE, NOT_REPRODUCED, NOT_RUN, REPRODUCED

COLORS = {
    REPRODUCED: ("#1a7f37", "green"),
    CONDITIONAL: ("#9a6700", "yellow"),
    NOT_REPRODUCED: ("#cf222e", "red"),
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


Block = Heading | Paragraph | Table | Image


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


def print_verdicts(console: Console, lines: Sequence[ClaimLine], slug: str) -> None:
    """Counts and one line a claim: what the paper says, what we measured, the verdict.  Fits narrow terminals.

    Claims that were not run are counted by reason below the table, with the command for one of them.
    """
    table = RichTable(show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name, least in (("claim", 24), ("paper", 5), ("ours", 12), ("verdict", 16)):
        table.add_column(name, overflow="fold", min_width=least)
    for line in lines:
        if line.verdict == NOT_RUN:
            continue
        color = COLORS[line.verdict][1]
        detail = line.conditions or ("" if line.verdict == REPRODUCED else line.reason)
        words = f"[{color}]{line.verdict}[/]" + (f"\n[dim]{_escape(_shorten(detail))}[/]" if detail else "")
        table.add_row(_escape(line.claim.id.removeprefix(f"{slug}/")), line.paper, _escape(line.ours), words)
    if table.row_count:
        console.print(table)
    skipped: dict[str, list[ClaimLine]] = {}
    for line in lines:
        if line.verdict == NOT_RUN:
            skipped.setdefault(line.reason, []).append(line)
    for reason, claims in skipped.items():
        console.print(
            f"[dim]not run: {len(claims)} claims - {_escape(reason)} ({claims[0].command})[/]", highlight=False
        )
    console.print(f"[bold]{count_verdicts(line.verdict for line in lines)}[/bold]", highlight=False)


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
    link = f" ([PDF]({block.printable}))" if block.printable else ""
    return f"![{block.title}]({block.path})\n\n*{block.title}*{link}"


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Table):
        header = "".join(f"<th>{_inline(cell)}</th>" for cell in block.header)
        rows = "\n".join("<tr>" + "".join(_html_cell(cell) for cell in row) + "</tr>" for row in block.rows)
        return f'<div class="table"><table>\n<tr>{header}</tr>\n{rows}\n</table></div>'
    path, title = html.escape(block.path), html.escape(block.title)
    link = f' (<a href="{html.escape(block.printable)}">PDF</a>)' if block.printable else ""
    return f'<figure><img src="{path}" alt="{title}" loading="lazy"><figcaption>{title}{link}</figcaption></figure>'


def _html_cell(text: str) -> str:
    color = COLORS.get(text.strip("*"))
    return f'<td style="color: {color[0]}"><b>{text.strip("*")}</b></td>' if color else f"<td>{_inline(text)}</td>"


def _inline(text: str) -> str:
    escaped = html.escape(text)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", escaped)
