"""Byte ranges of a file, put together to few requests: one costs about as much as some hundred kilobytes."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

Range = tuple[int, int]
"""From a byte up to and without another."""

_GAP = 256 << 10
_MOST = 8 << 20


def coalesced(ranges: Sequence[Range], gap: int = _GAP, most: int = _MOST) -> list[Range]:
    """Ranges in ascending order that hold all of these: neighbours less than `gap` apart are joined, up to `most`
    bytes. A longer one stays in one piece.
    """
    spans: list[Range] = []
    for begin, end in sorted(ranges):
        if spans and begin - spans[-1][1] <= gap and max(end, spans[-1][1]) - spans[-1][0] <= most:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        elif not spans or end > spans[-1][1]:
            spans.append((begin, end))
    return spans


def cut(ranges: Sequence[Range], spans: Sequence[Range], pieces: Sequence[bytes]) -> list[bytes]:
    """The bytes of each range, given those of `coalesced` ones; fewer where a piece is cut off."""
    begins = [begin for begin, _ in spans]
    parts = []
    for begin, end in ranges:
        at = bisect.bisect_right(begins, begin) - 1
        first = spans[at][0]
        whole = (begin, end) == spans[at]
        parts.append(pieces[at] if whole else pieces[at][begin - first : end - first])
    return parts
