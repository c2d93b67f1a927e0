"""The exact sign test on differences paired by seed, with the level corrected for cells judged at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.estimates import Estimate
from grpo_replications.shared.statistics.states import FAILS, HOLDS, LEVEL, MINIMUM_SEEDS, UNDECIDED


@dataclass(frozen=True)
class SignTest:
    """Seeds won, lost and tied; the exact two-sided p of wins against losses; the share won of the seeds not tied."""

    wins: int
    losses: int
    ties: int
    p_value: float
    share: Estimate
    state: str

    @property
    def n(self) -> int:
        """Seeds, ties included."""
        return self.wins + self.losses + self.ties


def minimum_seeds(level: float = LEVEL, cells: int = 1) -> int:
    """Fewest seeds whose unanimous sign test could decide: 6 for one cell at 95 %, 8 for four; never fewer than 6."""
    check_level(level, cells)
    return max(MINIMUM_SEEDS, math.ceil(1 + math.log2(cells / (1 - level)) - 1e-12))


def corrected_level(level: float, cells: int) -> float:
    """Level of each of `cells` intervals that keeps all of them right together at `level` (Bonferroni)."""
    check_level(level, cells)
    return 1 - (1 - level) / cells


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Holm's adjusted p-values, in the order given: reject those at most 1 - level.

    Holm (1979) rejects whatever Bonferroni rejects, and sometimes more, with the same chance of any false rejection.
    A nan stays nan and counts as one of the cells.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)  # nan last
    scaled = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.where(np.isnan(scaled), np.nan, np.minimum(1, np.fmax.accumulate(scaled)))
    return adjusted


def sign_test(differences: np.ndarray, level: float = LEVEL, cells: int = 1) -> SignTest:
    """Exact two-sided sign test of differences `(n,)` paired by seed.

    A tie (difference exactly 0) is no win: it is dropped from the test, reported, and stands against a decision, which
    needs more than half of all seeds on one side; so a majority of ties never decides.  The p-value must be at most
    (1 - level) / cells (Bonferroni; `holm` gives adjusted p-values), and at least `minimum_seeds` seeds must not be
    tied.  `share` is wins of the seeds that are not tied, with the Clopper-Pearson interval at `level`.
    A difference that is no number makes p and share nan and the state undecided.
    """
    from scipy.stats import binomtest

    check_level(level, cells)
    differences = one_per_seed(differences)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    ties = int((differences == 0).sum())
    if np.isnan(differences).any():
        unknown = Estimate(math.nan, math.nan, math.nan, len(differences), "Clopper-Pearson", level)
        return SignTest(wins, losses, ties, math.nan, unknown, UNDECIDED)
    untied = wins + losses
    if untied == 0:
        return SignTest(0, 0, ties, 1.0, Estimate(math.nan, 0.0, 1.0, 0, "Clopper-Pearson", level), UNDECIDED)
    test = binomtest(wins, untied)
    interval = test.proportion_ci(level)
    share = Estimate(wins / untied, float(interval.low), float(interval.high), untied, "Clopper-Pearson", level)
    significant = test.pvalue <= (1 - level) / cells * (1 + 1e-9) and untied >= minimum_seeds(level, cells)
    state = UNDECIDED
    if significant and 2 * max(wins, losses) > len(differences):
        state = HOLDS if wins > losses else FAILS
    return SignTest(wins, losses, ties, float(test.pvalue), share, state)


def one_per_seed(values: np.ndarray) -> np.ndarray:
    """The values as a float array of shape `(n,)`, n at least 1; raises ReplicationError for another shape."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise ReplicationError(f"one difference per seed is wanted, at least one; the shape given is {values.shape}")
    return values


def check_level(level: float, cells: int) -> None:
    """Raises ReplicationError unless the level lies between 0 and 1 and there is at least one cell."""
    if not 0 < level < 1 or cells < 1:
        raise ReplicationError(f"level {level:g} and {cells} cells: give a level between 0 and 1 and at least one cell")
