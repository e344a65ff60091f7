"""What a field's bytes become when nobody says otherwise: one decoder per extension.

Owns the table of extensions (those of the WebDataset convention) and the bounds on what a small file may unfold to.
Refuses to unpickle anything. Whoever trusts the data gives a decoder of their own, which each refusal names.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.transforms.images.operations import Decode

MAX_UNFOLDED = 1 << 30
"""Bytes that a compressed field may decompress to."""

_NPY, _NPY_HEADER = b"\x93NUMPY", 10_000
_UNPICKLE = "numpy.load(io.BytesIO(data), allow_pickle=True)"

Decoder = Callable[[bytes], Any]


def decoder_for(name: str, extension: str | None = None) -> Decoder | None:
    """The decoder of a field with this name, None where it stays bytes.

    Chosen by `extension`, or what follows the name's last dot (or the whole name), in any case; `.gz` is unwrapped
    first and the part before it decides. Pickled fields get a decoder that raises ConfigError.
    """
    parts = (extension or name).lower().split(".")
    wraps = 0
    while parts and parts[-1] == "gz":
        parts.pop()
        wraps += 1
    last = parts[-1] if parts else ""
    inner = _refuse_pickle(name, wraps) if last in _PICKLED else _DECODERS.get(last)
    return _unwrapped(inner, wraps) if wraps else inner


def media_decoder(name: str) -> Decoder | None:
    """As `decoder_for` where the name ends in an extension of images or of text, which no column of bytes carries by
    accident; else None.
    """
    is_media = name.lower().removesuffix(".gz").rsplit(".", 1)[-1] in (*IMAGES, *_TEXTS)
    return decoder_for(name) if is_media else None


def text(data: bytes) -> str:
    """UTF-8 text."""
    return data.decode("utf-8")


def array(data: bytes) -> np.ndarray:
    """The array of an .npy file; DataError where it holds pickled objects or is cut short."""
    try:
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        pickled = data.startswith(_NPY) and b"|O" in data[:_NPY_HEADER]
        how = (
            f"; where you trust it, decode the field with a function that calls {_UNPICKLE}"
            if pickled
            else ""
        )
        raise DataError(f"not a readable .npy array: {error}{how}") from error
    if not isinstance(loaded, np.ndarray):
        raise DataError("not an .npy array but an .npz archive")
    return loaded


def arrays(data: bytes, limit: int | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name, at most `limit` (`MAX_UNFOLDED`) bytes of them together."""
    limit = MAX_UNFOLDED if limit is None else limit
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unfolded = sum(member.file_size for member in archive.infolist())
            if unfolded > limit:
                raise DataError(
                    f".npz of {unfolded} bytes refused: the limit is {limit}; {_raise_limit('arrays')}"
                )
            return {
                name.removesuffix(".npy"): array(archive.read(name)) for name in archive.namelist()
            }
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DataError(f"not a readable .npz archive: {error}") from error


def gunzip(data: bytes, limit: int | None = None) -> bytes:
    """What gzip data holds, all members of it; DataError where it is cut short or unfolds to more than `limit` bytes
    (`MAX_UNFOLDED`).
    """
    limit = MAX_UNFOLDED if limit is None else limit
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
                f"gzip data refused: it unfolds to more than {limit} bytes; {_raise_limit('gunzip')}"
            )
        if not member.eof:
            raise DataError(f"gzip data is cut short after {len(data)} bytes")
        parts.append(part)
        room -= len(part)
        rest = member.unused_data.lstrip(b"\0")  # files may be padded with zeros
    return b"".join(parts)


def _raise_limit(name: str) -> str:
    return f"where that is meant, decode the field with functools.partial({__name__}.{name}, limit=...)"


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def _unwrapped(inner: Decoder | None, wraps: int) -> Decoder:
    def decode(data: bytes) -> Any:
        for _ in range(wraps):
            data = gunzip(data)
        return data if inner is None else inner(data)

    return decode


def _refuse_pickle(name: str, wraps: int) -> Decoder:
    unpickle = "lambda data: pickle.loads(gzip.decompress(data))" if wraps else "pickle.loads"

    def how(decoder: str) -> str:
        return (
            f".decode({name}={decoder})"
            if name.isidentifier()
            else f".decode(**{{{name!r}: {decoder}}})"
        )

    def refuse(data: bytes) -> Any:
        raise ConfigError(
            f"field {name!r} is pickled, and unpickling can run any code that its author put there: it is not done "
            f"by default. Read it as bytes with {how('bytes')}, leave it out with .select(), or, where you trust the "
            f"author, unpickle it with {how(unpickle)}"
        )

    return refuse


_TEXTS = ("txt", "text", "transcript")
IMAGES = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "webp", "bmp", "tif", "tiff", "gif")
_PICKLED = ("pkl", "pickle", "pyd", "pth")
_DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(_TEXTS, text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": array,
    "npz": arrays,
    **dict.fromkeys(("mp", "msg"), _unpack),
    **dict.fromkeys(IMAGES, Decode()),
}
