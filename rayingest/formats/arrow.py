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

import numpy as np
import pyarrow as pa

from rayingest.formats.arrow_messages import MAGIC, messages
from rayingest.formats.blocks import BlockBuilder
from rayingest.formats.huggingface import plain_features
from rayingest.formats.protocol import OFFSET, Block, Columns, Format, Shard, check_columns, check_samples
from rayingest.plan.manifest import ShardBlocks
from rayingest.storage.files import Storage

_END = b"\xff\xff\xff\xff\0\0\0\0"


class Arrow(Format):
    """Arrow IPC files and streams."""

    name = "arrow"
    suffixes = (".arrow", ".arrows", ".feather", ".ipc")

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        with shard.open() as file:
            _, *found = messages(shard, file)
        while found and found[0].kind == "dictionary":
            found.pop(0)
        together = any(message.kind == "dictionary" for message in found)
        builder = BlockBuilder(block_bytes)
        if together:
            rows, nbytes = (sum(getattr(m, name) for m in found) for name in ("rows", "nbytes"))
            found = [m for m in found if m.rows]
            if rows:
                builder.add(found[0].begin, found[-1].end, nbytes, rows)
        else:
            for message in found:
                if message.rows:
                    builder.add(message.begin, message.end, message.nbytes, message.rows)
        return builder.finish()

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """The shard's columns, or those asked for in that order, and `__offset__`."""
        start = _start(shard.storage, shard.url, shard.size)
        pieces = shard.ranges([(begin, end) for begin, end, _ in blocks])
        return [_table(shard, start, piece, block, columns) for block, piece in zip(blocks, pieces, strict=True)]


FORMAT = Arrow()


@lru_cache(maxsize=256)
def _start(storage: Storage, url: str, size: int) -> bytes:
    """The schema and dictionaries, without which no batch can be read."""
    shard = Shard(storage, url, size, strict=False)
    with shard.open() as file:
        begin = len(MAGIC) if file.read(len(MAGIC)) == MAGIC else 0
        file.seek(0)
        end = begin
        for message in messages(shard, file):
            if message.kind == "batch":
                break
            end = message.end
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
