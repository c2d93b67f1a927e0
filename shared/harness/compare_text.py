"""A comparison in words: a few lines of summary, then what differs, for a terminal or as Markdown.

Ids are never broken: on a terminal each has a line of its own, with what is said about it below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from grpo_replications.shared.harness.compare import (
    SLIGHT,
    Comparison,
    NumberPair,
    VerdictChange,
    movement,
)
from grpo_replications.shared.harness.outcomes import number
from grpo_replications.shared.harness.rendering import Block, Heading, Paragraph, Table
from grpo_replications.shared.harness.snapshots import Number
from grpo_replications.shared.words import counted


@dataclass(frozen=True)
class Listing:
    """A titled list: for every entry a name and what is said about it, in the columns of `header`."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def title(comparison: Comparison) -> str:
    """`lambda-grpo, quick: committed | mine`; two profiles are named with their side."""
    a, b = comparison.a, comparison.b
    paper = b.paper.replace("_", "-")
    if a.profile == b.profile:
        return f"{paper}, {b.profile}: {a.side} | {b.side}"
    sides = [one.profile if a.side == b.side else f"{one.side}, {one.profile}" for one in (a, b)]
    return f"{paper}: {sides[0]} | {sides[1]}"


def side_names(comparison: Comparison) -> tuple[str, str]:
    """What tells the sides apart: their names, or their profiles."""
    a, b = comparison.a, comparison.b
    return (a.side, b.side) if a.side != b.side else (a.profile, b.profile)


def verdict_in_one_line(comparison: Comparison) -> str:
    """`identical: 134 numbers, 65 verdicts`, or how many differ and which of them the most."""
    moved, changed = comparison.moved, comparison.changed
    judged = comparison.checks
    if not comparison.compared:
        return "nothing compared: no experiment is recorded as measured on both sides"
    if not comparison.differs:
        return f"identical: {counted(comparison.counted, 'number')}, {counted(judged, 'verdict')}, timings aside"
    parts = [f"{len(moved)} of {counted(comparison.counted, 'number')} differ"]
    if moved and moved[0].a.value == moved[0].b.value:
        parts[0] += ", in their intervals only"
    elif moved and all(one.slight for one in moved):
        parts[0] += f", none by more than {SLIGHT:g} of its standard error or of its value"
    elif moved:
        parts[0] += f", the furthest {movement(moved[0])} ({moved[0].name})"
    parts.append(f"{len(changed)} of {counted(judged, 'verdict')} changed")
    for side, lone in zip(side_names(comparison), (comparison.lone_a, comparison.lone_b)):
        if lone:
            parts.append(f"{counted(len(lone), 'check')} judged only in {side}")
    if not (moved or changed) and comparison.rows:
        parts.append("measured rows differ")
    return "; ".join(parts)


def summary(comparison: Comparison) -> list[tuple[str, str]]:
    """(what, how it compares): one line each."""
    lines = [("result", verdict_in_one_line(comparison)), ("measurements", _measurements(comparison))]
    if comparison.timings:
        lines.append(("timings", f"{counted(len(comparison.timings), 'number')} differ; they do not count"))
    for side, names in zip(side_names(comparison), (comparison.only_a, comparison.only_b)):
        if names:
            lines.append((f"only in {side}", f"experiments {', '.join(names)} (not compared)"))
    lines += [("settings", text) for text in comparison.settings]
    for what, first, second in comparison.origin:
        lines.append((what, first if first == second else f"{first} | {second}"))
    return lines


def listings(comparison: Comparison, only_changed: bool = False) -> list[Listing]:
    """What differs: verdicts, answers to claims, numbers, timings; with `only_changed` the numbers of verdicts only."""
    changed = {one.check for one in comparison.verdicts}
    moved = [one for one in comparison.moved if one.check in changed or not only_changed]
    lone = [(name, f"judged only in {side}") for side, name in _lone(comparison)]
    answers = [(one.claim, one.question, f"{one.a} → {one.b}") for one in comparison.answers]
    found = [
        Listing("Verdicts that changed", ("check", "change", "why"), [_verdict_row(one) for one in comparison.changed]),
        Listing("Judged on one side only", ("check", "where"), lone),
        Listing("Answers to claims that changed", ("claim", "as", "change"), answers),
        Listing("Numbers that differ", _header(comparison), [_number_row(one) for one in moved]),
    ]
    if not only_changed:
        rows = [_number_row(one) for one in comparison.timings]
        found.append(Listing("Timings that differ (they do not count)", _header(comparison), rows))
    return [one for one in found if one.rows]


def print_comparison(console: Console, comparison: Comparison, only_changed: bool = False) -> None:
    """Summary and listings on a terminal."""
    console.print(title(comparison), style="bold", markup=False, highlight=False, soft_wrap=True)
    print_summary(console, summary(comparison))
    for listing in listings(comparison, only_changed):
        print_listing(console, listing)


def print_summary(console: Console, lines: Sequence[tuple[str, str]]) -> None:
    """Aligned lines `what  text`."""
    width = max((len(what) for what, _ in lines), default=0)
    for what, text in lines:
        console.print(f"  {what:<{width}}  {text}", markup=False, highlight=False, soft_wrap=True)


def print_listing(console: Console, listing: Listing) -> None:
    """A title, then each entry's name on a line of its own with what is said about it below."""
    console.print(f"{listing.title}: {len(listing.rows)}", style="bold", markup=False, highlight=False)
    for name, *texts in listing.rows:
        said = "; ".join(text for text in texts if text)
        if len(texts) == 1:
            console.print(f"  {name}  {said}", markup=False, highlight=False, soft_wrap=True)
            continue
        console.print(f"  {name}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"      {said}", style="dim", markup=False, highlight=False, soft_wrap=True)


def blocks(comparison: Comparison, only_changed: bool = False) -> list[Block]:
    """The same as blocks of a page."""
    found: list[Block] = [Heading(title(comparison), 2), Table(("", ""), summary(comparison))]
    for listing in listings(comparison, only_changed):
        found += [Heading(f"{listing.title}: {len(listing.rows)}", 3), Table(listing.header, listing.rows)]
    return found


def page_head(a: str, b: str) -> list[Block]:
    """What the sides are and how a page of comparisons is to be read."""
    return [
        Heading(f"{a} | {b}"),
        Paragraph(
            f"Left {a}, right {b}. Intervals are 95 % intervals. A difference is given in combined standard errors: "
            "those of the difference of two independent estimates, from the widths of their intervals. Runs with the "
            "same seeds are not independent, so this is a scale and no test."
        ),
    ]


def value_text(one: Number) -> str:
    """`0.97 [0.54, 1.41]`; no interval where there is none."""
    text = number(one.value)
    if math.isinf(one.low) or math.isinf(one.high):
        return f"{text} [interval unknown]"
    return text if math.isnan(one.low) else f"{text} [{number(one.low)}, {number(one.high)}]"


def _header(comparison: Comparison) -> tuple[str, ...]:
    a, b = side_names(comparison)
    return ("number", f"{a} | {b}", "n", "difference", "intervals", "paper")


def _number_row(pair: NumberPair) -> tuple[str, ...]:
    n = f"n = {pair.a.n}" if pair.a.n == pair.b.n else f"n = {pair.a.n} | {pair.b.n}"
    meet = {True: "intervals overlap", False: "intervals apart", None: ""}[pair.overlap]
    unit = f" ({pair.unit})" if pair.unit else ""
    paper = "" if math.isnan(pair.paper_value) else f"paper {number(pair.paper_value)}"
    return pair.name, f"{value_text(pair.a)} | {value_text(pair.b)}{unit}", n, movement(pair), meet, paper


def _verdict_row(change: VerdictChange) -> tuple[str, str, str]:
    return change.check, f"{change.a} → {change.b}", "; ".join(change.reasons)


def _lone(comparison: Comparison) -> list[tuple[str, str]]:
    """(side, check) for checks that one side alone has judged."""
    a, b = side_names(comparison)
    return [(a, name) for name in comparison.lone_a] + [(b, name) for name in comparison.lone_b]


def _measurements(comparison: Comparison) -> str:
    if comparison.identical_bytes is None:
        return "not on both sides"
    if comparison.identical_bytes:
        return "the same to the byte"
    if comparison.rows is None:
        return "of two profiles, not compared row by row"
    if not comparison.rows:
        return "the same rows in what both have measured"
    parts = []
    for one in comparison.rows:
        apart = [f"{one.differ:,} of {one.rows:,} rows differ (at most by {one.relative:.1g} of the value)"]
        counts = zip((one.only_a, one.only_b), side_names(comparison))
        apart += [f"{count:,} only in {side}" for count, side in counts if count]
        parts.append(f"{one.experiment}: {', '.join(apart)}")
    return "; ".join(parts)
