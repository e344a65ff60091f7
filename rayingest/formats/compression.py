"""Whole files that are compressed, as a run of chunks that is complete or an error.

A cut file never passes as a short one, and a small file that grows without end is refused: gzip is RFC 1952, Zstandard
RFC 8878, Brotli RFC 7932; several members or frames in a row are one run, as all but Brotli and Snappy allow, and so
one that is cut exactly between two of them is whole as far as this can tell. gzip and bzip2 have a checksum of their
contents; Zstandard where the writer chose so.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import BinaryIO

import pyarrow as pa
import zstandard

from rayingest.errors import ConfigError
from rayingest.formats.protocol import Options, Shard
from rayingest.storage.listing import within_url

EXPANSION = "max_expansion"
"""The option: how many times its compressed size a shard may grow to."""

_DEFAULT_EXPANSION = 200
_ALWAYS_ALLOWED = 256 << 20
_CHUNK = 1 << 20
# Four bytes of Zstandard can stand for 128 KiB, so input goes in by little steps that keep the output bounded.
_ZSTD_STEP = 4 << 10


def compression_of(url: str) -> str | None:
    """The end of the name that tells of a compression, without its dot; None where there is none."""
    end = within_url(url).lower().rpartition(".")[2]
    return end if end in _CHUNKS else None


def decompress(shard: Shard, compression: str | None = None) -> Generator[bytes, None, None]:
    """Chunks of the file's contents, some 1 MiB each. DataError, naming the compressed offset up to which all was well,
    when it is not whole.

    `compression`: one of those that `compression_of` gives, where the name does not tell.
    """
    size = shard.size
    chunks = _CHUNKS[compression or compression_of(shard.url) or ""]
    total = at = 0
    with shard.storage.translate_errors(shard.url), shard.open() as file:
        if size == 0:
            raise shard.error("a compressed file of 0 bytes is cut off", 0)
        try:
            for chunk in chunks(file):
                total += len(chunk)
                at = file.tell()
                check_growth(shard, total, at)
                yield chunk
        except EOFError as error:
            raise shard.error(f"the compressed file is cut off: {error}", size) from error
        except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError, _DamagedError) as error:
            raise shard.error(f"damaged compressed data: {error}", at) from error


def check_growth(shard: Shard, unfolded: int, offset: int) -> None:
    """DataError where the shard has grown to more bytes than it may."""
    limit = max(_ALWAYS_ALLOWED, shard.size * _expansion(shard.options))
    if unfolded > limit:
        reason = f"{shard.size} compressed bytes grew to more than {limit}; if that is meant, raise {EXPANSION}"
        raise shard.error(reason, offset)


def _expansion(options: Options) -> int:
    value = options.get(EXPANSION, _DEFAULT_EXPANSION)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{EXPANSION}={value!r}: a whole number of at least 1 is needed")
    return value


def _gunzipped(file: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file, mode="rb") as source:
        while chunk := source.read(_CHUNK):
            yield chunk


def _unzstd(file: BinaryIO) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    begun = False
    while data := file.read(_ZSTD_STEP):
        while data:
            chunk = frame.decompress(data)
            begun, data = True, b""
            if chunk:
                yield chunk
            if frame.eof:
                data, begun = frame.unused_data, False
                frame = decompressor.decompressobj()
    if begun:
        raise EOFError("the file ends inside a Zstandard frame")


class _DamagedError(Exception):
    """What pyarrow says of data that it cannot decompress, of which it makes no exception of its own."""


def _by_pyarrow(codec: str, file: BinaryIO) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.PythonFile(file, "r"), codec) as source:
        while True:
            try:
                chunk = source.read(_CHUNK)
            except OSError as error:
                if error.errno is not None:  # the file's own
                    raise
                raise (EOFError if "Truncated" in str(error) else _DamagedError)(
                    str(error)
                ) from error
            if not chunk:
                return
            yield chunk


def _unsnappy(file: BinaryIO) -> Iterator[bytes]:
    """The format without frames, which cannot be had in parts. It begins with the length of what it unfolds to."""
    data = file.read()
    length = 0
    for place, byte in enumerate(data[:5]):
        length |= (byte & 127) << 7 * place
        if byte < 128:
            break
    if length > 64 * len(data):  # a copy of at most 64 bytes takes at least 2
        raise _DamagedError(f"{len(data)} bytes of Snappy cannot be {length}")
    try:
        yield pa.Codec("snappy").decompress(data, decompressed_size=length, asbytes=True)
    except OSError as error:
        raise _DamagedError(f"{error} (or it is cut off)") from error


_CHUNKS: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {
    **dict.fromkeys(("gz", "tgz"), _gunzipped),
    **dict.fromkeys(("zst", "zstd"), _unzstd),
    "bz2": partial(_by_pyarrow, "bz2"),
    "br": partial(_by_pyarrow, "brotli"),
    "snappy": _unsnappy,
}
