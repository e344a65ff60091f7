"""Whole files compressed with gzip or Zstandard, as a run of chunks that is complete or an error.

A cut file never passes as a short one, and a small file that grows without end is refused: gzip is RFC 1952, Zstandard
RFC 8878; several members or frames in a row are one run, as both allow, and so one that is cut exactly between two of
them is whole as far as this can tell. gzip has a checksum of its contents; Zstandard where the writer chose so.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Generator, Iterator
from typing import BinaryIO

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
    """ "gz", "zst" or None, by the end of the name."""
    name = within_url(url).lower()
    if name.endswith((".gz", ".tgz")):
        return "gz"
    return "zst" if name.endswith(".zst") else None


def decompressed(shard: Shard) -> Generator[bytes, None, None]:
    """Chunks of the file's contents, some 1 MiB each. DataError, naming the compressed offset, when it is not whole."""
    size = shard.size
    limit = max(_ALWAYS_ALLOWED, size * _expansion(shard.options))
    chunks = _gunzipped if compression_of(shard.url) == "gz" else _unzstd
    total = 0
    with shard.storage.reading(shard.url), shard.open() as file:
        if size == 0:
            raise shard.error("a compressed file of 0 bytes is cut off", 0)
        try:
            for chunk in chunks(file):
                total += len(chunk)
                if total > limit:
                    raise shard.error(
                        f"{size} compressed bytes grew to more than {limit}; if that is meant, raise {EXPANSION}",
                        file.tell(),
                    )
                yield chunk
        except EOFError as error:
            raise shard.error(f"the compressed file is cut off: {error}", size) from error
        except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise shard.error(f"damaged compressed data: {error}", file.tell()) from error


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
