"""Where a tar's bytes come from: a file, a block in memory, or a stream that is read once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO


class FileSource:
    """A seekable file of known size."""

    def __init__(self, file: BinaryIO, size: int, shard: str) -> None:
        self._file, self.shard = file, shard
        self._size = size
        self.end: int | None = size

    def at(self, offset: int, count: int) -> bytes:
        if offset >= self._size:  # a damaged header may speak of places that no file system has
            return b""
        self._file.seek(offset)
        return self._file.read(count)

    piece = at


class BufferSource:
    """Bytes in memory that stand at `base` in the file."""

    def __init__(self, data: bytes, base: int, shard: str) -> None:
        self._view, self._base, self.shard = memoryview(data), base, shard
        self.end: int | None = base + len(data)

    def at(self, offset: int, count: int) -> bytes:
        return bytes(self.piece(offset, count))

    def piece(self, offset: int, count: int) -> memoryview:
        """As `at`, without a copy."""
        return self._view[offset - self._base : offset - self._base + count]


class StreamSource:
    """Chunks that come once, such as those of a compressed file. Holds one of them, or one piece that was asked for."""

    def __init__(self, chunks: Iterator[bytes], shard: str) -> None:
        self._chunks, self.shard = chunks, shard
        self._held, self._base = b"", 0
        self.end: int | None = None

    def at(self, offset: int, count: int) -> bytes:
        while offset >= self._base + len(self._held):
            chunk = self._next()
            if not chunk:
                return b""
            self._base, self._held = self._base + len(self._held), chunk
        start = offset - self._base
        missing = count - (len(self._held) - start)
        if missing > 0:
            parts = [self._held[start:]]
            while missing > 0 and (chunk := self._next(self._base + start + sum(map(len, parts)))):
                parts.append(chunk)
                missing -= len(chunk)
            self._held, self._base, start = b"".join(parts), offset, 0
        return self._held[start : start + count]

    piece = at

    def drain(self) -> int:
        """Read on to the end, whose offset it returns: what is told only there, such as a checksum, is told now."""
        while chunk := self._next():
            self._base, self._held = self._base + len(self._held), chunk
        return self._base + len(self._held)

    def _next(self, end: int | None = None) -> bytes:
        """The next chunk, empty at the end of the stream, which is then known to be at `end`."""
        for chunk in self._chunks:
            if chunk:
                return chunk
        self.end = self._base + len(self._held) if end is None else end
        return b""
