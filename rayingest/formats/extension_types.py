"""Read columns of Arrow's extension types by their storage and metadata, the same everywhere.

Arrow gives a column its extension type only in a process that has imported the library which
registers the type, and its storage in every other. Owns which metadata say that a column holds
tensors: those of Ray Data, of Hugging Face's datasets, and of Arrow. Every other type of a library
(https://arrow.apache.org/docs/format/Columnar.html#extension-types) means its storage. Nothing is
unpickled. Types that pyarrow itself registers (`arrow.uuid`, `arrow.json`) are left as they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import DataError
from rayingest.formats.columns import (
    ENCODING,
    array_encoding,
    fixed_column,
    npy_header,
    nullable_column,
    with_encodings,
)

_NAME, _METADATA = b"ARROW:extension:name", b"ARROW:extension:metadata"

Converted = tuple[pa.Array | pa.ChunkedArray, str | None]
"""A column, and its encoding if its values are encoded."""


def convert_extensions(table: pa.Table) -> pa.Table:
    """Return the table with columns of Arrow's own types in place of extension types.

    Tensors become Arrow's tensors, or bytes with an encoding where Arrow has no tensor for them.
    DataError for tensors whose metadata or sizes are not those of the type.
    """
    encodings: dict[str, str] = {}
    for place, field in enumerate(table.schema):
        name, metadata = _extension(field)
        column = storage_of(table.column(place))
        encoding = None
        if convert := _tensors_of(name):
            try:
                column, encoding = convert(column, json.loads(metadata))
            except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
                raise DataError(
                    f"field {field.name!r} is of type {name}, and cannot be read: {error}"
                ) from error
        if not name and column.type == field.type:
            continue
        kept = {
            key: value
            for key, value in (field.metadata or {}).items()
            if key not in {_NAME, _METADATA}
        }
        # The metadata must go: they would bring the type back in another process.
        plain = pa.field(field.name, column.type, metadata=kept or None)
        table = table.set_column(place, plain, column)
        if encoding is not None:
            encodings[field.name] = encoding
    return with_encodings(table, encodings) if encodings else table


def is_encoded(field: pa.Field) -> bool:
    """Return whether the field's values are encoded."""
    return ENCODING in (field.metadata or {})


def array_column(
    column: pa.ChunkedArray, shape: Sequence[int | None], dtype: Any = None
) -> Converted:
    """Return flat or nested lists as a column of arrays of this shape, null where they are null.

    The first length may be None: then it is each array's own. `dtype`: default: that of the lists.
    ValueError for lists of another shape, and for a null inside.
    """
    if None in shape or column.null_count:
        lengths = [-1 if length is None else length for length in shape]
        return _npy_column(
            np.asarray(_items(row.values), dtype).reshape(lengths) if row.is_valid else None
            for row in column
        )
    flat = np.asarray(_items(column.combine_chunks()), dtype)
    lengths = [length or 0 for length in shape]
    if flat.size != len(column) * math.prod(lengths):
        raise ValueError(f"its lists do not have the shape {tuple(shape)}")
    return fixed_column(flat.tobytes(), len(column)), array_encoding(flat.dtype, lengths)


def _extension(field: pa.Field) -> tuple[str, bytes]:
    """Return the name and the metadata of a field's extension type; "" if it has none.

    A type that pyarrow itself registers counts as none, unless numpy has no tensor for it.
    """
    if isinstance(field.type, pa.FixedShapeTensorType):
        kind = field.type
        if pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type):
            return "", b""
        return kind.extension_name, json.dumps({"shape": kind.shape}).encode()
    if isinstance(field.type, pa.ExtensionType):
        return field.type.extension_name, field.type.__arrow_ext_serialize__()
    metadata = field.metadata or {}
    return metadata.get(_NAME, b"").decode(), metadata.get(_METADATA, b"")


def storage_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column in the types of its storage, also inside lists and structs."""
    plain = storage_type(column.type)
    return column if plain == column.type else column.cast(plain)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in terms of the storage of the extension types in it."""
    is_bool_tensor = isinstance(kind, pa.FixedShapeTensorType) and pa.types.is_boolean(
        kind.value_type
    )
    if isinstance(kind, pa.ExtensionType) or is_bool_tensor:
        return storage_type(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([_storage_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_storage_field(kind.value_field), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(_storage_field(kind.value_field))
    return kind


def _storage_field(field: pa.Field) -> pa.Field:
    kind = storage_type(field.type)
    return field if kind == field.type else field.with_type(kind)


def _tensors_of(name: str) -> Callable[[pa.ChunkedArray, Any], Converted] | None:
    """Return how the columns of a type become tensors; None for a type of other values."""
    if name.startswith("datasets.features.") and name.endswith("DExtensionType"):
        return lambda column, metadata: array_column(column, *metadata)
    return _TENSORS.get(name)


def _fixed(column: pa.ChunkedArray, shape: Sequence[int]) -> Converted:
    """Return flat lists as tensors of one shape."""
    kind = column.type.value_type
    size = math.prod(shape)
    if not _has_dtype(kind):
        return column, None
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or not size:
        return array_column(column, shape)
    tensor = pa.fixed_shape_tensor(kind, list(shape))
    chunks = column.cast(pa.list_(kind, size)).chunks
    arrays = [pa.ExtensionArray.from_storage(tensor, chunk) for chunk in chunks]
    return pa.chunked_array(arrays, tensor), None


def _variable(column: pa.ChunkedArray, metadata: Any) -> Converted:
    """Return structs of flat lists and shapes as arrays; Arrow's own may be permuted."""
    order = metadata.get("permutation") if isinstance(metadata, dict) else None
    if not _has_dtype(column.type.field("data").type.value_type):
        return column, None

    def tensors() -> Iterator[np.ndarray | None]:
        for row in column:
            if row.is_valid:
                array = _items(row["data"].values).reshape(row["shape"].as_py())
                yield array if order is None else array.transpose(order)
            else:
                yield None

    return _npy_column(tensors())


_TENSORS: dict[str, Callable[[pa.ChunkedArray, Any], Converted]] = {
    "ray.data.arrow_tensor": _fixed,
    "ray.data.arrow_tensor_v2": _fixed,
    "ray.data.arrow_variable_shaped_tensor": _variable,
    "arrow.fixed_shape_tensor": lambda column, metadata: _fixed(column, metadata["shape"]),
    "arrow.variable_shape_tensor": _variable,
}
"""The registry of types of tensors, by name: how storage and metadata become a column."""


def _npy_column(arrays: Iterator[np.ndarray | None]) -> Converted:
    """Return arrays of any shape as .npy files, null for None."""
    files = [
        None if array is None else npy_header(array.dtype, array.shape) + array.tobytes()
        for array in arrays
    ]
    return nullable_column(files), "npy"


def _has_dtype(kind: pa.DataType) -> bool:
    """Return whether numpy has a dtype for values of this type."""
    return (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )


def _items(values: pa.Array) -> np.ndarray:
    """Return the items of flat or nested lists, without pandas. ValueError for a null."""
    while hasattr(values.type, "value_type") and not pa.types.is_dictionary(values.type):
        if values.null_count:
            raise ValueError("a list inside an array is null")
        values = values.flatten()
    if values.null_count:
        raise ValueError("a value inside an array is null")
    if pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type):
        letter = "M" if pa.types.is_timestamp(values.type) else "m"
        return np.from_dlpack(values.cast(pa.int64())).view(f"{letter}8[{values.type.unit}]")
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        return np.from_dlpack(values)
    return np.array(values.to_pylist())
