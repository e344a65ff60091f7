"""Columns of MosaicML's MDS: encodings of values, as Arrow columns.

Owns what each encoding becomes. Numbers and text become Arrow's own; everything else stays bytes, with the name of the
decoder that makes a value of them. Follows the format as https://github.com/mosaicml/streaming writes it, version 2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rayingest.formats.columns import (
    Bytes,
    array_encoding,
    bytes_column,
    fixed_column,
    lists_column,
    number_column,
)
from rayingest.formats.values import items, npy, ppm

_NUMBERS = {
    f"{kind}{bits}": np.dtype(f"<{kind[0]}{bits // 8}")
    for kind in ("uint", "int")
    for bits in (8, 16, 32, 64)
}
_NUMBERS |= {f"float{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)} | {
    "int": np.dtype("<i8")
}
_DECODED = {
    "json": "json",
    "jpeg": "jpg",
    "png": "png",
    "pil": "ppm",
    "pkl": "pkl",
    "ndarray": "npy",
}
_DECODED |= {"str_int": "int", "str_float": "float", "str_decimal": "decimal"}
_LISTS = {
    "list[jpeg]": "jpg",
    "list[png]": "png",
    "list[pil]": "ppm",
    "jpeg_array": "jpg",
    "jpegarray": "jpg",
}
# The byte that tells a dtype, and the widths that a shape's numbers may have.
_DTYPES = {
    8: "u1",
    9: "i1",
    16: "u2",
    17: "i2",
    18: "f2",
    32: "u4",
    33: "i4",
    34: "f4",
    64: "u8",
    65: "i8",
    66: "f8",
}
_WIDTHS = ("B", "H", "I", "Q")


@dataclass(frozen=True)
class MdsColumn:
    """One column as a shard tells of it. `size`: bytes of every value, None where they differ. ValueError for an
    encoding that is not known.
    """

    name: str
    encoding: str
    size: int | None

    def __post_init__(self) -> None:
        if self.kind not in {"bytes", "str", *_NUMBERS, *_DECODED, *_LISTS}:
            raise ValueError(
                f"column {self.name!r} has the encoding {self.encoding!r}, which is not known"
            )

    @property
    def kind(self) -> str:
        """The encoding without what it says of arrays."""
        return self.encoding.partition(":")[0]

    @property
    def decoded_by(self) -> str | None:
        """The encoding of the Arrow column, in the words of `columns`; None where it has none."""
        dtype, shape = self._array
        if dtype is not None and shape is not None:
            return array_encoding(dtype, shape)
        return _DECODED.get(self.kind) or _LISTS.get(self.kind)

    def arrow(self, values: Sequence[Bytes]) -> pa.Array:
        """The values as an Arrow column. ValueError or struct.error for those that are not what they should be."""
        if self.kind in _NUMBERS:
            return number_column(b"".join(values), _NUMBERS[self.kind])
        if self.kind == "str":
            return bytes_column(values, text=True)
        if self.kind == "pil":
            return bytes_column([ppm(value) for value in values])
        if self.kind in _LISTS:
            make = ppm if self.encoding == "list[pil]" else bytes
            skipped = 4 if self.encoding.startswith("list") else 0  # of no meaning so far
            return lists_column(
                [[make(item) for item in items(value, skipped)] for value in values]
            )
        dtype, shape = self._array
        if self.kind == "ndarray" and shape is None:
            return bytes_column([_array_file(value, dtype) for value in values])
        return (
            bytes_column(values)
            if self.size is None
            else fixed_column(b"".join(values), len(values))
        )

    @property
    def _array(self) -> tuple[np.dtype | None, tuple[int, ...] | None]:
        """What the encoding says of all arrays."""
        _, dtype, shape = (*self.encoding.split(":"), "", "")[:3]
        if self.kind != "ndarray":
            return None, None
        return _NUMBERS[dtype] if dtype else None, tuple(
            map(int, shape.split(","))
        ) if shape else None


def _array_file(data: Bytes, dtype: np.dtype | None) -> bytes:
    """An array that tells its shape, and where that is not known its dtype, as an .npy file."""
    at = 0
    if dtype is None:
        if data[0] not in _DTYPES:
            raise ValueError(f"an array of unknown dtype {data[0]}")
        dtype, at = np.dtype(f"<{_DTYPES[data[0]]}"), 1
    shape = struct.unpack_from(f"<{data[at] >> 2}{_WIDTHS[data[at] & 3]}", data, at + 1)
    at += 1 + len(shape) * (1 << (data[at] & 3))
    return npy(data[at:], dtype, shape)
