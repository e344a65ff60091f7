"""Build columns of raw tables from bytes, and say by which encoding their values are decoded.

Owns the encodings that a field's metadata may name: an extension (`jpg`, `json`, `npy`, ...),
`int`, `float` or `decimal` for a number written as text, `array:DTYPE:SHAPE` for the bytes of an
array. Their decoders are in `transforms.decoders`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.storage.arrow import binary_column

ENCODING = b"rayingest.encoding"
"""The key of the encoding in a field's metadata."""

Bytes = bytes | memoryview


def bytes_column(pieces: Sequence[Bytes], *, text: bool = False) -> pa.Array:
    """Return a binary (or string) column with one value per piece."""
    return binary_column(pieces, np.fromiter(map(len, pieces), np.int64, len(pieces)), text=text)


def nullable_column(pieces: Sequence[Bytes | None], *, text: bool = False) -> pa.Array:
    """Return a binary (or string) column with one value per piece, null for None."""
    values = [b"" if piece is None else piece for piece in pieces]
    valid = np.array([piece is not None for piece in pieces], bool)
    return binary_column(
        values, np.fromiter(map(len, values), np.int64, len(values)), valid, text=text
    )


def fixed_column(data: Bytes, rows: int) -> pa.Array:
    """Return bytes as a column of `rows` values of one size, without a copy."""
    return pa.Array.from_buffers(
        pa.binary(len(data) // rows if rows else 0), rows, [None, pa.py_buffer(data)]
    )


def number_column(data: Bytes, dtype: np.dtype[Any]) -> pa.Array:
    """Return the bytes of numbers as a column of numbers."""
    return pa.array(np.frombuffer(data, dtype).astype(dtype.newbyteorder("="), copy=False))


def lists_column(lists: Sequence[Sequence[Bytes]]) -> pa.Array:
    """Return a column of lists of pieces."""
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum([len(pieces) for pieces in lists], out=offsets[1:])
    return pa.ListArray.from_arrays(
        pa.array(offsets), bytes_column([piece for pieces in lists for piece in pieces])
    )


def array_encoding(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    """Return the encoding for the bytes of arrays of this dtype and shape."""
    return f"array:{dtype.str}:{','.join(map(str, shape))}"


def parse_array_encoding(encoding: str) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Return dtype and shape, or None for an encoding of another kind."""
    kind, _, rest = encoding.partition(":")
    if kind != "array":
        return None
    dtype, _, shape = rest.partition(":")
    return np.dtype(dtype), tuple(int(length) for length in shape.split(",") if length)


@lru_cache(maxsize=1024)
def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the bytes that make an array's bytes an .npy file when put in front."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": dtype.str, "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def with_encodings(table: pa.Table, encodings: Mapping[str, str]) -> pa.Table:
    """Return the table with these encodings, by column, in its fields' metadata."""
    fields = [
        field.with_metadata({ENCODING: encodings[field.name].encode()})
        if field.name in encodings
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields, table.schema.metadata))
