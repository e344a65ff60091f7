"""Decode a field by its extension or its column's encoding, if the user chose no decoder.

Owns the table of extensions (those of the WebDataset convention) and the limits on the size that a
small file may decompress to. Refuses to unpickle anything. Users who trust their data give a
decoder of their own; each refusal shows how.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgpack
import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.formats.columns import parse_array_encoding
from rayingest.transforms.images.pixels import EXTENSIONS
from rayingest.transforms.images.transform import Decode

MAX_UNPACKED = 1 << 30
"""Bytes that a compressed field may decompress to."""

_NPY, _NPY_HEADER = b"\x93NUMPY", 10_000
_UNPICKLE = "numpy.load(io.BytesIO(data), allow_pickle=True)"

Decoder = Callable[[bytes], Any]


def decoder_for(name: str, extension: str | None = None) -> Decoder | None:
    """Return the decoder of a field with this name; None if the field stays bytes.

    `extension` decides, or else the part of the name after its last dot (the whole name if it has
    none), in any case. `.gz` is decompressed first; then the part before it decides. The decoder of
    a pickled field raises ConfigError.
    """
    parts = (extension or name).lower().split(".")
    layers = 0
    while parts and parts[-1] == "gz":
        parts.pop()
        layers += 1
    last = parts[-1] if parts else ""
    inner = _refuse_pickle(name, layers) if last in _PICKLED else _DECODERS.get(last)
    return _gunzip_first(inner, layers) if layers else inner


def media_decoder(name: str) -> Decoder | None:
    """Return `decoder_for(name)` if the name ends in an extension of images or text, else None.

    For columns of bytes, whose names end in other extensions by accident.
    """
    is_media = name.lower().removesuffix(".gz").rsplit(".", 1)[-1] in (*EXTENSIONS, *_TEXTS)
    return decoder_for(name) if is_media else None


def encoding_value(encoding: str) -> Decoder | None:
    """Return the decoder of an encoding that stands for one value: an array or a number.

    None for the encoding of a file's contents, for which the user may choose a decoder.
    """
    array = parse_array_encoding(encoding)
    return _raw_array_decoder(*array) if array is not None else _VALUES.get(encoding)


def encoding_decoder(name: str, encoding: str, in_list: bool) -> Decoder | None:
    """Return the decoder of an encoded field for which the user chose none; None if it has none.

    `in_list`: values are lists of encoded items, and each item is decoded.
    """
    decoder = None if encoding_value(encoding) else decoder_for(name, encoding)
    return decoder if decoder is None or not in_list else _decode_each(decoder)


def _decode_each(decoder: Decoder) -> Callable[[Any], list[Any]]:
    return lambda items: [decoder(item) for item in items]


def decode_text(data: bytes) -> str:
    """Decode UTF-8 text."""
    return data.decode("utf-8")


def decode_npy(data: bytes) -> np.ndarray:
    """Decode the array of an .npy file. DataError if it holds pickled objects or is truncated."""
    try:
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        pickled = data.startswith(_NPY) and b"|O" in data[:_NPY_HEADER]
        advice = (
            f"; if you trust it, decode the field with a function that calls {_UNPICKLE}"
            if pickled
            else ""
        )
        raise DataError(f"not a readable .npy array: {error}{advice}") from error
    if not isinstance(loaded, np.ndarray):
        raise DataError("not an .npy array but an .npz archive")
    return loaded


def decode_npz(data: bytes, limit: int | None = None) -> dict[str, np.ndarray]:
    """Decode the arrays of an .npz file, by name.

    DataError if they have more than `limit` bytes together (default: `MAX_UNPACKED`).
    """
    limit = MAX_UNPACKED if limit is None else limit
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
            if size > limit:
                raise DataError(
                    f".npz of {size} bytes refused: the limit is {limit}; "
                    f"{_raise_limit('decode_npz')}"
                )
            return {
                name.removesuffix(".npy"): decode_npy(archive.read(name))
                for name in archive.namelist()
            }
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DataError(f"not a readable .npz archive: {error}") from error


def gunzip(data: bytes, limit: int | None = None) -> bytes:
    """Decompress gzip data, all members of it.

    DataError if the data is truncated, or has more than `limit` bytes (default: `MAX_UNPACKED`)
    once decompressed.
    """
    limit = MAX_UNPACKED if limit is None else limit
    parts: list[bytes] = []
    room = limit
    rest = data
    while rest or not parts:
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(rest, room + 1)
        except zlib.error as error:
            raise DataError(f"not readable gzip data: {error}") from error
        if len(part) > room:
            raise DataError(
                f"gzip data refused: it decompresses to more than {limit} bytes; "
                f"{_raise_limit('gunzip')}"
            )
        if not member.eof:
            raise DataError(f"gzip data is cut short after {len(data)} bytes")
        parts.append(part)
        room -= len(part)
        rest = member.unused_data.lstrip(b"\0")  # files may be padded with zeros
    return b"".join(parts)


def _raise_limit(name: str) -> str:
    return f"to raise it, decode the field with functools.partial({__name__}.{name}, limit=...)"


def _decode_msgpack(data: bytes) -> Any:
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def _gunzip_first(inner: Decoder | None, layers: int) -> Decoder:
    def decode(data: bytes) -> Any:
        for _ in range(layers):
            data = gunzip(data)
        return data if inner is None else inner(data)

    return decode


def _refuse_pickle(name: str, layers: int) -> Decoder:
    unpickle = "lambda data: pickle.loads(gzip.decompress(data))" if layers else "pickle.loads"

    def call(decoder: str) -> str:
        if name.isidentifier():
            return f".decode({name}={decoder})"
        return f".decode(**{{{name!r}: {decoder}}})"

    def refuse(data: bytes) -> Any:
        raise ConfigError(
            f"field {name!r} is pickled, and unpickling can run any code that its author put "
            f"there, so it is refused by default. Read it as bytes with {call('bytes')}, leave it "
            f"out with .select(), or, if you trust the author, unpickle it with {call(unpickle)}"
        )

    return refuse


def _raw_array_decoder(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Decoder:
    nbytes = dtype.itemsize * math.prod(shape)

    def decode(data: bytes) -> np.ndarray:
        if len(data) != nbytes:
            raise DataError(f"{len(data)} bytes are not a {dtype} array of shape {shape}")
        values = np.frombuffer(data, dtype).reshape(shape)
        return values.astype(dtype.newbyteorder("="))  # a copy, which can be written to

    return decode


def _decode_decimal(data: bytes) -> Decimal:
    try:
        return Decimal(data.decode("ascii"))
    except InvalidOperation as error:
        raise DataError(f"{data[:40]!r} is not a decimal number") from error


_TEXTS = ("txt", "text", "transcript")
_PICKLED = ("pkl", "pickle", "pyd", "pth")
_DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(_TEXTS, decode_text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": decode_npy,
    "npz": decode_npz,
    **dict.fromkeys(("mp", "msg"), _decode_msgpack),
    **dict.fromkeys(EXTENSIONS, Decode()),
}
"""The registry of default decoders, by extension: a new one is one line here.

A new image format is one line in `images/pixels.py`.
"""

_VALUES: dict[str, Decoder] = {
    "int": int,
    "float": float,
    "decimal": _decode_decimal,
    "npy": decode_npy,
}
"""Column encodings that stand for one value (arrays of raw bytes beside them)."""
