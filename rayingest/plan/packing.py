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


@dataclass(frozen=True)
class Groups:
    """Groups of pieces of samples: group g has pieces `begins[g]` to `begins[g + 1]`, in order.

    A piece is what lies from `begin` to `end` in sample number `sample` of those whose lengths were given. int64 all.
    """

    begins: np.ndarray
    sample: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.begins) - 1


@dataclass(frozen=True)
class Packing:
    """Groups of at most `length`; samples are cut for it or, without `cut`, must be no longer than that."""

    length: int
    cut: bool

    def __str__(self) -> str:
        return f"{'cut' if self.cut else 'best fit'} at {self.length}"

    def count(self, lengths: np.ndarray) -> int:
        """How many groups samples of these lengths make, in whatever order they come."""
        if self.cut:
            return -(-int(lengths.sum(dtype=np.int64)) // self.length)
        return sum(groups for room, _, _, groups in _fits(lengths, self.length) if room == self.length)

    def groups(self, lengths: np.ndarray) -> Groups:
        """The groups of samples of these lengths, in this order."""
        return _cut(lengths, self.length) if self.cut else _best_fit(lengths, self.length)


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
    longest_first = np.argsort(-lengths.astype(np.int64), kind="stable")[: np.count_nonzero(lengths)]
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
    group = np.array(group_of, np.int64)
    in_order = np.lexsort((longest_first, group))
    sample = longest_first[in_order]
    begins = np.searchsorted(group[in_order], np.arange(count + 1))
    return Groups(begins, sample, np.zeros_like(sample), lengths[sample].astype(np.int64))


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
