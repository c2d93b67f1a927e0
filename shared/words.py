"""Counts in words, for messages."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 number`, `1,200 numbers`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
