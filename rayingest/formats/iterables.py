"""Read datasets by iterating them: a shard is an iterable instead of a file.

Owns how many samples are a block, in calls of `next`. The last block of a shard whose samples were
counted has one call more, which finds the end. How to iterate a shard, and what a sample is, is
known to the `source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
import pyarrow as pa

from rayingest.errors import DataError
from rayingest.formats.columns import bytes_column
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    Columns,
    Format,
    Options,
    Shard,
    check_samples,
    raw_table,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, Urls

SAMPLE = "sample"
"""The column of samples, in the form that the source gives them."""

SOURCE, LENGTHS, VERSION = "source", "lengths", "version"
"""The options: the `Source`; the samples of each shard, to skip counting; the data's version."""

_LOOKED_AT = 16


class Source(Protocol):
    """Iterates shards, which have numbers."""

    @property
    def shards(self) -> int: ...

    def sizes(self, shard: int, most: int | None) -> np.ndarray:
        """Return the bytes in memory of the shard's first `most` samples, or of all: int64[n]."""

    def take(self, shard: int, begin: int, end: int) -> list[bytes]:
        """Return the shard's samples from `begin` to `end`, fewer if it ends before.

        DataError names what failed.
        """


class _Iterables(Format):
    name = "iterables"
    suffixes = ()
    option_names = (SOURCE, LENGTHS, VERSION)

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """Return the shards of the source, named by their numbers."""
        count = _source(options).shards
        sizes = tuple(options.get(LENGTHS) or [0] * count)
        return Listing(
            f"{urls}/", tuple(map(str, range(count))), sizes, (options.get(VERSION, ""),) * count
        )

    def files(self, url: str, size: int) -> list[tuple[str, int]]:
        """Return []."""
        return []

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        source, number = _source(shard.options), _number(shard)
        if LENGTHS not in shard.options:
            sizes = source.sizes(number, None)
            return _blocks(sizes, block_bytes, len(sizes) + 1)
        some = source.sizes(number, min(_LOOKED_AT, shard.size))
        return _blocks(
            np.full(shard.size, some.mean() if len(some) else 0, np.int64), block_bytes, shard.size
        )

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return the columns `sample` and `__offset__`: the sample's number in its shard."""
        tables = []
        for begin, end, samples in blocks:
            taken = _source(shard.options).take(_number(shard), begin, end)
            try:
                check_samples(shard, (begin, end, samples), len(taken))
            except DataError as error:
                if LENGTHS in shard.options:
                    ends = begin + len(taken)
                    reason = (
                        f"lengths gives {shard.size} samples, "
                        f"the iterable ends before sample {ends}"
                    )
                    raise shard.error(f"{reason}: correct lengths, or leave it out", ends) from None
                raise error.with_reason(
                    f"{error.reason}; give another version= to count again"
                ) from None
            offsets = pa.array(np.arange(begin, begin + samples))
            tables.append(raw_table(shard, {SAMPLE: bytes_column(taken), OFFSET: offsets}))
        return tables


FORMAT = _Iterables()


def _source(options: Options) -> Source:
    return cast(Source, options[SOURCE])


def _number(shard: Shard) -> int:
    return int(shard.url.rpartition("/")[2])


def _blocks(sizes: np.ndarray, block_bytes: int, calls: int) -> ShardBlocks:
    """Return blocks of about `block_bytes`, for samples of these sizes.

    `calls`: where the last block ends.
    """
    if not len(sizes):
        return ShardBlocks(*np.zeros((4, 0), np.int64))
    first = np.flatnonzero(np.diff((np.cumsum(sizes) - sizes) // block_bytes, prepend=-1))
    samples = np.diff(first, append=len(sizes))
    ends = np.append(first[1:], calls)
    return ShardBlocks(first, ends, samples, np.add.reduceat(sizes, first))
