"""Words for messages and pages: counts, and names without trade marks."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 number`, `1,200 numbers`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def without_marks(name: str) -> str:
    """The name of a processor without its trade marks: `Intel Xeon Processor`."""
    return name.replace("(R)", "").replace("(TM)", "")
