"""The messages that Arrow IPC files and streams consist of: where each lies, and how many rows it holds.

Owns the framing, so that record batches can be found without reading them; what they hold is pyarrow's to read. A file
is a stream behind a magic word and before a footer, which repeats what the messages say and is not needed. See
https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc; the few fields
looked at here are in Message.fbs, at these places.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from rayingest.formats.protocol import Shard

MAGIC = b"ARROW1\0\0"

_LAST = MAGIC[:6]
_CONTINUATION = b"\xff" * 4
_END = (b"\0" * 4, _CONTINUATION + b"\0" * 4)
_FEATHER_1 = b"FEA1"
_KINDS = {1: "schema", 2: "dictionary", 3: "batch"}
_MAX_METADATA = 256 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """One message: "schema", "dictionary" or "batch", its range in the file, and of a batch its rows and bytes."""

    kind: str
    begin: int
    end: int
    rows: int
    nbytes: int


def messages(shard: Shard, file: BinaryIO, part: tuple[int, int]) -> Iterator[Message]:
    """The messages in this part of the shard's file, up to their end marker.

    DataError where there is none, and for anything else that is not whole.
    """
    start, end = part
    file.seek(start)
    head = file.read(8)
    if head.startswith(_FEATHER_1):
        raise shard.error("Feather version 1 is not read: write it again, as version 2", start)
    at = start + (len(MAGIC) if head == MAGIC else 0)
    first = True
    while True:
        file.seek(at)
        prefix = file.read(8)
        if prefix[:4] == _END[0] or prefix == _END[1]:
            _check_end(shard, file, head == MAGIC, at + (8 if prefix == _END[1] else 4), end)
            return
        length = (
            struct.unpack("<i", prefix[4:])[0]
            if len(prefix) == 8 and prefix[:4] == _CONTINUATION
            else -1
        )
        if length < 0 or length > _MAX_METADATA:
            raise shard.error("no Arrow message here: the file is cut off, or none of Arrow's", at)
        metadata = file.read(length)
        try:
            message = _parse(metadata, at)
        except (struct.error, KeyError, IndexError) as error:
            raise shard.error("damaged Arrow message, or one that is cut off", at) from error
        if len(metadata) < length or message.end > end:
            raise shard.error("the file is cut off inside an Arrow message", at)
        if first != (message.kind == "schema"):
            raise shard.error("one schema must come first, and only there", at)
        yield message
        first, at = False, message.end


def _check_end(shard: Shard, file: BinaryIO, is_file: bool, at: int, end: int) -> None:
    """That behind the end marker there is a footer, or nothing."""
    begin = max(at, end - len(_LAST))
    file.seek(begin)
    last = file.read(end - begin)
    if is_file and last != _LAST:
        raise shard.error("the Arrow file is cut off: its footer is not whole", end)
    if not is_file and last and shard.strict:
        raise shard.error(
            "data follows the end of the Arrow stream (files put one behind the other?)", at
        )


def _parse(metadata: bytes, begin: int) -> Message:
    root = _number("<I", metadata, 0)
    kind = _KINDS[_number("<B", metadata, _field(metadata, root, 1))]
    nbytes = _number("<q", metadata, _field(metadata, root, 3))
    rows = _rows(metadata, _pointed(metadata, root, 2)) if kind == "batch" else 0
    if rows < 0 or nbytes < 0:
        raise IndexError
    return Message(kind, begin, begin + 8 + len(metadata) + nbytes, rows, nbytes)


def _rows(metadata: bytes, batch: int) -> int:
    """How many a batch has, which is told twice: by itself, and by the first of its columns."""
    rows = _number("<q", metadata, _field(metadata, batch, 0))
    if _field(metadata, batch, 1) is not None:
        columns = _pointed(metadata, batch, 1)
        if _number("<I", metadata, columns) and _number("<q", metadata, columns + 4) != rows:
            raise IndexError
    return rows


def _pointed(data: bytes, table: int, number: int) -> int:
    """Where that stands which a field points at."""
    place = _field(data, table, number)
    if place is None:
        raise KeyError(number)
    return place + _number("<I", data, place)


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a FlatBuffers table stands; None for one that is left out, which is zero then."""
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
