"""Which of the usual group sizes for the same completions a step: silent groups, gain, and draws that a redraw needs.

The gain (`grpo_replications.shared.planning.group_size_budget`) depends on the noise ratio r of a run's scores: the
mean square of their scatter over the squared distance of the mean scores of right and wrong completions. It is not in a
log of rewards. SmolLM2-135M on addition gave about 3; long answers are expected to give more. So sizes are judged at
both ends of NOISE_RATIOS unless r is given, and the size is chosen whose worse end is best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_replications.shared.planning.group_size_budget import NOISE_RATIOS, gain
from grpo_replications.shared.planning.solve_rates import SolveRates
from grpo_replications.shared.theory.closed_forms import silent_fraction

USUAL_SIZES = (2, 4, 8, 16, 32, 64)
DEFENSIBLE = 0.75  # of the best size's gain, at every noise ratio considered


@dataclass(frozen=True)
class SizeRow:
    """One size: silent share, gain at each noise ratio over the best size's, draws a kept group takes (DAPO)."""

    group_size: int
    silent: float
    gains: tuple[float, ...]
    draws_per_kept: float


@dataclass(frozen=True)
class SizeChoice:
    """Rows by size; the size whose smallest gain over `noise_ratios` is largest, and the sizes not much worse."""

    noise_ratios: tuple[float, ...]
    rows: list[SizeRow]
    best: int
    defensible: list[int]


def choose_size(rates: SolveRates, sizes: Sequence[int], noise_ratio: float | None = None) -> SizeChoice:
    """Compare `sizes` on problems of these solve rates; at `noise_ratio` alone, or at both ends of NOISE_RATIOS."""
    ratios = NOISE_RATIOS if noise_ratio is None else (noise_ratio,)
    gains = np.array([[gain(rates, size, ratio) for ratio in ratios] for size in sizes])
    gains /= gains.max(axis=0)
    rows = []
    for size, row in zip(sizes, gains):
        silent = float(silent_fraction(rates.rates, rates.counts, size))
        rows.append(SizeRow(size, silent, tuple(map(float, row)), 1 / (1 - silent)))
    worst = gains.min(axis=1)
    defensible = [size for size, one in zip(sizes, worst) if one >= DEFENSIBLE]
    return SizeChoice(tuple(ratios), rows, sizes[int(worst.argmax())], defensible)
