"""The sequence of a pass: all samples in a row, blocks permuted and the whole rotated by keys.

Owns the map from a position in the sequence to a block and a row of it. A pass costs three arrays
of about one entry a block; those of the two passes used last are kept, because reading runs ahead
across the end of a pass (`LastUsed`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from rayingest.plan.order.manifest import JoinedManifest, Manifest
from rayingest.plan.order.randomness import fold, permutation
from rayingest.plan.order.subset import Subset

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_LOOKS = 2
"""A position's block is found by at most this many steps from the first block of its stride.
Where a stride has more blocks, a binary search finds it."""


class Located(NamedTuple):
    """Samples at some positions: block, row in the block and ordinal; int64 arrays of one length.

    `repeat` counts the earlier positions of the same sample in the pass; None: no sample repeats.
    """

    block: np.ndarray
    row: np.ndarray
    ordinal: np.ndarray
    repeat: np.ndarray | None = None


class Sequence(Protocol):
    """Where the samples of a pass lie, by their positions in it."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def subsets(self) -> tuple[Subset, ...]:
        """The samples of each source."""

    def locate(self, passes: int | np.ndarray, positions: np.ndarray) -> Located:
        """Return the samples at these positions of a pass, or each of a pass of its own."""


class LaneSequence(Sequence, Protocol):
    """A sequence that lanes and windows can be cut from."""

    def block_end(self, positions: np.ndarray) -> np.ndarray:
        """Return, in file order, the first position after each position's block; int64."""


class PassSequence:
    """The sequence of one pass over blocks of `samples` samples each; file order without a seed."""

    def __init__(self, samples: np.ndarray, seed: int | None, pass_number: int) -> None:
        total = int(samples.sum())
        self._samples, blocks = total, len(samples)
        if seed is None:
            self._blocks = np.arange(blocks)
            self._rotation = 0
        else:
            self._blocks = permutation(blocks, fold("blocks", seed, pass_number))
            self._rotation = fold("rotation", seed, pass_number) % total
        self._ends: np.ndarray = np.cumsum(samples[self._blocks])
        stride = max(1, total // blocks)
        self._shift = stride.bit_length() - 1
        strides = np.arange((total >> self._shift) + 2, dtype=np.int64) << self._shift
        self._first = np.searchsorted(self._ends, strides, side="right").astype(np.int32)

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the block of each position and the number of its sample in that block; int64."""
        unrotated = positions + self._rotation
        unrotated = np.where(unrotated >= self._samples, unrotated - self._samples, unrotated)
        nth = self._block_at(unrotated)
        begins = np.where(nth > 0, self._ends[nth - 1], 0)
        return self._blocks[nth], unrotated - begins

    def block_end(self, positions: np.ndarray) -> np.ndarray:
        """Return the first position after each position's block, in a sequence without rotation."""
        return np.asarray(self._ends[self._block_at(positions)])

    def _block_at(self, positions: np.ndarray) -> np.ndarray:
        """Return the number in the sequence of the first block that ends after each position."""
        stride = positions >> self._shift
        nth = self._first[stride].astype(np.int64)
        more = self._first[stride + 1] - nth
        for _ in range(_LOOKS):
            nth += self._ends.take(nth, mode="clip") <= positions
        far = np.flatnonzero(more > _LOOKS)
        nth[far] = np.searchsorted(self._ends, positions[far], side="right")
        return nth


class BlockSequence:
    """The sequences of all passes over a subset, each sample once a pass."""

    def __init__(self, subset: Subset, seed: int | None) -> None:
        self.subset, self.manifest, self._seed = subset, subset.manifest, seed
        self._passes: LastUsed[int, PassSequence] = LastUsed(
            lambda number: PassSequence(subset.samples, seed, number)
        )

    @property
    def subsets(self) -> tuple[Subset, ...]:
        return (self.subset,)

    def locate(self, passes: int | np.ndarray, positions: np.ndarray) -> Located:
        if isinstance(passes, np.ndarray):
            return locate_by_pass(self, passes, positions)
        block, nth = self._pass(passes).locate(positions)
        row = self.subset.row(block, nth)
        return Located(block, row, self.manifest.first_ordinal[block] + row)

    def block_end(self, positions: np.ndarray) -> np.ndarray:
        return self._pass(0).block_end(positions)

    def _pass(self, number: int) -> PassSequence:
        # Every pass in file order is the same.
        return self._passes[0 if self._seed is None else number]


class JoinedSequence:
    """The sequences of several sources side by side: positions of the first, then of the next.

    Blocks are numbered as in the joined manifest. Ordinals are those of each source.
    """

    def __init__(self, manifest: JoinedManifest, parts: tuple[Sequence, ...]) -> None:
        self.manifest, self.parts = manifest, parts
        sizes = [subset.num_samples for subset in self.subsets]
        self.first: np.ndarray = np.cumsum([0, *sizes[:-1]])

    @property
    def subsets(self) -> tuple[Subset, ...]:
        return tuple(subset for part in self.parts for subset in part.subsets)

    def locate(self, passes: int | np.ndarray, positions: np.ndarray) -> Located:
        passes = np.broadcast_to(passes, positions.shape)
        source = np.searchsorted(self.first, positions, side="right") - 1
        found = np.empty((3, len(positions)), np.int64)
        for number in np.unique(source).tolist():
            rows = np.flatnonzero(source == number)
            own = positions[rows] - self.first[number]
            found[:, rows] = self.parts[number].locate(passes[rows], own)[:3]
            found[0, rows] += self.manifest.first_block[number]
        return Located(*found)


def locate_by_pass(sequence: Sequence, passes: np.ndarray, positions: np.ndarray) -> Located:
    """Locate each position in a pass of its own, one pass after the other."""
    numbers = np.unique(passes).tolist()
    if len(numbers) == 1:
        return sequence.locate(numbers[0], positions)
    found = np.empty((3, len(positions)), np.int64)
    for number in numbers:
        rows = np.flatnonzero(passes == number)
        found[:, rows] = sequence.locate(number, positions[rows])[:3]
    return Located(*found)


class LastUsed(Generic[K, V]):
    """Values by key. An absent value is made on demand; the `size` values used last are kept."""

    def __init__(self, make: Callable[[K], V], size: int = 2) -> None:
        self._make, self._size = make, size
        self._values: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        """Return the value of a key."""
        values = self._values
        if key not in values:
            values[key] = self._make(key)
            if len(values) > self._size:
                values.popitem(last=False)
        values.move_to_end(key)
        return values[key]
