"""Exact binomial counts at a cost that hardly grows with G: inversion by table look-up, refined only where undecided.

A count k ~ Binomial(G, p) is the number of values F_0 ... F_{G-1} of its distribution function that a uniform u reaches
(inversion). Both p and the leading bits of u fall into one cell of a square grid. In nearly every cell all (p, u) give
the same k: F_j falls in p, so k grows in both, and the two opposite corners decide. There k is read from a table. In
the other cells, at most about 2 G / CELLS of the unit square, u gets its remaining bits and is compared with the
distribution function itself. So p is never rounded: the counts are those of inversion in float64.

The leading bits of u are a 16-bit word, four to a 64-bit draw; the remaining bits are a float64 uniform of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import betainc

CELL_BITS = 11
CELLS = 2**CELL_BITS  # per side of the grid. The table, CELLS**2 bytes or 4 MB, should stay in a core's cache
WORD_BITS = 16
LARGEST_GROUP = 126
# What a byte of the table says: a count below 128; 128 + k where k and k + 1 are possible; 255 where more are.
_TWO, _MANY = 128, 255
# Corners are compared with this much room, far above the rounding errors of the distribution function.
_MARGIN = 1e-9


def binomial_counts(
    p: np.ndarray, group_size: int, words: np.ndarray, remaining_bits: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Draw one count per entry: Binomial(group_size, p).

    Args:
        p: success probabilities in [0, 1], float64, (n,).
        group_size: G, from 1 to 126.
        words: random 16-bit words, uint16, (n,): the leading bits of each uniform.
        remaining_bits: called at most once, with the positions (m,) that need more bits, ascending; returns (m,)
            uniforms in [0, 1).

    Returns:
        Counts, uint8, (n,).

    Raises:
        ValueError: the group size is out of range.

    Cost: O(n), plus one incomplete beta function for each of the n G / CELLS or so undecided entries. The first call
    with a group size builds its table, 0.1 s.
    """
    # Multiplying by a power of two is exact, so each p finds the cell that holds it; p = 1 has a row of its own.
    cell = (p * CELLS).astype(np.int64)
    cell <<= CELL_BITS
    cell += words >> (WORD_BITS - CELL_BITS)
    counts = _table(group_size).take(cell)
    undecided = np.flatnonzero(counts >= _TWO)
    if len(undecided):
        u = (words[undecided] + remaining_bits(undecided)) / 2**WORD_BITS
        counts[undecided] = _decide(counts[undecided], p[undecided], u, group_size)
    return counts


def _decide(codes: np.ndarray, p: np.ndarray, u: np.ndarray, group_size: int) -> np.ndarray:
    """Counts of entries whose cell leaves two or more open: codes, p and u (m,) -> uint8 (m,)."""
    least = (codes & (_TWO - 1)).astype(np.float64)
    counts = codes & (_TWO - 1)
    # P(k <= least) = I_{1-p}(G - least, least + 1), the regularized incomplete beta function.
    counts += betainc(np.maximum(group_size - least, 1.0), least + 1.0, 1.0 - p) <= u
    many = np.flatnonzero(codes == _MANY)
    if len(many):
        counts[many] = invert(p[many], u[many], group_size)
    return counts


def distribution_function(p: np.ndarray, group_size: int) -> np.ndarray:
    """P(Binomial(G, p) <= k) for k = 0 ... G: (n,) -> (n, G + 1).

    The terms follow from each other by ratios, starting from no success, or where p > 1/2 from no failure, so that the
    first term cannot underflow. Time and memory O(n G).
    """
    small = np.minimum(p, 1.0 - p)
    terms = np.empty((len(p), group_size + 1))
    terms[:, 0] = (1.0 - small) ** group_size
    number = np.arange(1, group_size + 1)
    terms[:, 1:] = (small / (1.0 - small))[:, None] * ((group_size + 1 - number) / number)
    np.cumprod(terms, axis=1, out=terms)
    mirrored = p > 0.5
    terms[mirrored] = terms[mirrored, ::-1]
    return np.cumsum(terms, axis=1)


def invert(p: np.ndarray, u: np.ndarray, group_size: int) -> np.ndarray:
    """How many values F_0 ... F_{G-1} of the distribution function u reaches: p and u (n,) -> (n,). O(n G)."""
    return (distribution_function(p, group_size)[:, :-1] <= u[:, None]).sum(axis=1)


@lru_cache(maxsize=4)
def _table(group_size: int) -> np.ndarray:
    """What each cell of (p, u) says, row after row, the last row for p = 1: uint8, ((CELLS + 1) * CELLS,)."""
    if not 1 <= group_size <= LARGEST_GROUP:
        raise ValueError(f"group_size must be in 1 ... {LARGEST_GROUP}, got {group_size}")
    thresholds = distribution_function(np.arange(CELLS + 1) / CELLS, group_size)[:, :-1]
    least = _reached(thresholds + _MARGIN)[:-1, :-1]  # at the corner of the smallest p and u
    most = _reached(thresholds - _MARGIN)[1:, 1:]  # at the opposite corner
    table = np.full((CELLS + 1, CELLS), group_size, dtype=np.uint8)
    table[:-1] = np.select([most == least, most == least + 1], [least, least + _TWO], default=_MANY)
    return table.ravel()


def _reached(thresholds: np.ndarray) -> np.ndarray:
    """How many thresholds of each row (n, G) lie at or below each grid line of u: uint8, (n, CELLS + 1)."""
    rows, columns = len(thresholds), CELLS + 2
    first_line = np.clip(np.ceil(thresholds * CELLS), 0, CELLS + 1).astype(np.int64)
    flat = first_line + np.arange(rows)[:, None] * columns
    histogram = np.bincount(flat.ravel(), minlength=rows * columns).reshape(rows, columns)
    return np.cumsum(histogram, axis=1, dtype=np.uint8)[:, : CELLS + 1]
