"""Arrow IPC, as files (Feather version 2 is one) or as streams: a block is a run of record batches.

Owns which batches are a block, and no decoding: pyarrow reads them. Batches without rows are left out of the index;
where dictionaries come between batches, the shard is one block, since a batch alone could not be understood. There are
no checksums: damage to values that leaves them possible is for nobody to see. In errors, `offset` is the byte of the
record batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.formats.arrow_messages import messages
from rayingest.formats.blocks import BlockBuilder
from rayingest.formats.huggingface import plain_features
from rayingest.formats.index_json import Entry, list_indexed
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    Columns,
    Format,
    Options,
    Shard,
    check_columns,
    check_samples,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.urls import Listing, Urls

_END = b"\xff\xff\xff\xff\0\0\0\0"


class Arrow(Format):
    """Arrow IPC files and streams."""

    name = "arrow"
    suffixes = (".arrow", ".arrows", ".feather", ".ipc")

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """Of a folder that Hugging Face's library saved, what its `state.json` names: other files are its cache."""
        return list_indexed(urls, self.suffixes, storage, _entries, "state.json")

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        return index_part(shard, (0, shard.size), block_bytes)

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """The shard's columns, or those asked for in that order, and `__offset__`."""
        return read_part(shard, (0, shard.size), blocks, columns)


FORMAT = Arrow()


def _entries(state: Any) -> list[Entry]:
    return [Entry({file["filename"]: None}) for file in state["_data_files"]]


def index_part(shard: Shard, part: tuple[int, int], block_bytes: int) -> ShardBlocks:
    """The blocks of a part of a shard that is an Arrow file or stream."""
    with shard.open() as file:
        _, *found = messages(shard, file, part)
    while found and found[0].kind == "dictionary":
        found.pop(0)
    batches = [message for message in found if message.rows]
    builder = BlockBuilder(block_bytes)
    if batches and any(message.kind == "dictionary" for message in found):
        nbytes, rows = (
            sum(getattr(message, name) for message in found) for name in ("nbytes", "rows")
        )
        builder.add(batches[0].begin, batches[-1].end, nbytes, rows)
        return builder.finish()
    for batch in batches:
        builder.add(batch.begin, batch.end, batch.nbytes, batch.rows)
    return builder.finish()


def read_part(
    shard: Shard, part: tuple[int, int], blocks: Sequence[Block], columns: Columns
) -> list[pa.Table]:
    """The tables of blocks of a part of a shard."""
    start = _start(shard.storage, shard.url, shard.size, part)
    pieces = shard.ranges([(begin, end) for begin, end, _ in blocks])
    return [
        _table(shard, start, piece, block, columns)
        for block, piece in zip(blocks, pieces, strict=True)
    ]


@lru_cache(maxsize=256)
def _start(storage: Storage, url: str, size: int, part: tuple[int, int]) -> bytes:
    """The schema and dictionaries, without which no batch can be read."""
    shard = Shard(storage, url, size, strict=False)
    begin = end = -1
    with shard.open() as file:
        for message in messages(shard, file, part):
            if message.kind == "batch":
                break
            begin, end = message.begin if begin < 0 else begin, message.end
    return shard.ranges([(begin, end)])[0]


def _table(shard: Shard, start: bytes, piece: bytes, block: Block, columns: Columns) -> pa.Table:
    source = pa.BufferReader(start + piece + _END)
    with _damage(shard, block[0]):
        schema = pa.ipc.read_schema(pa.BufferReader(start))
        names = check_columns(shard, schema.names, columns)
        fields = sorted(schema.get_field_index(name) for name in set(names))
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        batches, offsets = [], []
        with pa.ipc.open_stream(source, options=options) as reader:
            while True:
                at = source.tell()
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    break
                batches.append(batch)
                offsets.append(np.full(batch.num_rows, block[0] + at - len(start), np.int64))
        table = pa.Table.from_batches(batches, reader.schema).select(list(names))
        table.validate(full=True)
        check_samples(shard, block, table.num_rows)
        table = table.append_column(OFFSET, pa.array(np.concatenate(offsets)))
        return plain_features(table).replace_schema_metadata({b"shard": shard.shown.encode()})


@contextmanager
def _damage(shard: Shard, offset: int) -> Iterator[None]:
    """Inside, what pyarrow raises becomes a DataError that says where. UnicodeDecodeError: names of columns."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise shard.error(f"damaged Arrow data: {error}", offset) from error
