"""Decompress whole files in chunks. The result is complete, or an error.

A file that is cut off is an error, and so is a small file that expands without end. gzip is RFC
1952, Zstandard RFC 8878, Brotli RFC 7932. Several members or frames in a row are one stream (not in
Brotli and Snappy), so a file that is cut exactly between two of them passes as whole. gzip and
bzip2 hold a checksum of their contents; Zstandard does if its writer chose so.
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
from rayingest.storage.file_info import within_url

EXPANSION = "max_expansion"
"""The option: the largest allowed ratio of a shard's size to its compressed size."""

_DEFAULT_EXPANSION = 200
_ALWAYS_ALLOWED = 256 << 20
_CHUNK = 1 << 20
# Four bytes of Zstandard may expand to 128 KiB: small inputs keep each output chunk bounded.
_ZSTD_STEP = 4 << 10


def compression_of(url: str) -> str | None:
    """Return the suffix that names a compression, without its dot, or None."""
    end = within_url(url).lower().rpartition(".")[2]
    return end if end in _CHUNKS else None


def decompress(shard: Shard, compression: str | None = None) -> Generator[bytes, None, None]:
    """Yield the file's contents in chunks of about 1 MiB.

    DataError if the file is damaged or cut off; its offset is the last good place in the compressed
    file. `compression`: a result of `compression_of`, if the URL has no such suffix.
    """
    size = shard.size
    chunks = _CHUNKS[compression or compression_of(shard.url) or ""]
    total = at = 0
    with shard.storage.translate_errors(shard.url), shard.open() as file:
        if size == 0:
            raise shard.error("the compressed file is cut off: it has 0 bytes", 0)
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


def check_growth(shard: Shard, nbytes: int, offset: int) -> None:
    """Raise DataError if `nbytes` decompressed bytes are more than the shard may expand to."""
    limit = max(_ALWAYS_ALLOWED, shard.size * _expansion(shard.options))
    if nbytes > limit:
        reason = (
            f"{shard.size} compressed bytes expand to more than {limit} bytes; if the data are "
            f"right, "
            f"give a larger {EXPANSION}"
        )
        raise shard.error(reason, offset)


def _expansion(options: Options) -> int:
    value = options.get(EXPANSION, _DEFAULT_EXPANSION)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{EXPANSION}={value!r}: give a whole number of at least 1")
    return value


def _gunzip(file: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file, mode="rb") as source:
        while chunk := source.read(_CHUNK):
            yield chunk


def _decompress_zstd(file: BinaryIO) -> Iterator[bytes]:
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
    """Data that pyarrow cannot decompress, for which it has no exception of its own."""


def _decompress_by_pyarrow(codec: str, file: BinaryIO) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.PythonFile(file, "r"), codec) as source:
        while True:
            try:
                chunk = source.read(_CHUNK)
            except OSError as error:
                if error.errno is not None:  # an error of the file itself
                    raise
                raise (EOFError if "Truncated" in str(error) else _DamagedError)(
                    str(error)
                ) from error
            if not chunk:
                return
            yield chunk


def _decompress_snappy(file: BinaryIO) -> Iterator[bytes]:
    """Decompress Snappy without frames, which begins with its decompressed length, in one piece."""
    data = file.read()
    length = 0
    for place, byte in enumerate(data[:5]):
        length |= (byte & 127) << 7 * place
        if byte < 128:
            break
    if length > 64 * len(data):  # a copy element expands 2 bytes to at most 64
        raise _DamagedError(f"{len(data)} bytes of Snappy cannot expand to {length}")
    try:
        yield pa.Codec("snappy").decompress(data, decompressed_size=length, asbytes=True)
    except OSError as error:
        raise _DamagedError(f"{error} (or the file is cut off)") from error


_CHUNKS: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {
    **dict.fromkeys(("gz", "tgz"), _gunzip),
    **dict.fromkeys(("zst", "zstd"), _decompress_zstd),
    "bz2": partial(_decompress_by_pyarrow, "bz2"),
    "br": partial(_decompress_by_pyarrow, "brotli"),
    "snappy": _decompress_snappy,
}
