"""Read Arrow IPC, files (Feather version 2 too) and streams: a block is a run of record batches.

Owns the framing: where each message lies and how many rows it holds, so that record batches are
found without reading them. pyarrow decodes them. Batches without rows are left out of the index; if
dictionaries come between batches, the shard is one block, since a batch alone has no meaning then.
Arrow has no checksums: damage that leaves valid values goes unnoticed. In errors, `offset` is the
byte of the record batch.

A file is a stream between a magic word and a footer, which repeats the messages and is not needed.
See
https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc;
the fields that are read here are those of Message.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from rayingest.errors import DataError
from rayingest.formats.extension_types import convert_extensions
from rayingest.formats.huggingface import convert_features
from rayingest.formats.index_json import Entry, list_indexed
from rayingest.formats.nested import has_path, select_paths, top_of
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    BlockBuilder,
    Columns,
    Format,
    Options,
    Shard,
    check_columns,
    check_samples,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, Urls

_END = b"\xff\xff\xff\xff\0\0\0\0"


class Arrow(Format):
    """Arrow IPC files and streams."""

    name = "arrow"
    suffixes = (".arrow", ".arrows", ".feather", ".ipc")
    is_tabular = True

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """Return the shards; in a folder that Hugging Face's library saved, those it lists.

        Its `state.json` lists them; the other files there are its cache.
        """
        return list_indexed(urls, self.suffixes, storage, _entries, "state.json")

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        return index_part(shard, (0, shard.size), block_bytes)

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return the columns, or those asked for in that order, and `__offset__`."""
        return read_part(shard, (0, shard.size), blocks, columns)


FORMAT = Arrow()


def _entries(state: Any) -> list[Entry]:
    return [Entry({file["filename"]: None}) for file in state["_data_files"]]


def index_part(shard: Shard, part: tuple[int, int], block_bytes: int) -> ShardBlocks:
    """Return the blocks of a part of a shard that is an Arrow file or stream."""
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
    """Return the tables of blocks in a part of a shard."""
    start = _preamble(shard.storage, shard.url, shard.size, part)
    pieces = shard.ranges([(begin, end) for begin, end, _ in blocks])
    return [
        _table(shard, start, piece, block, columns)
        for block, piece in zip(blocks, pieces, strict=True)
    ]


@lru_cache(maxsize=256)
def _preamble(storage: Storage, url: str, size: int, part: tuple[int, int]) -> bytes:
    """Return the bytes of the schema and dictionaries, which every batch needs."""
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
        names = check_columns(shard, schema.names, columns, partial(has_path, schema))
        tops = {top_of(name, schema.names) for name in names}
        fields = sorted(map(schema.get_field_index, tops))
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
        table = select_paths(pa.Table.from_batches(batches, reader.schema), names)
        table.validate(full=True)
        check_samples(shard, block, table.num_rows)
        table = convert_features(convert_extensions(table))
        table = table.append_column(OFFSET, pa.array(np.concatenate(offsets)))
        return table.replace_schema_metadata({b"shard": shard.safe_url.encode()})


@contextmanager
def _damage(shard: Shard, offset: int) -> Iterator[None]:
    """Raise DataError for what pyarrow raises. UnicodeDecodeError comes from column names.

    A DataError without a place gets the shard and this one.
    """
    try:
        yield
    except DataError as error:
        raise error if error.shard else shard.error(error.reason, offset) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise shard.error(f"damaged Arrow data: {error}", offset) from error


MAGIC = b"ARROW1\0\0"

_LAST = MAGIC[:6]
_CONTINUATION = b"\xff" * 4
_END_MARKS = (b"\0" * 4, _CONTINUATION + b"\0" * 4)
_FEATHER_1 = b"FEA1"
_KINDS = {1: "schema", 2: "dictionary", 3: "batch"}
_MAX_METADATA = 256 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """A message: "schema", "dictionary" or "batch", its range in the file, its rows and bytes."""

    kind: str
    begin: int
    end: int
    rows: int
    nbytes: int


def messages(shard: Shard, file: BinaryIO, part: tuple[int, int]) -> Iterator[Message]:
    """Yield the messages of this part of the file, up to the end marker.

    DataError if the marker is missing, or a message is not whole.
    """
    start, end = part
    file.seek(start)
    head = file.read(8)
    if head.startswith(_FEATHER_1):
        raise shard.error("Feather version 1 is not supported: write the file as version 2", start)
    at = start + (len(MAGIC) if head == MAGIC else 0)
    first = True
    while True:
        file.seek(at)
        prefix = file.read(8)
        if prefix[:4] == _END_MARKS[0] or prefix == _END_MARKS[1]:
            _check_end(shard, file, head == MAGIC, at + (8 if prefix == _END_MARKS[1] else 4), end)
            return
        length = (
            struct.unpack("<i", prefix[4:])[0]
            if len(prefix) == 8 and prefix[:4] == _CONTINUATION
            else -1
        )
        if length < 0 or length > _MAX_METADATA:
            raise shard.error("no Arrow message here: the file is cut off, or is not Arrow", at)
        metadata = file.read(length)
        try:
            message = _parse(metadata, at)
        except (struct.error, KeyError, IndexError) as error:
            raise shard.error("the Arrow message is damaged or cut off", at) from error
        if len(metadata) < length or message.end > end:
            raise shard.error("the file is cut off inside an Arrow message", at)
        if first != (message.kind == "schema"):
            raise shard.error("the schema is not the first message, or there are two", at)
        yield message
        first, at = False, message.end


def _check_end(shard: Shard, file: BinaryIO, is_file: bool, at: int, end: int) -> None:
    """Check that a footer follows the end marker of a file, and nothing that of a stream."""
    begin = max(at, end - len(_LAST))
    file.seek(begin)
    last = file.read(end - begin)
    if is_file and last != _LAST:
        raise shard.error("the Arrow file is cut off inside its footer", end)
    if not is_file and last and shard.strict:
        raise shard.error("data follow the end of the Arrow stream (concatenated files?)", at)


def _parse(metadata: bytes, begin: int) -> Message:
    root = _number("<I", metadata, 0)
    kind = _KINDS[_number("<B", metadata, _field(metadata, root, 1))]
    nbytes = _number("<q", metadata, _field(metadata, root, 3))
    rows = _rows(metadata, _pointed(metadata, root, 2)) if kind == "batch" else 0
    if rows < 0 or nbytes < 0:
        raise IndexError
    return Message(kind, begin, begin + 8 + len(metadata) + nbytes, rows, nbytes)


def _rows(metadata: bytes, batch: int) -> int:
    """Return the rows of a batch, which its header and its first column both give."""
    rows = _number("<q", metadata, _field(metadata, batch, 0))
    if _field(metadata, batch, 1) is not None:
        columns = _pointed(metadata, batch, 1)
        if _number("<I", metadata, columns) and _number("<q", metadata, columns + 4) != rows:
            raise IndexError
    return rows


def _pointed(data: bytes, table: int, number: int) -> int:
    """Return the place to which a field points."""
    place = _field(data, table, number)
    if place is None:
        raise KeyError(number)
    return place + _number("<I", data, place)


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return the place of a field of a FlatBuffers table; None for one that is left out (zero)."""
    vtable = table - _number("<i", data, table)
    entry = 4 + 2 * number
    offset = _number("<H", data, vtable + entry) if entry < _number("<H", data, vtable) else 0
    return table + offset if offset else None


def _number(kind: str, data: bytes, at: int | None) -> int:
    if at is None:
        return 0
    if at < 0:
        raise IndexError
    return int(struct.unpack_from(kind, data, at)[0])
