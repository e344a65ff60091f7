"""Put samples of similar length into batches that, padded to their longest, keep within a budget.

Owns the cutting of samples, sorted by length, into batches: each begins with the longest sample
that is left and takes as many as fit, which gives the least number of batches. The planner decides
which batch comes when.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np

from rayingest.plan.order.bins import Bins


@dataclass(frozen=True)
class Budget:
    """Batches of at most `limit` padded tokens, for each of `ranks` ranks in a step.

    A batch is as wide as its longest sample, rounded up to `multiple_of`.
    """

    limit: int
    ranks: int
    multiple_of: int = 1

    def __str__(self) -> str:
        of = f" of multiples of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f"at most {self.limit} padded tokens{of}, planned for {self.ranks} rank(s)"

    @property
    def row(self) -> str:
        return "batches for a rank"

    @property
    def sorted_by_length(self) -> bool:
        return True

    @property
    def longest(self) -> int:
        return self.limit // self.multiple_of * self.multiple_of

    def count(self, lengths: np.ndarray) -> int:
        return len(self._begins(np.sort(lengths)[::-1])) - 1

    def most(self, lengths: np.ndarray) -> int:
        return len(lengths)

    def bins(self, lengths: np.ndarray, count: int | None = None) -> Bins:
        longest_first = np.argsort(-lengths.astype(np.int64), kind="stable")
        begins = self._begins(lengths[longest_first])
        begins = begins if count is None else _split(begins, count)
        batch_of = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
        return Bins.of_whole(batch_of, longest_first, lengths)

    def too_long(self, length: int) -> str:
        wide = f" (padded to a multiple of {self.multiple_of})" if self.multiple_of > 1 else ""
        return (
            f"is {length:,} long{wide}, more than max_tokens={self.limit:,}: shorten samples in "
            ".map, leave them out with .filter, or give batches more tokens"
        )

    def _begins(self, lengths: np.ndarray) -> list[int]:
        """Return where each batch begins, and the last ends, of samples with the longest first."""
        width = np.maximum(1, -(-lengths.astype(np.int64) // self.multiple_of) * self.multiple_of)
        rows = (self.limit // width).tolist()
        begins, at = [0], 0
        while at < len(rows):
            at = min(len(rows), at + rows[at])
            begins.append(at)
        return begins


def _split(begins: list[int], count: int) -> list[int]:
    """Halve the batch with the most samples, again and again, until there are `count` batches."""
    batches = [(begin - end, begin, end) for begin, end in itertools.pairwise(begins)]
    heapq.heapify(batches)
    while len(batches) < count:
        _, begin, end = heapq.heappop(batches)
        middle = (begin + end) // 2
        heapq.heappush(batches, (begin - middle, begin, middle))
        heapq.heappush(batches, (middle - end, middle, end))
    return [*sorted(begin for _, begin, _ in batches), begins[-1]]
