"""Join byte ranges of a file into few requests, and read a file by ranges as a Python file.

A request costs about as much as some hundred kilobytes.
"""

from __future__ import annotations

import bisect
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

Range = tuple[int, int]
"""Bytes [begin, end)."""

_GAP = 256 << 10
_MOST = 8 << 20


def coalesce(ranges: Sequence[Range], gap: int = _GAP, most: int = _MOST) -> list[Range]:
    """Return ascending ranges that contain all given ones.

    Neighbours less than `gap` bytes apart are joined, up to `most` bytes. A longer range stays
    whole.
    """
    spans: list[Range] = []
    for begin, end in sorted(ranges):
        if spans and begin - spans[-1][1] <= gap and max(end, spans[-1][1]) - spans[-1][0] <= most:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        elif not spans or end > spans[-1][1]:
            spans.append((begin, end))
    return spans


def slice_spans(
    ranges: Sequence[Range], spans: Sequence[Range], pieces: Sequence[bytes]
) -> list[bytes]:
    """Return the bytes of each range from those of `coalesce`; fewer if a piece is cut off."""
    begins = [begin for begin, _ in spans]
    parts = []
    for begin, end in ranges:
        at = bisect.bisect_right(begins, begin) - 1
        first = spans[at][0]
        whole = (begin, end) == spans[at]
        parts.append(pieces[at] if whole else pieces[at][begin - first : end - first])
    return parts


class RangeFile(io.RawIOBase):
    """A remote file of this size as a Python file: each read calls `read(begin, end)` once."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._read, self._size, self._at = read, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._size)
        if end <= self._at:
            return 0
        data = self._read(self._at, end)
        view[: len(data)] = data
        self._at = end
        return len(data)
