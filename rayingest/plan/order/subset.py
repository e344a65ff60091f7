"""Choose the samples of a manifest that take part in an order.

Owns the limits that leave samples out: the first N, all but the first N, a part by keyed hash, or
those that a mask names. Limits are about samples in file order, whatever the order is. An order
over a subset is the order over a manifest with as many samples in each block; ordinals stay those
of the whole manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.randomness import fold, hashes_at

_AT_ONCE = 1 << 20
_SHOWN = 160


class Limit(Protocol):
    """A rule that leaves samples out. Its text names it, in errors and in states."""

    def apply(self, subset: Subset) -> Subset: ...

    def __str__(self) -> str: ...


@dataclass(frozen=True, eq=False)
class Subset:
    """Some of the manifest's samples, in file order.

    `samples` counts each block's (int64[num_blocks]). If `rows` is None they are consecutive rows,
    from `first` of each block on; else `rows` has the row in its block of every sample, block after
    block, in the smallest unsigned type.
    """

    manifest: Manifest
    samples: np.ndarray
    first: np.ndarray
    rows: np.ndarray | None = None

    @classmethod
    def whole(cls, manifest: Manifest) -> Subset:
        """Return all samples of a manifest."""
        return cls(manifest, manifest.samples, np.zeros_like(manifest.samples))

    def through(self, limits: Iterable[Limit]) -> Subset:
        """Apply limits, one after the other. Raises ConfigError for one that leaves nothing."""
        subset = self
        for limit in limits:
            limited = limit.apply(subset)
            if not limited.num_samples:
                raise ConfigError(
                    f"no sample is left: {limit} removes all {subset.num_samples:,} samples"
                )
            subset = limited
        return subset

    @property
    def num_blocks(self) -> int:
        return len(self.samples)

    @cached_property
    def num_samples(self) -> int:
        return int(self.samples.sum())

    @cached_property
    def nbytes(self) -> np.ndarray:
        """int64[num_blocks]: undecoded bytes of each block that is read, and read whole; else 0."""
        return np.where(self.samples > 0, self.manifest.nbytes, 0)

    @cached_property
    def total_bytes(self) -> int:
        """Undecoded bytes of the samples, their share of each block's."""
        return int((self.manifest.nbytes * self.samples // self.manifest.samples).sum())

    @cached_property
    def first_position(self) -> np.ndarray:
        """int64[num_blocks]: the number of samples of the subset before each block."""
        return np.asarray(np.cumsum(self.samples) - self.samples)

    def row(self, block: np.ndarray, nth: np.ndarray) -> np.ndarray:
        """Return the row in its block of the nth sample that the subset has of the block; int64."""
        if self.rows is None:
            return np.asarray(self.first[block] + nth)
        return self.rows[self.first_position[block] + nth].astype(np.int64)

    def take(self, count: int) -> Subset:
        """Return the first `count` samples, or all if there are fewer."""
        samples = np.clip(count - self.first_position, 0, self.samples)
        return replace(self, samples=samples, rows=None if self.rows is None else self.rows[:count])

    def skip(self, count: int) -> Subset:
        """Return all but the first `count` samples."""
        gone = np.clip(count - self.first_position, 0, self.samples)
        rows = None if self.rows is None else self.rows[count:]
        return replace(self, samples=self.samples - gone, first=self.first + gone, rows=rows)

    def keep(self, chosen: Callable[[np.ndarray], np.ndarray]) -> Subset:
        """Return the samples that `chosen` keeps.

        It is called with ordinals (int64[n], ascending), a part at a time, and returns bool[n].
        """
        samples = np.zeros_like(self.samples)
        kind = np.min_scalar_type(int(self.manifest.samples.max(initial=1)))
        kept: list[np.ndarray] = [np.zeros(0, kind)]
        for blocks, block, row in self._parts():
            mask = chosen(self.manifest.first_ordinal[block] + row)
            samples[blocks] = np.bincount(
                block[mask] - blocks.start, minlength=blocks.stop - blocks.start
            )
            kept.append(row[mask].astype(kind))
        return replace(self, samples=samples, rows=np.concatenate(kept))

    def ordinals(self) -> Iterator[np.ndarray]:
        """Yield the ordinals of all samples, ascending, a part at a time; int64."""
        for _, block, row in self._parts():
            yield self.manifest.first_ordinal[block] + row

    def _parts(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield all samples by runs of blocks: the blocks, and each sample's block and row."""
        ends = self.first_position + self.samples
        begin = 0
        while begin < self.num_blocks:
            end = max(
                begin + 1,
                int(np.searchsorted(ends, self.first_position[begin] + _AT_ONCE, side="right")),
            )
            block = np.repeat(np.arange(begin, end), self.samples[begin:end])
            nth = np.arange(len(block)) - (self.first_position[block] - self.first_position[begin])
            yield slice(begin, end), block, self.row(block, nth)
            begin = end


@dataclass(frozen=True)
class Take:
    """The first `count` samples."""

    count: int

    def apply(self, subset: Subset) -> Subset:
        return subset.take(self.count)

    def __str__(self) -> str:
        return f"take({self.count})"


@dataclass(frozen=True)
class Skip:
    """All but the first `count` samples."""

    count: int

    def apply(self, subset: Subset) -> Subset:
        return subset.skip(self.count)

    def __str__(self) -> str:
        return f"skip({self.count})"


@dataclass(frozen=True)
class Part:
    """The samples whose keyed hash lies in [begin, end) of 2**64.

    The hash is of the seed, the name of the shard's file and the sample's number in the shard. So
    neither new shards, nor samples added at a shard's end, nor a copy in another folder move a
    sample from one part to another.
    """

    begin: int
    end: int
    seed: int

    def apply(self, subset: Subset) -> Subset:
        manifest = subset.manifest
        names = [path.partition("?")[0].rpartition("/")[2] for path in manifest.paths]
        words = [
            int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) for name in names
        ]
        keys = np.array([fold("split", self.seed, word) for word in words], np.uint64)
        counts = np.bincount(manifest.shard, manifest.samples, len(names)).astype(np.int64)
        ends = np.cumsum(counts)

        def chosen(ordinal: np.ndarray) -> np.ndarray:
            shard = np.searchsorted(ends, ordinal, side="right")
            hashed = hashes_at(ordinal - (ends - counts)[shard], keys[shard])
            return (hashed >= np.uint64(self.begin)) & (hashed <= np.uint64(self.end - 1))

        return subset.keep(chosen) if self.end > self.begin else subset.take(0)

    def __str__(self) -> str:
        return f"split({self.begin / 2**64:.6g} to {self.end / 2**64:.6g}, seed {self.seed})"


@dataclass(frozen=True, eq=False)
class Keep:
    """The samples for which `mask` (bool[manifest.num_samples], by ordinal) is True.

    `name` is that of its rule.
    """

    name: str
    mask: np.ndarray

    def apply(self, subset: Subset) -> Subset:
        return subset.keep(self.mask.__getitem__)

    def __str__(self) -> str:
        digest = hashlib.blake2b(np.packbits(self.mask).tobytes(), digest_size=4)
        return f"{self.name} [{digest.hexdigest()}]"


def split_parts(fractions: Sequence[float], seed: int) -> list[Part]:
    """Return parts side by side of these sizes; samples beyond their sum are in no part.

    Raises ConfigError for a fraction that is not above 0 and at most 1, and for a sum above 1.
    """
    parts, begin, total = [], 0, 0.0
    if not fractions:
        raise ConfigError("split takes the sizes of the parts, as in split(0.9, 0.1)")
    for fraction in fractions:
        if (
            isinstance(fraction, bool)
            or not isinstance(fraction, (int, float))
            or not 0 < fraction <= 1
        ):
            raise ConfigError(
                f"split: {fraction!r} is not a fraction; give numbers above 0 and at most 1"
            )
        total += fraction
        if total > 1 + 1e-9:
            raise ConfigError(f"split: the fractions sum to {total:.6g}; give at most 1 in all")
        end = 1 << 64 if total > 1 - 1e-9 else int(total * 2.0**64)
        parts.append(Part(begin, end, seed))
        begin = end
    return parts


def subset_mark(limits: Iterable[Limit]) -> str:
    """Return the limits as a state names them: in words, or a hash of many; "" without any."""
    return brief(", ".join(map(str, limits)))


def brief(words: str) -> str:
    """Return words as a state has them: themselves, or a hash of many."""
    return (
        words
        if len(words) <= _SHOWN
        else hashlib.blake2b(words.encode(), digest_size=16).hexdigest()
    )
