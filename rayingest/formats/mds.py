"""MosaicML's MDS: shards of samples behind a table of offsets, with an `index.json` for each folder of them.

Owns what describes a shard: JSON between its table of offsets and its samples. Blocks are byte ranges between samples;
a shard that is compressed is one block. Where there is an `index.json`, it says which shards there are, and how many
samples, bytes and which hashes each has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.formats.blocks import BlockBuilder, single_block
from rayingest.formats.compression import EXPANSION, compression_of, decompressed
from rayingest.formats.hashes import check_hashes
from rayingest.formats.index_json import Entry, entry_of, list_indexed
from rayingest.formats.mds_columns import MdsColumn
from rayingest.formats.offset_table import packed_table, parse_head
from rayingest.formats.protocol import Block, Columns, Format, Options, Shard
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.urls import Listing, Urls

CHECK_HASHES = "check_hashes"
"""The option: whether hashes of shards that are not compressed are looked at too, which are then read whole."""

_CHUNK = 8 << 20


class Mds(Format):
    """MDS shards, plain or compressed in any way that its writer knows."""

    name = "mds"
    suffixes = tuple(".mds" + end for end in ("", ".zstd", ".zst", ".gz", ".bz2", ".br", ".snappy"))
    option_names = (EXPANSION, CHECK_HASHES)

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """Those that the `index.json` of each folder names, where it has one."""
        return list_indexed(urls, self.suffixes, storage, _entries)

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        entry = entry_of(shard, _entries)
        if compression_of(shard.url):
            head, _ = _whole(shard, entry)
            lengths = np.diff(head.offsets)
            blocks = single_block(shard.size, len(lengths), int(lengths.sum()))
        else:
            if entry is not None and shard.options.get(CHECK_HASHES):
                with shard.open() as file:
                    check_hashes(shard, entry.hashes, iter(lambda: file.read(_CHUNK), b""))
            head = _plain_head(shard)
            builder = BlockBuilder(block_bytes)
            builder.extend(head.offsets[:-1], head.offsets[1:], np.diff(head.offsets))
            blocks = builder.finish()
        samples = len(head.offsets) - 1
        if entry is not None and entry.samples != samples:
            raise shard.error(
                f"it holds {samples} samples, and {entry.samples} by its index.json", 0
            )
        return blocks

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """The shard's columns, or those asked for in that order, and `__offset__`: the byte of the sample, in the
        uncompressed shard.
        """
        if compression_of(shard.url):
            head, data = _whole(shard, entry_of(shard, _entries))
            begin, end = int(head.offsets[0]), int(head.offsets[-1])
            samples = memoryview(data)[begin:end]
            return [
                packed_table(shard, head.columns, samples, begin, block, columns)
                for block in blocks
            ]
        head = _remembered_head(shard.storage, shard.url, shard.size)
        pieces = shard.ranges([(begin, end) for begin, end, _ in blocks])
        return [
            packed_table(shard, head.columns, memoryview(piece), block[0], block, columns)
            for block, piece in zip(blocks, pieces, strict=True)
        ]


FORMAT = Mds()


@dataclass(frozen=True)
class _Head:
    """What stands before the samples. `offsets`: int64[samples + 1], where they begin and the last ends."""

    columns: tuple[MdsColumn, ...]
    offsets: np.ndarray


def _entries(index: Any) -> list[Entry]:
    entries = []
    for one in index["shards"]:
        if (one["format"], one["version"]) != ("mds", 2):
            raise ValueError(
                f"a shard of format {one['format']!r}, version {one['version']}; only MDS 2 is read"
            )
        files = [one[kind] for kind in ("raw_data", "zip_data") if one[kind]]
        sizes = {file["basename"]: file["bytes"] for file in files}
        entries.append(Entry(sizes, one["samples"], one["raw_data"]["hashes"]))
    return entries


def _whole(shard: Shard, entry: Entry | None) -> tuple[_Head, bytes]:
    """A compressed shard, unfolded; held to the hashes in its index."""
    data = b"".join(decompressed(shard))
    check_hashes(shard, {} if entry is None else entry.hashes, [data])
    return _head(shard, len(data), lambda begin, end: data[begin:end]), data


def _plain_head(shard: Shard) -> _Head:
    return _head(shard, shard.size, lambda begin, end: shard.ranges([(begin, end)])[0])


@lru_cache(maxsize=256)
def _remembered_head(storage: Storage, url: str, size: int) -> _Head:
    """Of a shard that is read from again and again. Offsets are in the index by then, and not kept twice."""
    head = _plain_head(Shard(storage, url, size))
    return _Head(head.columns, head.offsets[:0])


def _head(shard: Shard, size: int, read: Callable[[int, int], bytes]) -> _Head:
    """`read(begin, end)` gives bytes of the shard, which has `size` of them."""
    offsets, description = parse_head(shard, size, read)
    if offsets[-1] != size:
        raise shard.error(
            f"its samples end at {offsets[-1]}, and it has {size} bytes: damaged, or data follows",
            0,
        )
    try:
        config = json.loads(description)
        described = zip(
            config["column_names"], config["column_encodings"], config["column_sizes"], strict=True
        )
        return _Head(tuple(MdsColumn(*column) for column in described), offsets)
    except (KeyError, TypeError, ValueError) as error:
        place = int(offsets[0]) - len(description)
        raise shard.error(
            f"not MDS, or damaged: its description of columns cannot be used: {error}", place
        ) from error
