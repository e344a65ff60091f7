"""One epoch's sequence: all samples in a row, blocks permuted and the whole rotated, by keys of (seed, epoch).

Owns the map from a place in the sequence to a block and a row of it. Costs two arrays of one entry a block.
"""

from __future__ import annotations

import numpy as np

from rayingest.plan.keys import fold, permutation
from rayingest.plan.manifest import Population
from rayingest.plan.order import Order


class EpochSequence:
    """Where every place of the epoch's sequence of N samples lies in the data."""

    def __init__(self, data: Population, order: Order, epoch: int) -> None:
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

    def locate(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(block, row in the block) of these places; int64 arrays of the shape of `places`."""
        unrotated = places + self._rotation
        unrotated = np.where(unrotated >= self._samples, unrotated - self._samples, unrotated)
        nth = np.searchsorted(self._ends, unrotated, side="right")
        begins = np.where(nth > 0, self._ends[nth - 1], 0)
        return self._blocks[nth], unrotated - begins
