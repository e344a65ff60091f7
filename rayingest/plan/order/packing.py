"""Packing: samples of different lengths put together into groups of limited length, as a function of their lengths.

Owns two ways. *Concatenate and cut*: all samples in a row, cut at every multiple of the limit; nothing is wasted but in
the last group. *Best fit decreasing* (Johnson, "Near-optimal bin packing algorithms", 1973): the longest samples first,
each into the group with the least room that it fits in; none is cut. Samples of length 0 have nothing to give, and are
in no group. Which samples come together, and in which order groups are taken, is the planner's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rayingest.plan.order.bins import Groups


@dataclass(frozen=True)
class Packing:
    """Groups of at most `limit`; samples are cut for it or, without `cut`, must be no longer than that."""

    limit: int
    cut: bool

    def __str__(self) -> str:
        return f"{'cut' if self.cut else 'best fit'} at {self.limit}"

    @property
    def by_length(self) -> bool:
        return not self.cut

    @property
    def longest(self) -> int | None:
        return None if self.cut else self.limit

    def count(self, lengths: np.ndarray) -> int:
        if self.cut:
            return -(-int(lengths.sum(dtype=np.int64)) // self.limit)
        return sum(
            groups for room, _, _, groups in _fits(lengths, self.limit) if room == self.limit
        )

    def most(self, lengths: np.ndarray) -> int:
        return self.count(lengths)  # a row is always as full as it can be

    def groups(self, lengths: np.ndarray, count: int | None = None) -> Groups:
        return _cut(lengths, self.limit) if self.cut else _best_fit(lengths, self.limit)

    def too_long(self, length: int) -> str:
        return (
            f"is {length:,} long, more than a packed row of {self.limit:,}: cut samples (cut=True), shorten them in "
            ".map, leave them out with .filter, or take a longer row"
        )


def _cut(lengths: np.ndarray, limit: int) -> Groups:
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    bounds = np.unique(np.concatenate([[0], ends, np.arange(limit, total, limit)]))
    first, last = bounds[:-1], bounds[1:]
    sample = np.searchsorted(ends, first, side="right")
    start = (ends - lengths)[sample]
    begins = np.searchsorted(first, np.arange(-(-total // limit) + 1) * limit)
    return Groups(begins, sample, first - start, last - start)


def _best_fit(lengths: np.ndarray, limit: int) -> Groups:
    """Groups are numbered as they are begun; in a group, samples are in the order in which they came."""
    longest_first = np.argsort(-lengths.astype(np.int64), kind="stable")[
        : np.count_nonzero(lengths)
    ]
    group_of: list[int] = []  # of the samples, the longest first
    open_groups: dict[int, list[int]] = {}  # by the room that they have
    count = 0
    for room, length, each, groups in _fits(lengths, limit):
        if room == limit:
            chosen = list(range(count, count + groups))
            count += groups
        else:
            chosen = open_groups[room][-groups:]
            del open_groups[room][-groups:]
        for _ in range(each):
            group_of += chosen
        open_groups.setdefault(room - each * length, []).extend(chosen)
    return Groups.of_whole(np.array(group_of, np.int64), longest_first, lengths)


def _fits(lengths: np.ndarray, limit: int) -> Iterator[tuple[int, int, int, int]]:
    """(room, length, each, groups): so many groups that have so much room take so many samples of this length each.

    Groups with room for `limit` are new. Samples of one length are dealt with together, so that this costs a few steps
    a length; which groups have how much room is one bit each of an integer.
    """
    counts = np.bincount(lengths, minlength=1)
    free = [0] * limit
    rooms = 0
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length]) if length else 0
        while left:
            enough = rooms >> length
            room = length + (enough & -enough).bit_length() - 1 if enough else limit
            each = min(room // length, left)
            groups = left // each if room == limit else min(free[room], left // each)
            yield room, length, each, groups
            left -= each * groups
            if room < limit:
                free[room] -= groups
                rooms ^= 0 if free[room] else 1 << room
            after = room - each * length
            if after:
                free[after] += groups
                rooms |= 1 << after
