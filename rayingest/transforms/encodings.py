"""Values of columns that say how they are encoded: the other side of `formats.columns`.

Owns which encodings are values of their own (arrays, numbers), and which are files' contents, that a decoder of the
user's may take instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from rayingest.errors import DataError
from rayingest.formats.columns import parse_array_encoding
from rayingest.transforms.decoders import Decoder, array, decoder_for


def value_of(encoding: str) -> Decoder | None:
    """What makes a value of the bytes of an array or number; None for an encoding of anything else."""
    parsed = parse_array_encoding(encoding)
    return _array_of(*parsed) if parsed is not None else _VALUES.get(encoding)


def default_of(name: str, encoding: str, in_list: bool) -> Decoder | None:
    """The decoder of the field `name` where the user gives none, None where there is none either.

    `in_list`: values are lists of what is encoded.
    """
    decoder = None if value_of(encoding) else decoder_for(name, encoding)
    return decoder if decoder is None or not in_list else _in_lists(decoder)


def _in_lists(decoder: Decoder) -> Callable[[Any], list[Any]]:
    return lambda values: [decoder(value) for value in values]


def _array_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Decoder:
    nbytes = dtype.itemsize * math.prod(shape)

    def decode(data: bytes) -> np.ndarray:
        if len(data) != nbytes:
            raise DataError(f"{len(data)} bytes are no {dtype} array of shape {shape}")
        values = np.frombuffer(data, dtype).reshape(shape)
        return values.astype(dtype.newbyteorder("="))  # a copy that can be written to

    return decode


def _decimal(data: bytes) -> Decimal:
    try:
        return Decimal(data.decode("ascii"))
    except InvalidOperation as error:
        raise DataError(f"{data[:40]!r} is no decimal number") from error


_VALUES: dict[str, Callable[[bytes], Any]] = {
    "int": int,
    "float": float,
    "decimal": _decimal,
    "npy": array,
}
