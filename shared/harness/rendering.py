"""A text as a list of blocks -> Markdown; claims on a terminal.

Text inside blocks may use two marks, `code` and `**bold**`; everything else stands for itself.
"""

from __future__ import annotations

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
    REPRODUCED: "green",
    CONDITIONAL: "yellow",
    NOT_REPRODUCED: "red",
    EQUIVALENT: "blue",
    INCONCLUSIVE: "cyan",
    NOT_RUN: "bright_black",
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
class Details:
    """Blocks that are folded under one line of text until a reader opens them."""

    summary: str
    blocks: Sequence[Heading | Paragraph | Table]


Block = Heading | Paragraph | Table | Details


def to_markdown(blocks: Sequence[Block]) -> str:
    """The blocks as GitHub Markdown."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


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
    words = f"[{COLORS[answer.verdict]}]{answer.verdict}[/]"
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
    return f"<details>\n<summary>{_folded(block.summary)}</summary>\n\n{to_markdown(block.blocks)}\n</details>"


def _folded(text: str) -> str:
    return text.replace("<", "&lt;")


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
