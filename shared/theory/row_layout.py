"""Where the real tokens of padded rows stand, and moving them to the left and back; for `process_sets`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SLICE_ROW = 512  # rows at least this wide are moved by one slice per row, narrower ones all together


@dataclass(frozen=True)
class RowLayout:
    """A mask (B, T) of real tokens and what it says of each row; numpy.

    `first` (B,) the first real column; `lengths` (B,) the number of real tokens; `one_run` whether no row has
    padding between real tokens; `at_left` whether moreover every row begins at column 0.
    """

    mask: np.ndarray
    first: np.ndarray
    lengths: np.ndarray
    one_run: bool
    at_left: bool

    @classmethod
    def of(cls, mask: np.ndarray) -> RowLayout:
        """Layout of a boolean mask (B, T), T > 0."""
        rows, columns = mask.shape
        lengths = mask.argmin(axis=1)  # the first padded column, but 0 also for a row without any
        lengths[mask[:, 0] & (lengths == 0)] = columns
        if lengths.sum() == np.count_nonzero(mask):
            return cls(mask, np.zeros_like(lengths), lengths, True, True)
        first = mask.argmax(axis=1)
        nonempty = mask[np.arange(rows), first]
        runs = np.count_nonzero(mask[:, 0]) + np.count_nonzero(mask[:, 1:] > mask[:, :-1])
        if runs > np.count_nonzero(nonempty):
            return cls(mask, first, np.count_nonzero(mask, axis=1), False, False)
        last = (mask[:, :-1] > mask[:, 1:]).argmax(axis=1)
        last[mask[:, -1]] = columns - 1
        return cls(mask, first, (last + 1 - first) * nonempty, True, False)

    def real_at_left(self) -> np.ndarray:
        """The mask after `to_left`, bool (B, T)."""
        if self.at_left:
            return self.mask
        return np.arange(self.mask.shape[1], dtype=np.int32) < self.lengths[:, None].astype(np.int32)

    def to_left(self, table: np.ndarray, width: int, dtype: np.dtype, fill: int) -> np.ndarray:
        """The first `width` real entries of each row of (B, T), cast to `dtype`, with `fill` behind them."""
        rows, columns = table.shape
        if self.at_left:
            moved = table[:, :width].astype(dtype, order="C")
            if columns >= SLICE_ROW:
                for row in np.flatnonzero(self.lengths < width).tolist():
                    moved[row, self.lengths[row] :] = fill
            else:
                moved[~self.mask[:, :width]] = fill
        elif self.one_run and columns >= SLICE_ROW:
            moved = np.full((rows, width), fill, dtype=dtype)
            for row, (at, length) in enumerate(zip(self.first.tolist(), np.minimum(self.lengths, width).tolist())):
                moved[row, :length] = table[row, at : at + length]
        else:
            moved = np.full((rows, columns), fill, dtype=dtype)
            moved[self.real_at_left()] = table[self.mask]
            moved = np.ascontiguousarray(moved[:, :width])
        return moved

    def from_left(self, moved: np.ndarray) -> np.ndarray:
        """The inverse of `to_left` as int64, for a table (B, T) that is 0 behind the lengths."""
        if self.at_left:
            return moved.astype(np.int64)
        table = np.empty(moved.shape, dtype=np.int64)
        if self.one_run and table.shape[1] >= SLICE_ROW:
            for row, (at, length) in enumerate(zip(self.first.tolist(), self.lengths.tolist())):
                table[row, :at] = 0
                table[row, at : at + length] = moved[row, :length]
                table[row, at + length :] = 0
        else:
            table[~self.mask] = 0
            table[self.mask] = moved[self.real_at_left()]
        return table
