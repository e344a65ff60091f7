"""Find the lines of a file, chunk by chunk, and the bytes between double quotes.

Quotes are those of CSV (RFC 4180). A quote opens at the begin of a field and closes at the next
quote that is not doubled. Any other quote is text, as pyarrow reads it.
"""

from __future__ import annotations

import codecs

import numpy as np

_SPACE = b" \t\r\n\v\f"


class LineFinder:
    """Find the lines that are not blank, without holding any of the file.

    `quotes`: a line end between quotes is part of its line. `blank`: the bytes that a blank line
    may consist of.
    """

    def __init__(self, quotes: Quotes | None = None, blank: bytes = _SPACE) -> None:
        self.begin = 0
        """The begin of the line whose end has not been seen yet."""
        self._quotes = quotes
        self._stripped = blank
        self._may_be_blank = np.isin(np.arange(256), list(blank))
        self._at = 0
        self._blank = True  # whether the unfinished line is blank so far

    def feed(self, chunk: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the lines that end in this chunk: begins and ends, int64[n] each.

        An end is the place after the line end.
        """
        data = np.frombuffer(chunk, np.uint8)
        is_end = data == ord("\n")
        if self._quotes is not None:
            is_end &= ~self._quotes.inside(chunk)
        ends = np.flatnonzero(is_end) + 1
        if not len(ends):
            self._blank = self._blank and not chunk.strip(self._stripped)
            self._at += len(chunk)
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        begins = np.concatenate([[0], ends[:-1]])
        kept = ~self._may_be_blank[data[begins]]
        for i in np.flatnonzero(~kept):
            kept[i] = bool(chunk[begins[i] : ends[i]].strip(self._stripped))
        kept[0] = kept[0] or not self._blank
        begins, ends = begins + self._at, ends + self._at
        begins[0] = self.begin
        self.begin, self._blank = (
            int(ends[-1]),
            not chunk[ends[-1] - self._at :].strip(self._stripped),
        )
        self._at += len(chunk)
        return begins[kept], ends[kept]

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the last line in the form of `feed`, if it is not blank and has no line end."""
        last = [] if self._blank else [(self.begin, self._at)]
        begins, ends = np.array(last, np.int64).reshape(-1, 2).T
        return begins, ends


_QUOTE = ord('"')
_MARK = codecs.BOM_UTF8
"""The byte order mark with which a file may begin, before the first field."""


class Quotes:
    """Track quotes across chunks, for fields that a delimiter (one ASCII character) separates."""

    def __init__(self, delimiter: str) -> None:
        self.open = False
        """Whether the chunks so far end between two quotes."""
        self._begins_after = np.isin(np.arange(256), list(f"{delimiter}\r\n".encode()))
        self._at = 0
        self._head = b""
        self._before = ord("\n")  # the byte before the next chunk
        self._closed = -2  # where the last quoted text ended

    def inside(self, chunk: bytes) -> np.ndarray:
        """Return whether each byte of the next chunk is between two quotes: bool[len(chunk)].

        The values at the quotes themselves have no meaning.
        """
        data = np.frombuffer(chunk, np.uint8)
        places = np.flatnonzero(data == _QUOTE)
        begins = self._begins_after[np.where(places > 0, data[places - 1], self._before)]
        self._head = (self._head + chunk[: len(_MARK)])[: len(_MARK)]
        if self._head == _MARK:
            begins |= places + self._at == len(_MARK)
        places = places[self._find_borders(places + self._at, begins)]
        result = np.zeros(len(data), np.bool_)
        result[places] = True
        result = (np.cumsum(result) + self.open) % 2 == 1
        if len(places):
            self.open ^= len(places) % 2 == 1
            self._closed = -2 if self.open else int(places[-1]) + self._at
        self._at, self._before = self._at + len(data), int(data[-1]) if len(data) else self._before
        return result

    def _find_borders(self, places: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Return which quotes open or close: bool[len(places)].

        `begins`: at which of them a field begins.
        """
        opening = np.arange(len(places)) % 2 == int(self.open)
        doubled = np.diff(places, prepend=self._closed) == 1
        if (begins | doubled)[opening].all():  # all of them, in most files
            return np.ones(len(places), np.bool_)
        borders = np.zeros(len(places), np.bool_)
        is_open, closed = self.open, self._closed
        for i, (place, begin) in enumerate(zip(places.tolist(), begins.tolist(), strict=True)):
            if is_open or begin or place == closed + 1:
                borders[i], is_open = True, not is_open
                closed = -2 if is_open else place
        return borders
