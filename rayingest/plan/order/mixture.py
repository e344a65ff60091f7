"""The tree of a mixture: which source each row of an endless sequence is from.

A source may be a mixture itself. Each mixture interleaves its own parts, so its proportions hold
among its own rows. Sources are numbered through the whole tree, in the order in which they are
named. Knows neither batches nor data, only how many samples a pass over each source has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from rayingest.plan.order.interleave import NEVER, Interleave, LevelInterleave, numbered
from rayingest.plan.order.randomness import fold, permutation
from rayingest.plan.order.sequence import LastUsed

UNTIL = ("first", "all")

_KEPT = 4


class ShuffledInterleave:
    """Interleave as another, with the rows of every `stretch` rows permuted by a key.

    Proportions are exact at the end of each stretch, and by chance inside.
    """

    def __init__(self, interleave: LevelInterleave, stretch: int, key: int) -> None:
        self._interleave, self._stretch, self._key = interleave, stretch, key
        self._stretches: LastUsed[int, tuple[np.ndarray, np.ndarray]] = LastUsed(
            self._permute, size=_KEPT
        )

    def at(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        first, last = begin // self._stretch, max(begin, end - 1) // self._stretch
        mixed = [self._stretches[place] for place in range(first, last + 1)]
        inside = slice(begin - first * self._stretch, end - first * self._stretch)
        return np.concatenate([one[0] for one in mixed])[inside], np.concatenate(
            [one[1] for one in mixed]
        )[inside]

    def row(self, source: int, number: np.ndarray) -> np.ndarray:
        level = self._interleave.row(source, number)
        row = np.full(np.shape(number), NEVER, np.int64)
        stretch = level // self._stretch
        for place in np.unique(stretch[level < NEVER]).tolist():
            sources, numbers = self._stretches[place]
            rows = np.flatnonzero(sources == source)
            chosen = (stretch == place) & (level < NEVER)
            row[chosen] = place * self._stretch + rows[number[chosen] - numbers[rows[0]]]
        return row

    def _permute(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sources of a whole stretch, and each row's number in its source."""
        begin = place * self._stretch
        source, _ = self._interleave.at(begin, begin + self._stretch)
        source = source[permutation(self._stretch, fold("turns", self._key, place))]
        return source, numbered(source, self._interleave.counts(begin))


class Mixture:
    """Rows that are interleaved from `parts`: the number of samples of a source, or a mixture.

    `until`: a pass ends when the pass over the "first" part does, over "all" of them, or after a
    number of rows.
    """

    def __init__(
        self, interleave: Interleave, parts: Sequence[int | Mixture], until: str | int = "first"
    ) -> None:
        self._interleave, self._parts, self._until = interleave, parts, until
        sizes = [part.sources if isinstance(part, Mixture) else 1 for part in parts]
        self._first = np.cumsum([0, *sizes])

    @property
    def sources(self) -> int:
        """The number of sources in the whole tree."""
        return int(self._first[-1])

    def at(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sources of rows `begin` to `end`, and the number of each one's draw; int64."""
        part, number = self._interleave.at(begin, end)
        source = self._first[part]
        for place, inner in enumerate(self._parts):
            rows = np.flatnonzero(part == place)
            if isinstance(inner, Mixture) and len(rows):
                of_inner, number[rows] = inner.at(int(number[rows[0]]), int(number[rows[-1]]) + 1)
                source[rows] += of_inner
        return source, number

    def row(self, source: int, number: np.ndarray) -> np.ndarray:
        """Return the rows with these draws of a source, `NEVER` where there is none; int64."""
        place = int(np.searchsorted(self._first, source, side="right")) - 1
        inner = self._parts[place]
        if isinstance(inner, Mixture):
            number = inner.row(source - int(self._first[place]), number)
        return self._interleave.row(place, number)

    @cached_property
    def rows(self) -> int:
        """The number of rows of a pass; `NEVER` where it never ends."""
        if isinstance(self._until, int):
            return self._until
        sizes = [part.rows if isinstance(part, Mixture) else part for part in self._parts]
        ends = [
            int(self._interleave.row(place, np.array([size - 1]))[0])
            for place, size in enumerate(sizes)
        ]
        return min(NEVER, (min if self._until == "first" else max)(ends) + 1)
