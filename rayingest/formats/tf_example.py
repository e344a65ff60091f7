"""`tf.train.Example`: named features, each a list of bytes, floats or integers, in protocol buffers.

Owns what a feature becomes. One value unless its name is said to be a list: the message itself does not tell a list of
one from a single value, and what a field is must not depend on how many there happen to be. Messages as in
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from rayingest.errors import DataError
from rayingest.formats.optional import needed

_LISTS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
_DTYPES = {"float_list": np.float32, "int64_list": np.int64}


class Example(Mapping[str, Any]):
    """Features by name, made when asked for: int, float32 or bytes, of `lists` 1-D arrays and lists of bytes.

    One of `lists` that is not in the message is an empty list, as TensorFlow has it: writers leave such out.
    DataError for bytes that are no Example, and for a feature that does not hold one value and is none of `lists`.
    """

    def __init__(self, data: bytes, lists: Collection[str] = ()) -> None:
        message, errors = _message()
        try:
            self._features = message.FromString(data).features.feature
        except errors as error:
            raise DataError(f"not a tf.train.Example: {error}") from error
        self._names, self._lists = sorted({*self._features, *lists}), lists

    def __getitem__(self, name: str) -> Any:
        if name not in self._features:  # asking would make it
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
                f"feature {name!r} holds {len(values)} values, not one: name it in lists=[{name!r}, ...]"
            )
        return np.float32(values[0]) if kind == "float_list" else values[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@cache
def _message() -> tuple[Any, type[Exception]]:
    """The class of the message, and of what parsing it raises."""
    what = "reading tf.train.Example"
    proto = needed("google.protobuf.descriptor_pb2", "tfrecord", what)
    pool = needed("google.protobuf.descriptor_pool", "tfrecord", what).DescriptorPool()
    factory = needed("google.protobuf.message_factory", "tfrecord", what)
    file = proto.FileDescriptorProto(
        name="rayingest/example.proto", package="rayingest", syntax="proto3"
    )
    field = proto.FieldDescriptorProto

    def message(name: str, **fields: tuple[int, Any, str | None]) -> Any:
        made = file.message_type.add(name=name)
        for field_name, (label, kind, type_name) in fields.items():
            number = len(made.field) + 1
            made.field.add(
                name=field_name, number=number, label=label, type=kind, type_name=type_name
            )
        return made

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
    errors = needed("google.protobuf.message", "tfrecord", what).DecodeError
    return factory.GetMessageClass(pool.FindMessageTypeByName("rayingest.Example")), errors
