"""How long things took, as counts: how many took up to one millisecond, up to 1.25, up to 1.6, and so on.

Owns the bounds. Counts are cheap to keep, add up over workers and nodes, and their differences are those of any while.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

_STEPS = (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)
"""Of a decade, as even as preferred numbers are (ISO 3, R10)."""
_ALL = tuple((step * scale, step) for scale in (0.001, 0.01, 0.1, 1.0, 10.0) for step in _STEPS)
BOUNDS = tuple(bound for bound, _ in _ALL if bound <= 50)
"""Seconds, ascending, each at most 1.28 times the one before; what took longer than the last is counted behind it."""
COARSE = tuple(
    number for number, (bound, step) in enumerate(_ALL) if bound <= 50 and step in {1, 2, 5}
)
"""Which of them do where every bound has its price."""

Counts = list[int]
"""How many took up to each bound, and longer than the one before; how many longer than all."""


class Histogram:
    """What was seen so far; `counts` is one longer than `BOUNDS`."""

    def __init__(self) -> None:
        self.counts: Counts = [0] * (len(BOUNDS) + 1)

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1


def together(counts: Iterable[Sequence[int]]) -> Counts:
    """All of these."""
    return [sum(each) for each in zip(Histogram().counts, *counts, strict=True)]


def grown(before: Sequence[int], after: Sequence[int]) -> Counts:
    """What came to the first to make the second; `before` may be empty."""
    return [now - then for now, then in zip(after, before, strict=True)] if before else list(after)


def quantile(counts: Sequence[int], part: float) -> float | None:
    """Seconds in which such a part of them was done, to the accuracy of the bounds; None where there are none.

    Between two bounds they are taken to lie evenly, as Prometheus does; beyond the last, at the last.
    """
    total = sum(counts)
    if not total:
        return None
    missing = part * total
    for number, count in enumerate(counts[: len(BOUNDS)]):
        if count and missing <= count:
            below = BOUNDS[number - 1] if number else 0.0
            return below + (BOUNDS[number] - below) * missing / count
        missing -= count
    return BOUNDS[-1]
