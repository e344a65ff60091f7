"""One epoch's sequence: all samples in a row, blocks permuted and the whole rotated, by keys of (seed, epoch).

Owns the map from a place in the sequence to a block and a row of it. Costs three arrays of about one entry a block.
"""

from __future__ import annotations

import numpy as np

from rayingest.plan.order.keys import fold, permutation
from rayingest.plan.order.manifest import Counts
from rayingest.plan.order.order import Order

_LOOKS = 2
"""A place's block is found by so many looks from where its stride begins, or by search where a stride has more."""


class EpochSequence:
    """Where every place of the epoch's sequence of N samples lies in the data."""

    def __init__(self, data: Counts, order: Order, epoch: int) -> None:
        self.epoch = epoch
        self._samples = order.samples
        if order.seed is None:
            self._blocks = np.arange(data.num_blocks)
            self._rotation = 0
        else:
            self._blocks = permutation(data.num_blocks, fold("blocks", order.seed, epoch))
            self._rotation = fold("rotation", order.seed, epoch) % order.samples
        counts = data.samples[self._blocks]
        self._ends: np.ndarray = np.cumsum(counts)
        stride = max(1, order.samples // max(1, data.num_blocks))
        self._shift = stride.bit_length() - 1
        strides = np.arange((order.samples >> self._shift) + 2, dtype=np.int64) << self._shift
        self._first = np.searchsorted(self._ends, strides, side="right").astype(np.int32)

    def locate(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(block, row in the block) of these places; int64 arrays of the shape of `places`."""
        unrotated = places + self._rotation
        unrotated = np.where(unrotated >= self._samples, unrotated - self._samples, unrotated)
        nth = self._block_at(unrotated)
        begins = np.where(nth > 0, self._ends[nth - 1], 0)
        return self._blocks[nth], unrotated - begins

    def _block_at(self, places: np.ndarray) -> np.ndarray:
        """The first block that ends behind each place."""
        stride = places >> self._shift
        nth = self._first[stride].astype(np.int64)
        more = self._first[stride + 1] - nth
        for _ in range(_LOOKS):
            nth += self._ends.take(nth, mode="clip") <= places
        far = np.flatnonzero(more > _LOOKS)
        nth[far] = np.searchsorted(self._ends, places[far], side="right")
        return nth
