"""The samples of one step: the result of a plan, which executors and dispatch read.

Owns the names and meanings of their arrays, and the layout of packed rows: the arithmetic that
decoders and the planner share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class StepSamples:
    """A rank's samples of one step, in row order; arrays with one entry a sample, int64 or bool.

    A rank without rows (in a short last batch) still has one entry: the fields of that sample give
    the empty batch its columns. `rows` says how many of the entries are rows of the batch.

    `pass_number`: which pass over the data the step is in.
    `block`, `row`, `ordinal`: where the sample lies: block, row in the block, number in the
    manifest.
    `valid`: False where the row repeats another sample.
    `expires`: the first step, counted in the epoch, at which nothing of the sample's window is left
    to take.
    `position`: where the sample is in the pass's sequence; `window_begin` and `window_end` are the
    positions that its window covers before it is permuted. A window at a lane's end that is shorter
    than others covers a part of its neighbour; in file order the window is the whole sequence.
    `length`, `layout`: for packed rows. Each sample that is in one or more rows is listed once:
    `length` is how long it has to be, `layout` says which part of it is where.
    `size`: how many samples the step counts for, where that is not `rows`.
    `source`: in a mixture, the number of the sample's source; `ordinal` is then the source's.
    `passes`: the pass that keys the sample's random numbers, where that is not `pass_number`: the
    pass over its source in a mixture, one for each repeat of a sample that is drawn several times.
    """

    epoch: int
    step: int
    pass_number: int
    rows: int
    block: np.ndarray
    row: np.ndarray
    ordinal: np.ndarray
    valid: np.ndarray
    expires: np.ndarray
    position: np.ndarray
    window_begin: np.ndarray
    window_end: np.ndarray
    length: np.ndarray | None = None
    layout: Layout | None = None
    size: int | None = None
    source: np.ndarray | None = None
    passes: np.ndarray | None = None

    @property
    def first(self) -> tuple[int, int]:
        """Pass and ordinal of the first sample, which key the random numbers of a whole step."""
        pass_number = self.pass_number if self.passes is None else int(self.passes[0])
        return pass_number, int(self.ordinal[0])


@dataclass(frozen=True)
class Layout:
    """`rows` packed rows of `length` each, and the pieces in them, row after row, in order.

    A piece is the part from `begin` to `end` of the step's sample number `sample`; it is in row
    `row`. All int64, one entry a piece. `valid` (bool[rows]): False for rows that repeat others.
    Positions count values in all rows laid end to end.
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
