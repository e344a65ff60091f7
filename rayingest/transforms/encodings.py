"""Decoders for columns that say how their values are encoded: the other side of `formats.columns`."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

from rayingest.errors import DataError
from rayingest.formats.columns import parse_array_encoding
from rayingest.transforms.decoders import Decoder, decoder_for

_NUMBERS: dict[str, Callable[[bytes], Any]] = {
    "int": int,
    "float": float,
    "decimal": lambda data: Decimal(data.decode("ascii")),
}


def decoder_of(name: str, encoding: str) -> Decoder | None:
    """The decoder of the field `name` whose column has this encoding, None where it stays bytes."""
    array = parse_array_encoding(encoding)
    if array is not None:
        return _array_of(*array)
    return _NUMBERS.get(encoding) or decoder_for(name, encoding)


def in_lists(decoder: Decoder) -> Callable[[Any], list[Any]]:
    """The decoder of lists whose items have this one."""
    return lambda values: [decoder(value) for value in values]


def _array_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Decoder:
    nbytes = dtype.itemsize * math.prod(shape)

    def decode(data: bytes) -> np.ndarray:
        if len(data) != nbytes:
            raise DataError(f"{len(data)} bytes are no {dtype} array of shape {shape}")
        values = np.frombuffer(data, dtype).reshape(shape)
        return values.astype(dtype.newbyteorder("="))  # a copy that can be written to

    return decode
