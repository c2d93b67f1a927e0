"""What a comparison can end in, and the numbers that every decision shares; imports no library."""

from __future__ import annotations

HOLDS, FAILS, EQUIVALENT, UNDECIDED = "holds", "fails", "equivalent", "undecided"
LEVEL = 0.95
MINIMUM_SEEDS = 6  # five seeds out of five have an exact two-sided p of 0.0625
