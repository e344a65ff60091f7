"""Samples as columns of one schema, that of a first block: for Parquet, whose files say once what a column is.

Owns that no value is changed and no field left out for that: a type takes in only what it holds exactly (integers
among floats, numbers that a narrower type has, lists of nothing, null), and all else is an error that names field and
sample. Null and a field that is not there are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.formats.columns import ENCODING
from rayingest.tools.cli.parts import SampleBlock

_UNFIT = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    ValueError,
    TypeError,
    OverflowError,
)
_REMEDY = "let a .map() make it the same in all samples, leave it out by .select(), or, of JSON Lines, give types="


def schema_of(block: SampleBlock) -> pa.Schema:
    """The columns of a first block, for all that follow: as they were in the data, or as the values suggest."""
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
    """The block's rows, null where a sample lacks a field. DataError for what `schema` has no place for."""
    for name in _names(block):
        if name in schema.names:
            continue
        place = _first(column := _column(name, block))
        if place is not None:
            raise block.error(
                place,
                f"field {name!r} ({column.type}) is in no sample of the first block, whose fields are the columns of "
                f"Parquet: {', '.join(map(repr, schema.names))}; {_REMEDY}",
            )
    arrays = [_fit(field.name, block, field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _names(block: SampleBlock) -> list[str]:
    return list(
        dict.fromkeys([*block.columns, *(name for sample in block.samples for name in sample)])
    )


def _first(column: pa.Array) -> int | None:
    """The first row that is not null."""
    there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    return int(there[0]) if len(there) else None


def _fit(name: str, block: SampleBlock, kind: pa.DataType) -> pa.Array:
    try:
        return _cast(_untyped_column(name, block), kind)
    except _UNFIT:
        values = _values(name, block)
        place = _first_unfit(values, kind)
        raise block.error(
            place,
            f"field {name!r} is {kind} in the first block, and so in all of Parquet; that does not hold "
            f"{_short(values[place])} exactly; {_REMEDY}",
        ) from None


def _column(name: str, block: SampleBlock) -> pa.Array:
    """The field's values, of the type that they suggest where they have none."""
    try:
        return _untyped_column(name, block)
    except _UNFIT as error:
        values = _values(name, block)
        place = _first_unfit(values, None)
        raise block.error(
            place,
            f"field {name!r} fits no one column of Parquet with {_short(values[place])} in it: {error}; {_REMEDY}",
        ) from None


def _untyped_column(name: str, block: SampleBlock) -> pa.Array:
    return block.columns[name] if name in block.columns else _array(_values(name, block))


def _values(name: str, block: SampleBlock) -> list[Any]:
    return (
        block.columns[name].to_pylist()
        if name in block.columns
        else [row.get(name) for row in block.samples]
    )


def _first_unfit(values: Sequence[Any], kind: pa.DataType | None) -> int:
    """The place of the first value that is not of this type; where there is none, of one with those before it."""
    known = pa.null()
    for place, value in enumerate(values):
        try:
            own = _array([value])
            known = _common_type(known, own.type) if kind is None else _cast(own, kind).type
        except _UNFIT:
            return place
    return 0


def _array(values: Sequence[Any]) -> pa.Array:
    """Of the narrowest type that holds all of them. One of `_UNFIT` where none does."""
    if any(isinstance(value, np.ndarray) and value.ndim > 1 for value in values):
        if any(value is None for value in values):
            raise TypeError("null is among arrays of several dimensions")
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(values))
    column = pa.array(values)
    if _is_bytes(column.type) and any(isinstance(value, str) for value in values):
        raise TypeError("text and bytes")  # Arrow would make bytes of both
    return column


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """As `kind`. One of `_UNFIT` where values would not be the same."""
    if column.type == kind:
        return column
    joined, made = _common_type(kind, column.type), column.cast(kind)
    if joined != kind and not made.cast(column.type).equals(
        column
    ):  # Arrow rounds, and drops what is in structs
        raise TypeError(f"{column.type} is not {kind}")
    return made


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds both. One of `_UNFIT` where there is none."""
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
