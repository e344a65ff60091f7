"""Pack samples of different lengths into rows of limited length, as a function of their lengths.

Owns two ways. *Concatenate and cut*: all samples in a row, cut at every multiple of the limit;
only the last row has room left. *Best fit decreasing* (Johnson, "Near-optimal bin packing
algorithms", 1973): the longest samples first, each into the row with the least room that it fits
into; no sample is cut. Samples of length 0 are in no row. The planner decides which samples come
together, and in which order rows are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rayingest.plan.order.bins import Bins


@dataclass(frozen=True)
class Packing:
    """Rows of at most `limit`. With `cut`, samples are cut; else none may be longer than a row."""

    limit: int
    cut: bool

    def __str__(self) -> str:
        return f"{'cut' if self.cut else 'best fit'} at {self.limit}"

    @property
    def row(self) -> str:
        return "packed rows"

    @property
    def sorted_by_length(self) -> bool:
        return not self.cut

    @property
    def longest(self) -> int | None:
        return None if self.cut else self.limit

    def count(self, lengths: np.ndarray) -> int:
        if self.cut:
            return -(-int(lengths.sum(dtype=np.int64)) // self.limit)
        return sum(rows for room, _, _, rows in _fits(lengths, self.limit) if room == self.limit)

    def most(self, lengths: np.ndarray) -> int:
        return self.count(lengths)  # a row is always as full as it can be

    def bins(self, lengths: np.ndarray, count: int | None = None) -> Bins:
        return _cut(lengths, self.limit) if self.cut else _best_fit(lengths, self.limit)

    def too_long(self, length: int) -> str:
        return (
            f"is {length:,} long, more than a packed row of {self.limit:,}: cut samples "
            "(cut=True), shorten them in .map, leave them out with .filter, or take a longer row"
        )


def _cut(lengths: np.ndarray, limit: int) -> Bins:
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(lengths.sum(dtype=np.int64))
    bounds = np.unique(np.concatenate([[0], ends, np.arange(limit, total, limit)]))
    first, last = bounds[:-1], bounds[1:]
    sample = np.searchsorted(ends, first, side="right")
    start = (ends - lengths)[sample]
    begins = np.searchsorted(first, np.arange(-(-total // limit) + 1) * limit)
    return Bins(begins, sample, first - start, last - start)


def _best_fit(lengths: np.ndarray, limit: int) -> Bins:
    """Rows are numbered as they are begun; samples of a row are in ascending order."""
    longest_first = np.argsort(-lengths.astype(np.int64), kind="stable")[
        : np.count_nonzero(lengths)
    ]
    row_of: list[int] = []  # of the samples, the longest first
    open_rows: dict[int, list[int]] = {}  # by the room that they have
    count = 0
    for room, length, each, rows in _fits(lengths, limit):
        if room == limit:
            chosen = list(range(count, count + rows))
            count += rows
        else:
            chosen = open_rows[room][-rows:]
            del open_rows[room][-rows:]
        for _ in range(each):
            row_of += chosen
        open_rows.setdefault(room - each * length, []).extend(chosen)
    return Bins.of_whole(np.array(row_of, np.int64), longest_first, lengths)


def _fits(lengths: np.ndarray, limit: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (room, length, each, rows): `rows` rows with this room take `each` samples of a length.

    Rows with room for `limit` are new. Samples of one length are dealt with together, so that this
    costs a few steps a length; which rooms have rows is one bit each of an integer.
    """
    counts = np.bincount(lengths)
    free = [0] * limit
    rooms = 0
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length]) if length else 0
        while left:
            enough = rooms >> length
            room = length + (enough & -enough).bit_length() - 1 if enough else limit
            each = min(room // length, left)
            rows = left // each if room == limit else min(free[room], left // each)
            yield room, length, each, rows
            left -= each * rows
            if room < limit:
                free[room] -= rows
                rooms ^= 0 if free[room] else 1 << room
            after = room - each * length
            if after:
                free[after] += rows
                rooms |= 1 << after
