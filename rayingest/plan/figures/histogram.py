"""Count durations in ranges of seconds: up to 1 ms, up to 1.25 ms, up to 1.6 ms, and so on.

Owns the bounds. Counts are cheap to keep. They add up over workers and nodes, and the counts of a
period are the difference of two counts. Refuses exact durations: none is stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

_STEPS = (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)
"""The bounds of one decade, nearly even on a logarithmic scale: preferred numbers (ISO 3, R10)."""
_ALL = tuple((step * scale, step) for scale in (0.001, 0.01, 0.1, 1.0, 10.0) for step in _STEPS)
BOUNDS = tuple(bound for bound, _ in _ALL if bound <= 50)
"""Upper bounds in seconds, ascending. Each is at most 1.28 times the bound before it."""
COARSE = tuple(
    number for number, (bound, step) in enumerate(_ALL) if bound <= 50 and step in {1, 2, 5}
)
"""Indices of the bounds that metrics use, three a decade: each bound costs a time series."""

Counts = list[int]
"""Durations by range: entry i is above bound i - 1 and at most bound i; the last is above 50 s."""


class Histogram:
    """Counts the durations added so far; `counts` has one entry more than `BOUNDS`."""

    def __init__(self) -> None:
        self.counts: Counts = [0] * (len(BOUNDS) + 1)

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1


def add_counts(counts: Iterable[Sequence[int]]) -> Counts:
    """Return the sum of counts, entry by entry; zeros if there are none."""
    return [sum(each) for each in zip(Histogram().counts, *counts, strict=True)]


def subtract_counts(after: Sequence[int], before: Sequence[int]) -> Counts:
    """Return what was counted after `before`, until `after`; an empty `before` counts as zeros."""
    return [now - then for now, then in zip(after, before, strict=True)] if before else list(after)


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the seconds within which this share (0 to 1) of the durations ended.

    None if nothing is counted. The result is as exact as the bounds are close: as in Prometheus,
    durations are assumed to lie evenly between two bounds. Above the last bound, it is that bound.
    """
    total = sum(counts)
    if not total:
        return None
    missing = share * total
    for number, count in enumerate(counts[: len(BOUNDS)]):
        if count and missing <= count:
            below = BOUNDS[number - 1] if number else 0.0
            return below + (BOUNDS[number] - below) * missing / count
        missing -= count
    return BOUNDS[-1]
