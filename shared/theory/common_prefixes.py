"""Which completions of a group share how long a prefix: the search behind `shared.theory.process_sets`.

Shapes: B completions (B = groups * G, the G completions of a group in adjacent rows), T columns, S process sets.
A *compact* row has its real tokens at columns 0 .. length-1.

Two exact searches, without recursion and without hashing: `row_sets` (numpy, for the CPU) sorts the rows of each
group, after which every set is a run of neighbors; `pairwise_prefixes` (torch, for accelerators) compares all pairs
of a group, dropping a pair once it has parted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from grpo_replications.shared.theory.row_layout import RowLayout

FIRST_LOOK = 256  # columns read at first; most rows part within them
WIDE = np.iinfo(np.uint32).max  # ids that do not fit below are ranked
PAIR_BLOCK = 64  # columns in the first block of the pairwise search; each later block is four times wider
PAIR_BLOCK_ELEMENTS = 2**24  # most tokens gathered at once by the pairwise search (128 MiB of int64 on either side)


@dataclass(frozen=True)
class RowSets:
    """Every process set of two or more completions that has a token of its own, as a block of rows and of columns.

    `order` (B,) permutes the rows so that each set is a run: set s holds rows `order[begin[s]:end[s]]` and the
    compact columns `start[s]` .. `stop[s] - 1`. `spans` (S, 4), S < B, has a row (begin, end, start, stop) for
    each set. A token outside every set belongs to its completion alone. `copies` (B,) counts the completions of the
    group that are identical to each row, itself included. All int64.
    """

    order: np.ndarray
    spans: np.ndarray
    copies: np.ndarray


def row_sets(tokens: np.ndarray, layout: RowLayout, group_size: int) -> RowSets:
    """Process sets of padded rows: tokens (B, T) integers and the layout of their mask.

    Sort the rows of each group; a set is then a run of neighbors whose common prefixes reach beyond those beside it.

    Cost: one reading of the tokens, then O(G log G) comparisons of rows per group, each a memory comparison that stops
    where they part: for common prefixes of length L, O(G L log G) at worst. Where no two rows share `FIRST_LOOK`
    tokens, no more columns than that are looked at.
    """
    columns = tokens.shape[1]
    order, common = _sorted_neighbors(tokens, layout, min(columns, FIRST_LOOK), group_size)
    if columns > FIRST_LOOK and common.max() >= FIRST_LOOK:
        order, common = _sorted_neighbors(tokens, layout, columns, group_size)
    spans = np.array(_runs(common.tolist()), dtype=np.int64).reshape(-1, 4)
    return RowSets(order, spans, _copies(common, layout.lengths[order], order, group_size))


def _sorted_neighbors(
    tokens: np.ndarray, layout: RowLayout, width: int, group_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sort the rows of each group by their first `width` tokens, so that equal prefixes stand together.

    Returns the order and the common prefix of each row in this order with the one before it, at most `width`, 0 at
    the first row of a group; both (B,).
    """
    rows = tokens.shape[0]
    table = _narrow(tokens, layout, width)
    row_bytes = table.view(np.dtype((np.void, width * table.itemsize))).ravel()
    order = np.empty(rows, dtype=np.int64)
    for first in range(0, rows, group_size):
        order[first : first + group_size] = row_bytes[first : first + group_size].argsort(kind="stable")
    order += np.arange(rows) // group_size * group_size
    table = table[order]
    differs = table[1:] != table[:-1]
    parts_at = differs.argmax(axis=1)
    parts_at[~differs[np.arange(rows - 1), parts_at]] = width
    length = layout.lengths[order]
    common = np.zeros(rows, dtype=np.int64)
    np.minimum(np.minimum(length[1:], length[:-1]), parts_at, out=common[1:])
    common[::group_size] = 0
    return order, common


def _narrow(tokens: np.ndarray, layout: RowLayout, width: int) -> np.ndarray:
    """The first `width` real tokens of each row in the narrowest unsigned integers, (B, width), contiguous.

    Equal numbers mean equal tokens, and behind the end of a row stands a number that no token has. Rows are sorted by
    their bytes, so the fewer bytes the faster; the ids of most vocabularies fit in two or four.
    """
    tokens = tokens.view(np.dtype(f"u{tokens.itemsize}"))
    top = (tokens[:, :width] if layout.at_left else tokens).max()
    if top >= WIDE:  # negative or huge: perhaps only under padding
        tokens = np.where(layout.mask, tokens, 0)
        top = tokens.max()
    if top >= WIDE:
        values, ranks = np.unique(tokens, return_inverse=True)
        tokens, top = ranks.reshape(tokens.shape), values.size
    narrow = np.dtype(np.uint16 if top < np.iinfo(np.uint16).max else np.uint32)
    return layout.to_left(tokens, width, narrow, np.iinfo(narrow).max)


def _runs(common: list[int]) -> list[tuple[int, int, int, int]]:
    """Maximal runs of sorted rows that share more tokens than any row beside them: (begin, end, start, stop) each.

    `common` as from `_sorted_neighbors`. Each run is one process set of two or more rows, with the tokens
    `start .. stop - 1` that exactly its rows share. One pass with a stack of the runs that are still open.
    """
    found = []
    open_runs: list[tuple[int, int]] = [(0, 0)]  # (stop, begin), stops ascending; the bottom is never closed
    for position, shared in enumerate([*common[1:], 0], start=1):
        begin = position - 1
        while open_runs[-1][0] > shared:
            stop, begin = open_runs.pop()
            found.append((begin, position, max(shared, open_runs[-1][0]), stop))
        if open_runs[-1][0] < shared:
            open_runs.append((shared, begin))
    return found


def _copies(common: np.ndarray, length: np.ndarray, order: np.ndarray, group_size: int) -> np.ndarray:
    """How many rows of its group are identical to each row: those that share all tokens of both; (B,).

    `common` and `length` in the order of the sorted rows.
    """
    same = (length[1:] == length[:-1]) & (common[1:] == length[1:])
    same[group_size - 1 :: group_size] = False  # the first row of a group has no neighbor before it
    kind = np.zeros(order.size, dtype=np.int64)
    np.cumsum(~same, out=kind[1:])
    copies = np.empty_like(kind)
    copies[order] = np.bincount(kind)[kind]
    return copies


def pairwise_prefixes(tokens: torch.Tensor, lengths: torch.Tensor, group_size: int) -> torch.Tensor:
    """Length of the common prefix of every two completions of a group, (groups, G, G) int64; with itself, its length.

    tokens (B, T) integers, compact; lengths (B,) int64; any device. O(groups G^2 L) comparisons for prefixes of length
    L, in blocks of columns that hold at most `PAIR_BLOCK_ELEMENTS` tokens; one synchronization per block.
    """
    rows, columns = tokens.shape
    device = tokens.device
    groups = rows // group_size
    first, second = torch.triu_indices(group_size, group_size, offset=1, device=device)
    base = torch.arange(groups, device=device).unsqueeze(1) * group_size
    one, other = (base + first).flatten(), (base + second).flatten()
    prefix = torch.minimum(lengths[one], lengths[other])
    alive = torch.nonzero(prefix > 0).squeeze(1)
    low, width = 0, PAIR_BLOCK
    while low < columns and alive.numel():
        high = min(columns, low + max(1, min(width, PAIR_BLOCK_ELEMENTS // alive.numel())))
        differs = tokens[one[alive], low:high] != tokens[other[alive], low:high]
        columns_here = torch.arange(low, high, device=device)
        parts_at = torch.where(differs, columns_here, columns).amin(dim=1)
        prefix[alive] = torch.minimum(prefix[alive], parts_at)
        alive = alive[prefix[alive] > high]
        low, width = high, 4 * width
    table = torch.diag_embed(lengths.view(groups, group_size))
    prefix = prefix.view(groups, first.numel())
    table[:, first, second] = prefix
    table[:, second, first] = prefix
    return table
