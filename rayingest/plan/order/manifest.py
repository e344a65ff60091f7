"""The manifest: the shards of a data set, and the blocks that each is cut into.

A block is the smallest unit that a reader fetches, and parses on its own. The manifest is a handful
of arrays, so that a million blocks cost tens of megabytes and no Python objects. It owns no I/O:
`formats.protocol` builds it, `storage` caches it.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

MAX_BLOCKS = 1 << 20
MAX_BLOCK_SAMPLES = 1024


@dataclass(frozen=True)
class ShardBlocks:
    """The blocks of one shard, in file order: four int64 arrays of one length.

    `begin` and `end` are in the format's own units, `samples` counts each block's samples (at least
    1), `nbytes` is the memory of its undecoded samples.
    """

    begin: np.ndarray
    end: np.ndarray
    samples: np.ndarray
    nbytes: np.ndarray

    def __len__(self) -> int:
        return len(self.begin)

    def coarser(self) -> ShardBlocks:
        """Return the same samples in half as many blocks: neighbours joined in pairs."""
        firsts = np.arange(0, len(self), 2)
        lasts = np.minimum(firsts + 1, len(self) - 1)
        if not len(self):
            return self
        return ShardBlocks(
            begin=self.begin[firsts],
            end=self.end[lasts],
            samples=np.add.reduceat(self.samples, firsts),
            nbytes=np.add.reduceat(self.nbytes, firsts),
        )


class Population(Protocol):
    """The number of samples and their bytes: what the defaults of an order depend on."""

    @property
    def num_samples(self) -> int: ...

    @property
    def total_bytes(self) -> int: ...

    @property
    def nbytes(self) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Manifest:
    """Shards and blocks of one data set.

    `root` + `paths[i]` is the URL of shard i; `sizes[i]` its bytes and `marks[i]` its etag or
    modification time, used only to notice change. `shard`, `begin`, `end`, `samples`, `nbytes` have
    one entry a block, blocks of a shard together and in file order. A sample's ordinal is its
    number in that order.
    """

    root: str = field(repr=False)  # these may have credentials in them
    paths: tuple[str, ...] = field(repr=False)
    sizes: np.ndarray
    marks: tuple[str, ...]
    shard: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    samples: np.ndarray
    nbytes: np.ndarray

    @classmethod
    def join(
        cls,
        root: str,
        paths: Sequence[str],
        sizes: Sequence[int],
        marks: Sequence[str],
        blocks: Sequence[ShardBlocks],
        max_blocks: int = MAX_BLOCKS,
    ) -> Manifest:
        """Return the manifest of the shards' blocks, joined in pairs down to `max_blocks`.

        More are left if every shard is one block.
        """
        blocks = list(blocks)
        while sum(map(len, blocks)) > max_blocks and any(len(b) > 1 for b in blocks):
            blocks = [b.coarser() for b in blocks]
        counts = np.array([len(b) for b in blocks], np.int64)

        def column(name: str) -> np.ndarray:
            parts = [np.asarray(getattr(b, name), np.int64) for b in blocks]
            return np.concatenate(parts) if parts else np.zeros(0, np.int64)

        return cls(
            root=root,
            paths=tuple(paths),
            sizes=np.asarray(sizes, np.int64),
            marks=tuple(marks),
            shard=np.repeat(np.arange(len(blocks), dtype=np.int64), counts),
            begin=column("begin"),
            end=column("end"),
            samples=column("samples"),
            nbytes=column("nbytes"),
        )

    @property
    def num_blocks(self) -> int:
        return len(self.shard)

    @cached_property
    def num_samples(self) -> int:
        return int(self.samples.sum())

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all undecoded samples in memory."""
        return int(self.nbytes.sum())

    @cached_property
    def first_ordinal(self) -> np.ndarray:
        """int64[num_blocks]: the ordinal of each block's first sample."""
        ends: np.ndarray = np.cumsum(self.samples)
        return ends - self.samples

    def url(self, shard: int) -> str:
        return self.root + self.paths[shard]

    def source_of(self, shard: int) -> int:
        """Return the number of the shard's source among those that are read together."""
        return 0

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of relative paths, sizes and blocks: equal for a copy of the data
        elsewhere.
        """
        digest = hashlib.blake2b(digest_size=8)
        digest.update(
            # What follows the question mark differs between signed URLs of one file.
            "\0".join(path.partition("?")[0] for path in self.paths).encode()
        )
        for array in (self.sizes, self.shard, self.begin, self.end, self.samples, self.nbytes):
            digest.update(np.ascontiguousarray(array, "<i8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class JoinedManifest(Manifest):
    """Several manifests, `parts`, side by side: shards and blocks of the first, then the next."""

    parts: tuple[Manifest, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, parts: Sequence[Manifest]) -> JoinedManifest:
        """Join manifests side by side."""
        shards = np.cumsum([0, *(len(part.paths) for part in parts)])
        shard = [part.shard + first for part, first in zip(parts, shards[:-1], strict=True)]

        def column(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        return cls(
            root="",
            paths=tuple(part.root + path for part in parts for path in part.paths),
            sizes=column("sizes"),
            marks=tuple(mark for part in parts for mark in part.marks),
            shard=np.concatenate(shard),
            begin=column("begin"),
            end=column("end"),
            samples=column("samples"),
            nbytes=column("nbytes"),
            parts=tuple(parts),
        )

    @cached_property
    def first_block(self) -> list[int]:
        """The first block of each part, and the end of the last part."""
        return [0, *np.cumsum([part.num_blocks for part in self.parts]).tolist()]

    @cached_property
    def _first_shard(self) -> list[int]:
        return [0, *np.cumsum([len(part.paths) for part in self.parts]).tolist()]

    def source_of(self, shard: int) -> int:
        return bisect.bisect_right(self._first_shard, shard) - 1

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of the parts' fingerprints."""
        words = " ".join(part.fingerprint for part in self.parts)
        return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()
