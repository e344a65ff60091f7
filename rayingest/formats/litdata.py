"""LitData: folders of chunks, whose `index.json` says which there are and what their samples are made of.

Owns the forms that chunks have. Samples are packed one by one; newer versions write those of plain values as an Arrow
file instead, or behind them once more. Blocks are byte ranges between samples, or record batches; a chunk that is
compressed as a whole is one block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rayingest.formats.arrow import index_part, read_part
from rayingest.formats.blocks import BlockBuilder, single_block
from rayingest.formats.compression import EXPANSION, decompressed
from rayingest.formats.index_json import (
    INDEX,
    Entry,
    entry_of,
    folder_index,
    index_understood,
    list_indexed,
)
from rayingest.formats.litdata_columns import LitColumn, columns_of
from rayingest.formats.offset_table import packed_table, parse_head
from rayingest.formats.protocol import OFFSET, Block, Columns, Format, Options, Shard, check_columns
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.urls import Listing, Urls

_COMPRESSED = ".zstd.bin"
_FRAMED = b"LDFZ01"
_ARROW = b"LDARW01\0"
_FOOTER = struct.Struct("<I8s")


class LitData(Format):
    """LitData chunks, plain or compressed as a whole."""

    name = "litdata"
    suffixes = (".bin",)
    option_names = (EXPANSION,)

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """Those that the `index.json` of each folder names."""
        return list_indexed(urls, self.suffixes, storage, _entries)

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        compressed = shard.url.endswith(_COMPRESSED)
        chunk = _whole(shard)[0] if compressed else _plain(shard)
        lengths = np.diff(chunk.offsets)
        builder = BlockBuilder(block_bytes)
        builder.extend(chunk.offsets[:-1], chunk.offsets[1:], lengths)
        blocks = builder.finish()
        if compressed:
            blocks = single_block(shard.size, len(lengths), int(lengths.sum()))
        elif chunk.arrow is not None:
            blocks = index_part(shard, chunk.arrow, block_bytes)
        else:
            _columns(shard)
        entry, samples = entry_of(shard, _entries), int(blocks.samples.sum())
        if entry is not None and entry.samples != samples:
            raise shard.error(
                f"it holds {samples} samples, and {entry.samples} by its index.json", 0
            )
        return blocks

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """The leaves of the samples as columns, or those asked for in that order, and `__offset__`: the byte of the
        sample in the uncompressed chunk, or of the record batch that it is in.
        """
        if shard.url.endswith(_COMPRESSED):
            chunk, data = _whole(shard)
            begin, end = int(chunk.offsets[0]), int(chunk.offsets[-1])
            samples = memoryview(data)[begin:end]
            return [
                packed_table(shard, _columns(shard), samples, begin, block, columns)
                for block in blocks
            ]
        arrow = _arrow_of(shard.storage, shard.url, shard.size)
        if arrow is not None:
            return [_flat(shard, table, columns) for table in read_part(shard, arrow, blocks, None)]
        pieces = shard.ranges([(begin, end) for begin, end, _ in blocks])
        return [
            packed_table(shard, _columns(shard), memoryview(piece), block[0], block, columns)
            for block, piece in zip(blocks, pieces, strict=True)
        ]


FORMAT = LitData()


class _Chunk(NamedTuple):
    """`offsets`: int64[samples + 1], where packed samples begin and the last ends. `arrow`: where, instead, the Arrow
    file is that has them.
    """

    offsets: np.ndarray
    arrow: tuple[int, int] | None


def _entries(index: Any) -> list[Entry]:
    compressed = index["config"].get("compression") is not None
    return [
        Entry({one["filename"]: None if compressed else one["chunk_bytes"]}, one["chunk_size"])
        for one in index["chunks"]
    ]


def _columns(shard: Shard) -> tuple[LitColumn, ...]:
    folder = shard.url.rpartition("/")[0] + "/"
    index = folder_index(shard.storage, folder)
    with index_understood(folder + INDEX):
        if index is None:
            raise ValueError("there is none, and without it chunks cannot be read")
        return columns_of(index["config"])


def _plain(shard: Shard) -> _Chunk:
    return _parse(shard, shard.size, lambda begin, end: shard.ranges([(begin, end)])[0])


@lru_cache(maxsize=256)
def _arrow_of(storage: Storage, url: str, size: int) -> tuple[int, int] | None:
    return _plain(Shard(storage, url, size)).arrow


def _whole(shard: Shard) -> tuple[_Chunk, bytes]:
    """A compressed chunk, unfolded."""
    data = b"".join(decompressed(shard, "zst"))
    return _parse(shard, len(data), lambda begin, end: data[begin:end]), data


def _parse(shard: Shard, size: int, read: Callable[[int, int], bytes]) -> _Chunk:
    if read(0, min(8, size)).startswith(_FRAMED):
        raise shard.error(
            "chunks that are compressed batch by batch are not read: write them again without", 0
        )
    offsets, _ = parse_head(shard, size, read)
    end = int(offsets[-1])
    if end == size:
        return _Chunk(offsets, None)
    length, magic = _FOOTER.unpack(
        read(max(end, size - _FOOTER.size), size).rjust(_FOOTER.size, b"\0")
    )
    if magic != _ARROW or end + length + _FOOTER.size != size:
        raise shard.error(
            f"its samples end at {end}, and what follows up to {size} is not known", end
        )
    return _Chunk(offsets, None if offsets[0] < end else (end, end + length))


def _flat(shard: Shard, table: pa.Table, columns: Columns) -> pa.Table:
    """The table with structs in it parted into their leaves, whose names are then as of packed samples."""
    offsets, metadata = table.column(OFFSET), table.schema.metadata
    table = table.drop_columns(OFFSET)
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    table = table.select(list(check_columns(shard, table.column_names, columns)))
    return table.append_column(OFFSET, offsets).replace_schema_metadata(metadata)
