"""A mixture: whose samples the rows of an endless sequence are, of sources that may be mixtures themselves.

Owns the tree: each mixture has turns of its own over what it mixes, so its proportions hold among its own rows. Sources
are numbered through the whole tree, in the order in which they are named. Knows neither batches nor data, but how many
samples each source has once through.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from rayingest.plan.order.interleave import NEVER, LevelTurns, Turns, numbered
from rayingest.plan.order.keys import fold, permutation

UNTIL = ("first", "all")

_KEPT = 4


class ShuffledTurns:
    """The same turns, mixed by a key within every `stretch` rows: exact at the end of each, by chance inside."""

    def __init__(self, turns: LevelTurns, stretch: int, key: int) -> None:
        self._turns, self._stretch, self._key = turns, stretch, key
        self._kept: OrderedDict[int, tuple[np.ndarray, np.ndarray]] = OrderedDict()

    def at(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        first, last = begin // self._stretch, max(begin, end - 1) // self._stretch
        mixed = [self._mixed(place) for place in range(first, last + 1)]
        inside = slice(begin - first * self._stretch, end - first * self._stretch)
        return np.concatenate([one[0] for one in mixed])[inside], np.concatenate(
            [one[1] for one in mixed]
        )[inside]

    def row(self, source: int, number: np.ndarray) -> np.ndarray:
        level = self._turns.row(source, number)
        row = np.full(np.shape(number), NEVER, np.int64)
        stretch = level // self._stretch
        for place in np.unique(stretch[level < NEVER]).tolist():
            sources, numbers = self._mixed(place)
            rows = np.flatnonzero(sources == source)
            chosen = (stretch == place) & (level < NEVER)
            row[chosen] = place * self._stretch + rows[number[chosen] - numbers[rows[0]]]
        return row

    def _mixed(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """A whole stretch; a few are kept."""
        if place not in self._kept:
            begin = place * self._stretch
            source, _ = self._turns.at(begin, begin + self._stretch)
            source = source[permutation(self._stretch, fold("turns", self._key, place))]
            self._kept[place] = source, numbered(source, self._turns.counts(begin))
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(place)
        return self._kept[place]


class Mixture:
    """Rows that take turns over `parts`: how many samples a source has, or a mixture.

    `until`: it is once through with the "first" part that is, with "all" of them, or after so many rows.
    """

    def __init__(
        self, turns: Turns, parts: Sequence[int | Mixture], until: str | int = "first"
    ) -> None:
        self._turns, self._parts, self._until = turns, parts, until
        sizes = [part.sources if isinstance(part, Mixture) else 1 for part in parts]
        self._first = np.cumsum([0, *sizes])

    @property
    def sources(self) -> int:
        """How many sources there are, those of mixtures in it counted."""
        return int(self._first[-1])

    def at(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Of rows `begin` to `end`: the source of each, and which of that source's samples it is, 0 and on."""
        part, number = self._turns.at(begin, end)
        source = self._first[part]
        for place, inner in enumerate(self._parts):
            rows = np.flatnonzero(part == place)
            if isinstance(inner, Mixture) and len(rows):
                of_inner, number[rows] = inner.at(int(number[rows[0]]), int(number[rows[-1]]) + 1)
                source[rows] += of_inner
        return source, number

    def row(self, source: int, number: np.ndarray) -> np.ndarray:
        """The row that has this source's sample of that number, `NEVER` where none has."""
        place = int(np.searchsorted(self._first, source, side="right")) - 1
        inner = self._parts[place]
        if isinstance(inner, Mixture):
            number = inner.row(source - int(self._first[place]), number)
        return self._turns.row(place, number)

    @cached_property
    def rows(self) -> int:
        """How many rows are once through; `NEVER` where it never is."""
        if isinstance(self._until, int):
            return self._until
        sizes = [part.rows if isinstance(part, Mixture) else part for part in self._parts]
        ends = [
            int(self._turns.row(place, np.array([size - 1]))[0]) for place, size in enumerate(sizes)
        ]
        return min(NEVER, (min if self._until == "first" else max)(ends) + 1)
