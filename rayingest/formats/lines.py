"""Where lines begin and end in the chunks of a file."""

from __future__ import annotations

import numpy as np

from rayingest.formats.quotes import Quotes

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
