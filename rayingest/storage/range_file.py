"""A file that is read by ranges, as a Python file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any


class RangeFile(io.RawIOBase):
    """A remote file as a Python file of this size: each read is one call of `read(begin, end)`."""

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
