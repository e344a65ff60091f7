"""Read TFRecord: a sample per record, and `tf.train.Example`, the usual content of a record.

Owns the framing, without TensorFlow: a record has its length, and checksums of the length and the
data (https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details). Blocks are
byte ranges between records; a compressed file is one block. Indexing verifies lengths only; reading
verifies the data.

Owns also what a feature of an Example becomes: one value, unless its name is in `lists`. The
message does not tell a list of one from a single value, and a field's type must not depend on how
many values a sample has. See
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from rayingest.errors import DataError
from rayingest.formats.columns import bytes_column
from rayingest.formats.compression import EXPANSION, compression_of, decompress
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    BlockBuilder,
    Columns,
    Format,
    Shard,
    check_columns,
    check_samples,
    raw_table,
    single_block,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.util.optional import import_optional

EXAMPLE, RECORD = "__example__", "record"
LISTS, EXAMPLES = "lists", "examples"
"""The options: names of the features that are lists; whether records are Examples."""

_HEAD, _TAIL = struct.Struct("<QI"), struct.Struct("<I")
_PLAIN = (".tfrecord", ".tfrecords", ".tfrec")


class TfRecord(Format):
    """TFRecord shards, plain or compressed as a whole."""

    name = "tfrecord"
    suffixes = tuple(plain + end for plain in _PLAIN for end in ("", ".gz", ".zst"))
    option_names = (EXPANSION, LISTS, EXAMPLES)

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        if compression_of(shard.url):
            sizes = [len(data) for _, data in _records(shard, b"".join(decompress(shard)), 0)]
            return single_block(shard.size, len(sizes), sum(sizes))
        builder = BlockBuilder(block_bytes)
        with shard.open() as file:
            for begin, end in _frames(shard, file, 0, shard.size):
                builder.add(begin, end, end - begin)
        return builder.finish()

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return `__example__` (or `record`, with `examples=False`) and `__offset__`.

        `__offset__` is the byte at which the record begins, in the uncompressed file. Examples are
        whole, whatever `columns` says.
        """
        if compression_of(shard.url):
            whole = b"".join(decompress(shard))
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
    """Yield begin and data of each record; `data` stands at `base` in the shard."""
    for begin, end in _frames(shard, io.BytesIO(data), base, base + len(data)):
        record = data[begin - base + _HEAD.size : end - base - _TAIL.size]
        if _masked_crc(record) != _TAIL.unpack_from(data, end - base - _TAIL.size)[0]:
            raise shard.error("the record's data are damaged: their checksum is wrong", begin)
        yield begin, record


def _frames(shard: Shard, file: BinaryIO, base: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each record in the shard; `file` stands at `base` in it."""
    at = base
    while at < end:
        file.seek(at - base)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise shard.error("the file is cut off inside a record", at)
        length, crc = _HEAD.unpack(head)
        if _masked_crc(head[:8]) != crc:
            raise shard.error("no record begins here: the checksum of its length is wrong", at)
        begin, at = at, at + _HEAD.size + length + _TAIL.size
        if at > end:
            raise shard.error(f"the file is cut off inside a record of {length} bytes", begin)
        yield begin, at


def _masked_crc(data: bytes) -> int:
    crc = import_optional("google_crc32c", "tfrecord", "reading TFRecord").value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


_LISTS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
_DTYPES = {"float_list": np.float32, "int64_list": np.int64}


class Example(Mapping[str, Any]):
    """Decode features by name: int, float32 or bytes; for `lists` 1-D arrays and lists of bytes.

    A feature of `lists` that is not in the message is an empty list, as in TensorFlow: writers
    leave such features out. DataError for bytes that are no Example, and for a feature outside
    `lists` without exactly one value.
    """

    def __init__(self, data: bytes, lists: Collection[str] = ()) -> None:
        message, errors = _message()
        try:
            self._features = message.FromString(data).features.feature
        except errors as error:
            raise DataError(f"not a tf.train.Example: {error}") from error
        self._names, self._lists = sorted({*self._features, *lists}), lists

    def __getitem__(self, name: str) -> Any:
        if name not in self._features:  # access would create it
            if name in self._lists:
                return []
            raise KeyError(name)
        kind = self._features[name].WhichOneof("kind")
        values = [] if kind is None else getattr(self._features[name], kind).value
        if name in self._lists:
            return (
                list(values)
                if kind not in _DTYPES
                else np.fromiter(values, _DTYPES[kind], len(values))
            )
        if len(values) != 1:
            raise DataError(
                f"feature {name!r} holds {len(values)} values instead of one: read it as a list, "
                f"lists=[{name!r}, ...]"
            )
        return np.float32(values[0]) if kind == "float_list" else values[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@cache
def _message() -> tuple[Any, type[Exception]]:
    """Return the message's class, and the class of its parsing errors."""
    what = "reading tf.train.Example"
    proto = import_optional("google.protobuf.descriptor_pb2", "tfrecord", what)
    pool = import_optional("google.protobuf.descriptor_pool", "tfrecord", what).DescriptorPool()
    factory = import_optional("google.protobuf.message_factory", "tfrecord", what)
    file = proto.FileDescriptorProto(
        name="rayingest/example.proto", package="rayingest", syntax="proto3"
    )
    field = proto.FieldDescriptorProto

    def message(name: str, **fields: tuple[int, Any, str | None]) -> Any:
        message_type = file.message_type.add(name=name)
        for field_name, (label, kind, type_name) in fields.items():
            number = len(message_type.field) + 1
            message_type.field.add(
                name=field_name, number=number, label=label, type=kind, type_name=type_name
            )
        return message_type

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    for name, kind in (
        ("Bytes", field.TYPE_BYTES),
        ("Float", field.TYPE_FLOAT),
        ("Int64", field.TYPE_INT64),
    ):
        message(f"{name}List", value=(many, kind, None))
    feature = message(
        "Feature",
        bytes_list=(one, field.TYPE_MESSAGE, ".rayingest.BytesList"),
        float_list=(one, field.TYPE_MESSAGE, ".rayingest.FloatList"),
        int64_list=(one, field.TYPE_MESSAGE, ".rayingest.Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for part in feature.field:
        part.oneof_index = 0
    features = message(
        "Features", feature=(many, field.TYPE_MESSAGE, ".rayingest.Features.FeatureEntry")
    )
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=field.TYPE_STRING)
    entry.field.add(
        name="value", number=2, label=one, type=field.TYPE_MESSAGE, type_name=".rayingest.Feature"
    )
    message("Example", features=(one, field.TYPE_MESSAGE, ".rayingest.Features"))
    pool.Add(file)
    errors = import_optional("google.protobuf.message", "tfrecord", what).DecodeError
    return factory.GetMessageClass(pool.FindMessageTypeByName("rayingest.Example")), errors
