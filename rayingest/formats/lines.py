"""Where lines begin and end in the chunks of a file."""

from __future__ import annotations

import codecs

import numpy as np

_SPACE = b" \t\r\n\v\f"


class LineFinder:
    """Finds the lines that are not blank in chunks of a file, without holding any of it.

    `quotes`: line ends between them are part of the line. `blank`: what a line that is blank has at most.
    """

    def __init__(self, quotes: Quotes | None = None, blank: bytes = _SPACE) -> None:
        self.begin = 0
        """Where the line begins whose end has not been seen yet."""
        self._quotes = quotes
        self._stripped = blank
        self._may_be_blank = np.isin(np.arange(256), list(blank))
        self._at = 0
        self._blank = (
            True  # whether all seen so far of the unfinished line is of what blank lines have
        )

    def feed(self, chunk: bytes) -> tuple[np.ndarray, np.ndarray]:
        """The lines that end in this chunk: int64 arrays of where they begin, and end with their line end."""
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
        """The last line, if it is a sample and has no line end; in the form of `feed`."""
        last = [] if self._blank else [(self.begin, self._at)]
        begins, ends = np.array(last, np.int64).reshape(-1, 2).T
        return begins, ends


# Which bytes of a file are between double quotes, as CSV has them (RFC 4180), chunk by chunk.
#
# A quote opens where a field begins, and closes at the next that is not doubled. Any other is
# text, as pyarrow reads it.


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
