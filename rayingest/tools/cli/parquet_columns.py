"""Turn samples into columns of one schema, the first block's, because Parquet has one per file.

No value changes and no field is dropped: a column takes only values that its type holds exactly
(integers among floats, numbers of a narrower type, empty lists, null). Anything else is an error
that names the field and the sample. A missing field is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.formats.columns import ENCODING
from rayingest.tools.cli.parts import SampleBlock
from rayingest.util.names import show_names

_UNFIT = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    ValueError,
    TypeError,
    OverflowError,
)
_REMEDY = (
    "give it one type in all samples with .map(), leave it out with .select(), or, for JSON Lines, "
    "set types="
)


def schema_of(block: SampleBlock) -> pa.Schema:
    """Return the schema for all blocks: the types of the first block's columns or values."""
    fields = []
    for name in _names(block):
        encoding = block.encodings.get(name)
        kind = _column(name, block).type
        fields.append(
            pa.field(
                name, kind, metadata={ENCODING: encoding} if encoding and _is_bytes(kind) else None
            )
        )
    return pa.schema(fields)


def table_of(block: SampleBlock, schema: pa.Schema) -> pa.Table:
    """Return the block's rows, null for a missing field.

    Raises DataError for a value that `schema` cannot hold.
    """
    for name in _names(block):
        if name in schema.names:
            continue
        place = _first(column := _column(name, block))
        if place is not None:
            raise block.error(
                place,
                f"field {name!r} ({column.type}) is not a field of the first block, whose fields "
                f"are Parquet's columns: {show_names(schema.names, name)}; {_REMEDY}",
            )
    arrays = [_fit(field.name, block, field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _names(block: SampleBlock) -> list[str]:
    return list(
        dict.fromkeys([*block.columns, *(name for sample in block.samples for name in sample)])
    )


def _first(column: pa.Array) -> int | None:
    """Return the first row that is not null."""
    there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    return int(there[0]) if len(there) else None


def _fit(name: str, block: SampleBlock, kind: pa.DataType) -> pa.Array:
    try:
        return _cast(_raw_column(name, block), kind)
    except _UNFIT:
        values = _values(name, block)
        place = _first_unfit(values, kind)
        raise block.error(
            place,
            f"field {name!r} is {kind} in the first block, so in all shards; this type cannot hold "
            f"{_short(values[place])} exactly; {_REMEDY}",
        ) from None


def _column(name: str, block: SampleBlock) -> pa.Array:
    """Return the field's values, with their type in the data or the type that they imply."""
    try:
        return _raw_column(name, block)
    except _UNFIT as error:
        values = _values(name, block)
        place = _first_unfit(values, None)
        raise block.error(
            place,
            f"field {name!r} has no single type for Parquet because of {_short(values[place])}: "
            f"{error}; {_REMEDY}",
        ) from None


def _raw_column(name: str, block: SampleBlock) -> pa.Array:
    return block.columns[name] if name in block.columns else _array(_values(name, block))


def _values(name: str, block: SampleBlock) -> list[Any]:
    return (
        block.columns[name].to_pylist()
        if name in block.columns
        else [row.get(name) for row in block.samples]
    )


def _first_unfit(values: Sequence[Any], kind: pa.DataType | None) -> int:
    """Return the place of the first value that does not fit `kind`, or if None, those before it."""
    known = pa.null()
    for place, value in enumerate(values):
        try:
            own = _array([value])
            known = _common_type(known, own.type) if kind is None else _cast(own, kind).type
        except _UNFIT:
            return place
    return 0


def _array(values: Sequence[Any]) -> pa.Array:
    """Return an array of the narrowest type that holds all values. Raises one of `_UNFIT`."""
    if any(isinstance(value, np.ndarray) and value.ndim > 1 for value in values):
        if any(value is None for value in values):
            raise TypeError("null is among arrays of several dimensions")
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(values))
    column = pa.array(values)
    if _is_bytes(column.type) and any(isinstance(value, str) for value in values):
        raise TypeError("text and bytes")  # Arrow would make bytes of both
    return column


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column as `kind`. Raises one of `_UNFIT` if a value would change."""
    if column.type == kind:
        return column
    common, cast = _common_type(kind, column.type), column.cast(kind)
    # Arrow rounds, and drops fields of structs: cast back and compare.
    if common != kind and not cast.cast(column.type).equals(column):
        raise TypeError(f"{column.type} is not {kind}")
    return cast


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds both. Raises one of `_UNFIT` if there is none."""
    if _is_bytes(one) != _is_bytes(other) and not (
        pa.types.is_null(one) or pa.types.is_null(other)
    ):
        raise TypeError(f"{one} and {other}")  # Arrow would make bytes of text
    schemas = [pa.schema([pa.field("x", kind)]) for kind in (one, other)]
    return pa.unify_schemas(schemas, promote_options="permissive").field("x").type


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else f'{text[:60]}...'} ({type(value).__name__})"
