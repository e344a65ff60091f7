"""TFRecord: a sample a record, each with its length and the checksums of that and of its data.

Owns the framing (https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details), without TensorFlow;
what is in a record is known to `tf_example`. Blocks are byte ranges between records; a file that is compressed is one
block. Indexing looks at lengths alone; the data's checksums are looked at whenever it is read.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from rayingest.formats.blocks import BlockBuilder, single_block
from rayingest.formats.columns import bytes_column
from rayingest.formats.compression import EXPANSION, compression_of, decompressed
from rayingest.formats.optional import needed
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    Columns,
    Format,
    Shard,
    check_columns,
    check_samples,
    raw_table,
)
from rayingest.plan.order.manifest import ShardBlocks

EXAMPLE, RECORD = "__example__", "record"
LISTS, EXAMPLES = "lists", "examples"
"""The options: which features are lists, and whether records are Examples at all."""

_HEAD, _TAIL = struct.Struct("<QI"), struct.Struct("<I")
_PLAIN = (".tfrecord", ".tfrecords", ".tfrec")


class TfRecord(Format):
    """TFRecord shards, plain or compressed as a whole."""

    name = "tfrecord"
    suffixes = tuple(plain + end for plain in _PLAIN for end in ("", ".gz", ".zst"))
    option_names = (EXPANSION, LISTS, EXAMPLES)

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        if compression_of(shard.url):
            sizes = [len(data) for _, data in _records(shard, b"".join(decompressed(shard)), 0)]
            return single_block(shard.size, len(sizes), sum(sizes))
        builder = BlockBuilder(block_bytes)
        with shard.open() as file:
            for begin, end in _frames(shard, file, 0, shard.size):
                builder.add(begin, end, end - begin)
        return builder.finish()

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Columns `__example__`, or with `examples=False` `record` (binary), and `__offset__`: the byte at which the
        record begins, in the uncompressed file. Examples come whole whatever `columns` says.
        """
        if compression_of(shard.url):
            whole = b"".join(decompressed(shard))
            return [_table(shard, whole, 0, block, columns) for block in blocks]
        pieces = shard.ranges([(begin, end) for begin, end, _ in blocks])
        return [
            _table(shard, piece, block[0], block, columns)
            for block, piece in zip(blocks, pieces, strict=True)
        ]


FORMAT = TfRecord()


def _table(shard: Shard, data: bytes, base: int, block: Block, columns: Columns) -> pa.Table:
    found = list(_records(shard, data, base))
    check_samples(shard, block, len(found))
    offsets = pa.array(np.fromiter((offset for offset, _ in found), np.int64, len(found)))
    records = bytes_column([record for _, record in found])
    if shard.options.get(EXAMPLES, True):
        encodings = {EXAMPLE: json.dumps(list(shard.options.get(LISTS, ())))}
        return raw_table(shard, {EXAMPLE: records, OFFSET: offsets}, encodings)
    wanted = check_columns(shard, [RECORD], columns)
    return raw_table(shard, {**dict.fromkeys(wanted, records), OFFSET: offsets})


def _records(shard: Shard, data: bytes, base: int) -> Iterator[tuple[int, bytes]]:
    """Where each record begins in the shard, and its data; `data` stands at `base` in it."""
    for begin, end in _frames(shard, io.BytesIO(data), base, base + len(data)):
        record = data[begin - base + _HEAD.size : end - base - _TAIL.size]
        if _masked_crc(record) != _TAIL.unpack_from(data, end - base - _TAIL.size)[0]:
            raise shard.error("a record's data is damaged: its checksum does not hold", begin)
        yield begin, record


def _frames(shard: Shard, file: BinaryIO, base: int, end: int) -> Iterator[tuple[int, int]]:
    """Where each record begins and ends in the shard; what is read from `file`, which stands at `base` in it."""
    at = base
    while at < end:
        file.seek(at - base)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise shard.error("the file is cut off inside a record", at)
        length, crc = _HEAD.unpack(head)
        if _masked_crc(head[:8]) != crc:
            raise shard.error("no record begins here: the checksum of its length does not hold", at)
        begin, at = at, at + _HEAD.size + length + _TAIL.size
        if at > end:
            raise shard.error(f"the file is cut off inside a record of {length} bytes", begin)
        yield begin, at


def _masked_crc(data: bytes) -> int:
    crc = needed("google_crc32c", "tfrecord", "reading TFRecord").value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
