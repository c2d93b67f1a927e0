"""Where the real tokens of padded rows stand, and moving them to the left and back; numpy, for ``shared.process_sets``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SLICE_ROW = 512  # rows at least this wide are moved by one slice per row, narrower ones all together


@dataclass(frozen=True)
class RowLayout:
    """A mask (B, T) of real tokens; per row the ``first`` (B,) real column and the ``lengths`` (B,), the number of real
    tokens; ``one_run`` if no row has padding between real tokens; ``at_left`` if moreover all rows begin at column 0."""

    mask: np.ndarray
    first: np.ndarray
    lengths: np.ndarray
    one_run: bool
    at_left: bool

    @classmethod
    def of(cls, mask: np.ndarray) -> RowLayout:
        """Layout of a boolean mask (B, T), T > 0."""
        columns, total = mask.shape[1], np.count_nonzero(mask)
        lengths = mask.argmin(axis=1)  # the first padded column, but 0 also for a row without any
        lengths[mask[:, 0] & (lengths == 0)] = columns
        if lengths.sum() == total:
            return cls(mask, np.zeros_like(lengths), lengths, True, True)
        first = mask.argmax(axis=1)
        lengths = (columns - mask[:, ::-1].argmax(axis=1) - first) * mask.any(axis=1)
        if lengths.sum() == total:
            return cls(mask, first, lengths, True, False)
        return cls(mask, first, np.count_nonzero(mask, axis=1), False, False)

    def real_at_left(self) -> np.ndarray:
        """The mask after ``to_left``, bool (B, T)."""
        return self.mask if self.at_left else np.arange(self.mask.shape[1]) < self.lengths[:, None]

    def to_left(self, table: np.ndarray) -> np.ndarray:
        """Real entries of (B, T) moved to columns 0 .. length-1, in order; 0 behind them, or the entry that was there."""
        if self.at_left:
            return table
        moved = np.zeros(table.shape, dtype=table.dtype)
        if self.one_run and table.shape[1] >= SLICE_ROW:
            for row, (at, length) in enumerate(zip(self.first.tolist(), self.lengths.tolist())):
                moved[row, :length] = table[row, at : at + length]
        else:
            moved[self.real_at_left()] = table[self.mask]
        return moved

    def from_left(self, moved: np.ndarray) -> np.ndarray:
        """The inverse of ``to_left`` as int64, for a table (B, T) that is 0 behind the lengths."""
        if self.at_left:
            return moved.astype(np.int64)
        table = np.zeros(moved.shape, dtype=np.int64)
        if self.one_run and table.shape[1] >= SLICE_ROW:
            for row, (at, length) in enumerate(zip(self.first.tolist(), self.lengths.tolist())):
                table[row, at : at + length] = moved[row, :length]
        else:
            table[self.mask] = moved[self.real_at_left()]
        return table
