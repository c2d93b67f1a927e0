"""Which completions of a group share how long a prefix: the search behind ``shared.process_sets``.

Shapes: B completions (B = groups * G, the G completions of a group in adjacent rows), T columns, S process sets.
Rows here are *compact*: the real tokens of a row stand at columns 0 .. length-1, and what follows them is ignored.

Two exact searches, without recursion and without hashing: ``row_sets`` (for the CPU) sorts the rows of each group, after
which every set is a run of neighbors; ``pairwise_prefixes`` (torch, for accelerators) compares all pairs of a group,
dropping a pair once it has parted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

FIRST_LOOK = 256  # columns read at first; most rows part within them
SLICE_ROW = 512  # rows at least this wide are handled by one slice per row, narrower ones all together
WIDE = np.iinfo(np.uint32).max  # ids that do not fit below are ranked
PAIR_BLOCK = 64  # columns in the first block of the pairwise search; each later block is four times wider
PAIR_BLOCK_ELEMENTS = 2**24  # most tokens gathered at once by the pairwise search (128 MiB of int64 on either side)


@dataclass(frozen=True)
class RowSets:
    """Every process set of two or more completions that has a token of its own, as a block of rows and of columns.

    ``order`` (B,) permutes the rows so that each set is a run: set s holds rows ``order[begin[s]:end[s]]`` and the
    compact columns ``start[s]`` .. ``stop[s] - 1``. ``spans`` (S, 4), S < B, has a row (begin, end, start, stop) per set.
    A token outside every set belongs to its completion alone. ``copies`` (B,) counts the completions of the group that are
    identical to each row, itself included. All int64.
    """

    order: np.ndarray
    spans: np.ndarray
    copies: np.ndarray


def row_sets(tokens: np.ndarray, lengths: np.ndarray, group_size: int) -> RowSets:
    """Process sets of compact rows: tokens (B, T) integers, lengths (B,).

    Sort the rows of each group; a set is then a run of neighbors whose common prefixes reach beyond those beside it.

    Cost: one reading of the tokens, then O(G log G) comparisons of rows per group, each a memory comparison that stops where
    they part: for common prefixes of length L, O(G L log G) in cache at worst. Where no two rows share more than
    ``FIRST_LOOK`` tokens, only that many columns are read.
    """
    columns = tokens.shape[1]
    order, common = _sorted_neighbors(tokens[:, :FIRST_LOOK], lengths, group_size)
    if columns > FIRST_LOOK and common.max() >= FIRST_LOOK:
        order, common = _sorted_neighbors(tokens, lengths, group_size)
    spans = np.array(_runs(common.tolist()), dtype=np.int64).reshape(-1, 4)
    return RowSets(order, spans, _copies(common, lengths, order, group_size))


def _sorted_neighbors(tokens: np.ndarray, lengths: np.ndarray, group_size: int) -> tuple[np.ndarray, np.ndarray]:
    """An order of the rows that keeps equal prefixes within each group together, and the common prefix of each row in this
    order with the one before it (0 at the first row of a group); both (B,). Prefixes count up to the columns given."""
    rows, columns = tokens.shape
    table = _narrow(tokens, lengths)
    whole_rows = table.view(np.dtype((np.void, columns * table.itemsize))).ravel()
    order = np.empty(rows, dtype=np.int64)
    for first in range(0, rows, group_size):
        order[first : first + group_size] = whole_rows[first : first + group_size].argsort(kind="stable")
    order += np.arange(rows) // group_size * group_size
    table = table[order]
    differs = table[1:] != table[:-1]
    parts_at = differs.argmax(axis=1)
    parts_at[~differs[np.arange(rows - 1), parts_at]] = columns
    length = lengths[order]
    common = np.zeros(rows, dtype=np.int64)
    np.minimum(np.minimum(length[1:], length[:-1]), parts_at, out=common[1:])
    common[::group_size] = 0
    return order, common


def _narrow(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The same rows in the narrowest unsigned integers, equal where tokens are equal, with one more number as padding.

    Rows are sorted by their bytes, so the fewer bytes the faster; token ids of most vocabularies fit in two.
    """
    columns = tokens.shape[1]
    padded = np.flatnonzero(lengths < columns)
    unsigned = np.dtype(f"u{tokens.itemsize}")
    tokens = tokens.view(unsigned)
    top = tokens.max()
    if top >= WIDE:  # negative or huge: perhaps only at padding, perhaps not
        tokens = np.where(np.arange(columns) < lengths[:, None], tokens, 0)
        top = tokens.max()
        if top >= WIDE:
            values, rank = np.unique(tokens, return_inverse=True)
            tokens, top = rank.reshape(tokens.shape), values.size
    narrow = np.dtype(np.uint16 if top < np.iinfo(np.uint16).max else np.uint32)
    table = tokens.astype(narrow)
    if padded.size:
        padding = np.iinfo(narrow).max
        if columns < SLICE_ROW:
            table[np.arange(columns) >= lengths[:, None]] = padding
        else:
            for row, length in zip(padded.tolist(), lengths[padded].tolist()):
                table[row, length:] = padding
    return table


def _runs(common: list[int]) -> list[tuple[int, int, int, int]]:
    """Maximal runs of sorted rows that share more tokens than any row beside them: (begin, end, start, stop) each.

    ``common`` as from ``_sorted_neighbors``. Each run is one process set of two or more rows, with the tokens
    ``start .. stop - 1`` that exactly its rows share. One pass with a stack of the runs that are still open.
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


def _copies(common: np.ndarray, lengths: np.ndarray, order: np.ndarray, group_size: int) -> np.ndarray:
    """How many rows of its group are identical to each row: those that share all tokens of both; (B,)."""
    same = (lengths[order[1:]] == lengths[order[:-1]]) & (common[1:] == lengths[order[1:]])
    same[group_size - 1 :: group_size] = False  # the first row of a group has no neighbor before it
    kind = np.zeros(order.size, dtype=np.int64)
    np.cumsum(~same, out=kind[1:])
    copies = np.empty_like(kind)
    copies[order] = np.bincount(kind)[kind]
    return copies


def pairwise_prefixes(tokens: torch.Tensor, lengths: torch.Tensor, group_size: int) -> torch.Tensor:
    """Length of the common prefix of every two completions of a group, (groups, G, G) int64; a row's own length with itself.

    tokens (B, T) integers, compact; lengths (B,) int64; any device. O(groups G^2 L) comparisons for prefixes of length
    L, in blocks of columns that hold at most ``PAIR_BLOCK_ELEMENTS`` tokens; one synchronisation per block.
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
