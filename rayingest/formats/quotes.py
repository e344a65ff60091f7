"""Which bytes of a file are between double quotes, as CSV has them (RFC 4180), chunk by chunk.

A quote opens where a field begins, and closes at the next that is not doubled. Any other is text, as pyarrow reads it.
"""

from __future__ import annotations

import codecs

import numpy as np

_QUOTE = ord('"')
_MARK = codecs.BOM_UTF8
"""What a file may begin with, and a field's quote stand behind."""


class Quotes:
    """What is between quotes in fields that a delimiter, one ASCII character, separates."""

    def __init__(self, delimiter: str) -> None:
        self.open = False
        """Whether what has been seen so far ends between two quotes."""
        self._begins_after = np.isin(np.arange(256), list(f"{delimiter}\r\n".encode()))
        self._at = 0
        self._head = b""
        self._before = ord("\n")  # the byte in front of the next chunk
        self._closed = -2  # where the last one closed

    def inside(self, chunk: bytes) -> np.ndarray:
        """For each byte of the next chunk whether it is between two quotes; of quotes themselves it says nothing."""
        data = np.frombuffer(chunk, np.uint8)
        places = np.flatnonzero(data == _QUOTE)
        begins = self._begins_after[np.where(places > 0, data[places - 1], self._before)]
        self._head = (self._head + chunk[: len(_MARK)])[: len(_MARK)]
        if self._head == _MARK:
            begins |= places + self._at == len(_MARK)
        places = places[self._counted(places + self._at, begins)]
        result = np.zeros(len(data), np.bool_)
        result[places] = True
        result = (np.cumsum(result) + self.open) % 2 == 1
        if len(places):
            self.open ^= len(places) % 2 == 1
            self._closed = -2 if self.open else int(places[-1]) + self._at
        self._at, self._before = self._at + len(data), int(data[-1]) if len(data) else self._before
        return result

    def _counted(self, places: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Which quotes open or close: bool, for each of `places`; `begins` says at which of them a field does."""
        opening = np.arange(len(places)) % 2 == int(self.open)
        doubled = np.diff(places, prepend=self._closed) == 1
        if (begins | doubled)[opening].all():  # if all of them count, as they do in most files
            return np.ones(len(places), np.bool_)
        counted = np.zeros(len(places), np.bool_)
        is_open, closed = self.open, self._closed
        for i, (place, begin) in enumerate(zip(places.tolist(), begins.tolist(), strict=True)):
            if is_open or begin or place == closed + 1:
                counted[i], is_open = True, not is_open
                closed = -2 if is_open else place
        return counted
