"""The layout of packed rows: which piece of which sample lies where.

Owns the arithmetic that decoders and the planner share. Positions count values in all rows laid
end to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Layout:
    """`rows` packed rows of `length` each, and the pieces in them, row after row, in order.

    A piece is the part from `begin` to `end` of the step's sample number `sample`; it is in row
    `row`. All int64, one entry a piece. `valid` (bool[rows]): False for rows that repeat others.
    """

    length: int
    rows: int
    valid: np.ndarray
    row: np.ndarray
    sample: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    def without_rows(self) -> Layout:
        """Return a layout of no rows."""
        none = np.zeros(0, np.int64)
        return Layout(self.length, 0, np.zeros(0, bool), none, none, none, none)

    @cached_property
    def places(self) -> np.ndarray:
        """int64: the position where each piece begins."""
        size = self.end - self.begin
        before = np.cumsum(size) - size
        first = np.searchsorted(self.row, self.row)
        return np.asarray(self.row * self.length + before - before[first])

    @cached_property
    def segments(self) -> tuple[np.ndarray, np.ndarray]:
        """The position where each segment begins, and the last ends, and the number of its piece.

        A segment is a piece, or the rest of a row, whose number is -1.

        int64[segments + 1] and int64[segments].
        """
        ends = self.places + self.end - self.begin
        left = ends[ends % self.length > 0]
        left = left[~np.isin(left, self.places)]
        begins = np.concatenate([self.places, left])
        piece = np.concatenate([np.arange(len(self.places)), np.full(len(left), -1)])
        order = np.argsort(begins, kind="stable")
        return np.append(begins[order], self.rows * self.length), piece[order]
