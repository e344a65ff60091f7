"""Interleave sources: which of them fills each row of an endless sequence.

Every prefix of the sequence is in proportion. Just-in-time sequencing (Steiner and Yeomans, "Level
schedules for mixed-model, just-in-time processes", 1993): with weights of n_s in C, row after row
goes to the source whose next row is due first, of those that may have one; a source's next row may
come, and is due, so that the source is never one whole row ahead of its share or behind it, which
is always possible. The sequence repeats itself, so a table of one repetition says for every row
which source it is, and which of the source's rows.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol

import numpy as np

MAX_CYCLE = 1 << 16
"""Weights whose exact proportion needs more rows than this are rounded to parts of that many."""
NEVER = 1 << 62
"""The row of a sample that never comes."""


class Interleave(Protocol):
    """Which source fills which row; rows, and the rows of a source, are numbered from 0."""

    def at(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source of rows `begin` to `end`, and each row's number in it; int64."""

    def row(self, source: int, number: np.ndarray) -> np.ndarray:
        """Return the rows of these numbers of a source, `NEVER` where there is none; int64."""


def counts_of(weights: Sequence[float]) -> tuple[int, ...]:
    """Return weights, 0 or more and not all 0, as the smallest whole numbers in proportion.

    Decimals are taken as they are written. Where the sum would be more than `MAX_CYCLE` they are
    rounded to about that, and no positive weight to 0.
    """
    parts = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(part.denominator for part in parts))
    counts = [int(part * scale) for part in parts]
    divisor = math.gcd(*counts)
    counts = [count // divisor for count in counts]
    total = sum(counts)
    if total <= MAX_CYCLE:
        return tuple(counts)
    return tuple(
        max(1, round(Fraction(count * MAX_CYCLE, total))) if count else 0 for count in counts
    )


@dataclass(frozen=True, eq=False)
class _Stretch:
    """Rows of equal weights, from row `begin` on.

    `before` (int64[sources]): the number of rows of each source before `begin`. `table` has the
    source of each row; the rows after it repeat its entries from `loop` on.
    """

    begin: int
    before: np.ndarray
    table: np.ndarray
    loop: int

    @cached_property
    def _places(self) -> list[np.ndarray]:
        """The rows of each source in the table."""
        return [np.flatnonzero(self.table == source) for source in range(len(self.before))]

    def counts(self, rows: int) -> np.ndarray:
        """Return how many of the first `rows` rows of the stretch each source has; int64."""
        period = len(self.table) - self.loop
        times, rest = divmod(max(0, rows - self.loop), period)
        parts = [
            np.searchsorted(places, [min(rows, self.loop + rest), self.loop])
            for places in self._places
        ]
        each = [
            times * (len(places) - part[1]) + part[0]
            for places, part in zip(self._places, parts, strict=True)
        ]
        return np.array(each, np.int64)

    def sources(self, rows: np.ndarray) -> np.ndarray:
        """Return the source of each row of the stretch; int64."""
        period = len(self.table) - self.loop
        inside = np.where(rows < len(self.table), rows, self.loop + (rows - self.loop) % period)
        return self.table[inside].astype(np.int64)

    def row(self, source: int, number: np.ndarray) -> np.ndarray:
        """Return the rows of these numbers of a source, all counted in the stretch; int64."""
        places = self._places[source]
        first = int(np.searchsorted(places, self.loop))
        again = len(places) - first
        if not again:
            known = number < len(places)
            return np.where(known, places[np.where(known, number, 0)] if len(places) else 0, NEVER)
        times, rest = np.divmod(np.maximum(number - first, 0), again)
        inside = np.where(number < first, number, first + rest)
        return np.asarray(places[inside] + times * (len(self.table) - self.loop))


class LevelInterleave:
    """Interleave by weights: counts of each source, by the first row for which they hold.

    After any number of rows each source has had its exact share of them within less than one. Where
    weights change, a source keeps the part of a row that it lacks; with changes that follow each
    other within a few rows it may be up to two rows behind.
    """

    def __init__(self, weights: Mapping[int, Sequence[int]]) -> None:
        self.changes = sorted(weights)
        self._stretches: list[_Stretch] = []
        before = np.zeros(len(weights[0]), np.int64)
        owed, unit = (
            [0] * len(before),
            1,
        )  # how far each source is behind its share, in parts of a row
        for place, begin in enumerate(self.changes):
            counts = weights[begin]
            rows = self.changes[place + 1] - begin if place + 1 < len(self.changes) else None
            stretch = _Stretch(begin, before, *_level(counts, owed, unit, rows))
            self._stretches.append(stretch)
            if rows is not None:
                had, finer = stretch.counts(rows), math.lcm(unit, sum(counts))
                share = [count * rows * (finer // sum(counts)) for count in counts]
                owed = [
                    behind * (finer // unit) + more - finer * taken
                    for behind, more, taken in zip(owed, share, had.tolist(), strict=True)
                ]
                before, unit = before + had, finer

    @property
    def last_change(self) -> int:
        """The row from which on the weights stay the same."""
        return self.changes[-1]

    def at(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        parts = [np.zeros(0, np.int64)]
        for stretch, until in zip(self._stretches, [*self.changes[1:], NEVER], strict=True):
            first, last = max(begin, stretch.begin), min(end, until)
            if first < last:
                parts.append(stretch.sources(np.arange(first, last) - stretch.begin))
        source = np.concatenate(parts)
        return source, numbered(source, self.counts(begin))

    def counts(self, rows: int) -> np.ndarray:
        """Return how many of the first `rows` rows each source has; int64[sources]."""
        stretch = max(
            (one for one in self._stretches if one.begin <= rows), key=lambda one: one.begin
        )
        return np.asarray(stretch.before + stretch.counts(rows - stretch.begin))

    def row(self, source: int, number: np.ndarray) -> np.ndarray:
        before = np.array([stretch.before[source] for stretch in self._stretches])
        which = np.searchsorted(before, number, side="right") - 1
        row = np.empty(np.shape(number), np.int64)
        for place in np.unique(which).tolist():
            stretch, chosen = self._stretches[place], which == place
            found = stretch.row(source, number[chosen] - before[place])
            row[chosen] = np.where(found < NEVER, found + stretch.begin, NEVER)
        return row


def numbered(source: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return each row's number in its source, which had `counts` rows before the first; int64."""
    number = np.empty(len(source), np.int64)
    for one in np.unique(source).tolist():
        rows = np.flatnonzero(source == one)
        number[rows] = counts[one] + np.arange(len(rows))
    return number


def _level(
    counts: Sequence[int], owed: Sequence[int], unit: int, rows: int | None
) -> tuple[np.ndarray, int]:
    """Return the table of a stretch of `rows` rows, or endless ones, and where its loop begins.

    `owed`: how far each source is behind its share at first, in parts of which a row has `unit`.
    """
    cycle, had = sum(counts), [0] * len(counts)

    def allowed(source: int) -> int:
        """Return the first row that may be the source's next: it is then not one row ahead."""
        return max(0, (had[source] * unit - owed[source]) * cycle // (counts[source] * unit))

    def due(source: int) -> int:
        """Return the last row that may be the source's next: without it, it is one row behind."""
        return -(-((had[source] + 1) * unit - owed[source]) * cycle // (counts[source] * unit)) - 1

    waiting = [(allowed(source), source) for source, count in enumerate(counts) if count]
    heapq.heapify(waiting)
    ready: list[tuple[int, int]] = []
    table: list[int] = []
    begins: dict[tuple[int, ...], int] = {}
    while rows is None or len(table) < rows:
        if len(table) % cycle == 0:
            ahead = tuple(
                own - count * (len(table) // cycle) for own, count in zip(had, counts, strict=True)
            )
            if ahead in begins:
                return np.array(table, np.min_scalar_type(len(counts))), begins[ahead]
            begins[ahead] = len(table)
        while waiting and waiting[0][0] <= len(table):
            source = heapq.heappop(waiting)[1]
            heapq.heappush(ready, (due(source), source))
        # No source may have the row if one without any weight now is behind: take the first.
        source = heapq.heappop(ready or waiting)[1]
        table.append(source)
        had[source] += 1
        heapq.heappush(waiting, (allowed(source), source))
    return np.array(table, np.min_scalar_type(len(counts))), 0
