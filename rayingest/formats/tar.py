"""Parse tar archives: bytes in, members out. Pure, but for the source that it asks for bytes.

Reads POSIX ustar and pax (IEEE Std 1003.1, `pax`, "Interchange Formats") and the GNU extensions for
long names. Refuses what it cannot read whole: sparse and multi-volume members, unknown types,
headers whose checksum is wrong, and headers that readers interpret differently. A tar has checksums
of headers only: the decoder of a member must find damage inside it. Which members are samples is
not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeVar

from rayingest.errors import DataError

T = TypeVar("T", bytes, int)

BLOCK = 512
_ZERO = bytes(BLOCK)
_REGULAR = b"0\x007"
_WITHOUT_DATA = b"123456"
_NO_FILE = b"DV"
_MAX_EXTENSION = 16 << 20
_MAX_PADDING = 1 << 20
_PAX_RECORD = re.compile(rb"([0-9]+) ")


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of the archive.

    `offset` is its first header, extension headers included; its bytes are [data, data + size).
    """

    name: str
    offset: int
    data: int
    size: int
    regular: bool

    @property
    def end(self) -> int:
        """Where the next header stands."""
        return self.data + _padded(self.size)


class Source(Protocol):
    """The bytes of a tar. `end`: where they end, None while unknown."""

    shard: str
    end: int | None

    def at(self, offset: int, count: int) -> bytes:
        """Return bytes [offset, offset + count), fewer only at the end.

        Offsets never decrease from call to call.
        """


def next_member(source: Source, offset: int) -> Member | None:
    """Return the member whose first header is at `offset`; None at zeros or at the end.

    DataError names the offset of what is damaged or not supported.
    """
    at, name, size = offset, None, None
    while True:
        header = source.at(at, BLOCK)
        if header == _ZERO[: len(header)]:  # zeros, or the end
            _refuse_early_end(source, at, offset, header)
            return None
        if len(header) < BLOCK:
            raise DataError("the tar is cut off inside a header", shard=source.shard, offset=at)
        _check_sum(header, source.shard, at)
        kind, length = header[156:157], _number(header[124:136], source.shard, at)
        if kind in b"xgXLK":
            payload = _extension(source, at, length)
            if kind == b"L":
                name = _once("name", name, payload.split(b"\0", 1)[0], source.shard, at)
            elif kind in b"xX":
                records = _pax_records(payload, source.shard, at)
                name = _once("name", name, records.get(b"path"), source.shard, at)
                size = _once("size", size, _pax_size(records, source.shard, at), source.shard, at)
            elif kind == b"g":
                _refuse_global(_pax_records(payload, source.shard, at), source.shard, at)
            at += BLOCK + _padded(length)
            continue
        return _member(source, header, offset, at, name, length if size is None else size)


def check_end(source: Source, offset: int, strict: bool) -> None:
    """Check that the archive ends at `offset`: two zero blocks, then nothing but zeros.

    More than 1 MiB of zeros is no writer's padding, but a file whose last part was never written.
    Without `strict`, the end marker may be missing, and what follows a whole marker is not read.
    """
    first, second = source.at(offset, BLOCK), source.at(offset + BLOCK, BLOCK)
    if first and second and second != _ZERO[: len(second)]:
        raise DataError(
            "a zero block stands in the middle of the tar", shard=source.shard, offset=offset
        )
    if not strict:
        return
    if len(first) < BLOCK or len(second) < BLOCK:
        raise DataError(
            "the tar is cut off: its end marker (two zero blocks) is missing; strict=False "
            "accepts it",
            shard=source.shard,
            offset=offset + len(first),
        )
    at = offset + 2 * BLOCK
    while rest := source.at(at, 1 << 16):
        if rest.count(0) != len(rest):
            at += len(rest) - len(rest.lstrip(b"\0"))
            raise DataError(
                "data follow the tar's end marker (concatenated tars?); strict=False ignores them",
                shard=source.shard,
                offset=at,
            )
        at += len(rest)
    if at - offset > _MAX_PADDING:
        raise DataError(
            f"the tar ends in {at - offset} zero bytes, as a file whose writing did not finish; "
            "strict=False accepts it",
            shard=source.shard,
            offset=offset,
        )


def _member(
    source: Source, header: bytes, offset: int, at: int, extended: bytes | None, size: int
) -> Member:
    """Return the member. `extended`: its name from extension headers."""
    kind, name = header[156:157], extended
    if name is None:
        name = header[:100].split(b"\0", 1)[0]
        prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
        name = prefix + b"/" + name if prefix else name
    # Names that are not UTF-8 stay legible and distinct.
    text = name.decode("utf-8", "backslashreplace")
    if kind in _REGULAR:
        # Before POSIX, a folder was an empty file whose name ends in a slash.
        folder = text.endswith("/")
        if folder and (size or extended is not None):
            raise DataError(
                f"member {text!r} is a file by its type and a folder by its name",
                shard=source.shard,
                offset=at,
            )
        return Member(text, offset, at + BLOCK, size, regular=not folder)
    if kind in _WITHOUT_DATA:
        return Member(text, offset, at + BLOCK, 0, regular=False)
    if kind in _NO_FILE:
        return Member(text, offset, at + BLOCK, size, regular=False)
    what = {b"S": "a sparse file", b"M": "continued from another volume"}.get(
        kind, f"of unknown type {kind!r}"
    )
    raise DataError(
        f"member {text!r} is {what}, which is not supported", shard=source.shard, offset=at
    )


def _refuse_early_end(source: Source, at: int, offset: int, header: bytes) -> None:
    if at != offset:
        raise DataError(
            "the tar ends after an extension header, before its member",
            shard=source.shard,
            offset=at,
        )
    if not header and source.end is not None and source.end < at:
        raise DataError(
            f"the tar is cut off inside the member before {at}",
            shard=source.shard,
            offset=source.end,
        )


def _check_sum(header: bytes, shard: str, at: int) -> None:
    stored = _number(header[148:156], shard, at)
    rest = header[:148] + b"        " + header[156:]
    total = sum(rest)
    # Some old writers summed signed bytes.
    if stored != total and stored != total - 256 * sum(byte > 127 for byte in rest):
        raise DataError("corrupt tar header: its checksum is wrong", shard=shard, offset=at)


def _number(field: bytes, shard: str, at: int) -> int:
    """Parse a number: octal digits, or base 256 if the first bit is set (GNU)."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    if not digits.isdigit() or digits.strip(b"01234567"):
        raise DataError(f"corrupt tar header: {field!r} is not a number", shard=shard, offset=at)
    return int(digits, 8)


def _extension(source: Source, at: int, length: int) -> bytes:
    if length > _MAX_EXTENSION:
        raise DataError(
            f"corrupt tar header: an extension of {length} bytes", shard=source.shard, offset=at
        )
    payload = source.at(at + BLOCK, _padded(length))
    if len(payload) < _padded(length):
        raise DataError(
            "the tar is cut off inside an extension header", shard=source.shard, offset=at
        )
    if payload.count(0, length) != len(payload) - length:
        # Readers disagree on the length of such an extension, and so on the member's name.
        raise DataError(
            "corrupt tar header: an extension is longer than its length",
            shard=source.shard,
            offset=at,
        )
    return payload[:length]


def _pax_records(payload: bytes, shard: str, at: int) -> dict[bytes, bytes]:
    """Parse records of the form "length key=value\\n"; the length counts the whole record."""
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(payload) and payload[position]:
        match = _PAX_RECORD.match(payload, position)
        end = position + int(match.group(1)) if match and len(match.group(1)) < 20 else 0
        if (
            match is None
            or not match.end() < end <= len(payload)
            or payload[end - 1 : end] != b"\n"
        ):
            raise DataError("corrupt pax header", shard=shard, offset=at)
        key, equals, value = payload[match.end() : end - 1].partition(b"=")
        if not key or not equals:
            raise DataError("corrupt pax header", shard=shard, offset=at)
        records[key] = value
        position = end
    return records


def _pax_size(records: dict[bytes, bytes], shard: str, at: int) -> int | None:
    if any(key.startswith(b"GNU.sparse") for key in records):
        raise DataError("a sparse file, which is not supported", shard=shard, offset=at)
    size = records.get(b"size")
    if size is None:
        return None
    if not size.isdigit() or len(size) > 20:
        raise DataError(f"corrupt pax header: a size of {size[:40]!r}", shard=shard, offset=at)
    return int(size)


def _once(what: str, before: T | None, found: T | None, shard: str, at: int) -> T | None:
    """Return the one value given.

    DataError if extension headers give two values, of which readers take either, or an empty one.
    """
    if found is not None and (before is not None or found == b""):
        raise DataError(
            f"extension headers give the member two values for its {what}, or an empty one",
            shard=shard,
            offset=at,
        )
    return before if found is None else found


def _refuse_global(records: dict[bytes, bytes], shard: str, at: int) -> None:
    # It holds for all members after it, which a reader of a block in the middle does not see.
    harmful = sorted(
        key for key in records if key in {b"path", b"size"} or key.startswith(b"GNU.sparse")
    )
    if harmful:
        raise DataError(
            f"a global pax header that sets {harmful[0].decode()} is not supported",
            shard=shard,
            offset=at,
        )


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


class FileSource:
    """A tar in a seekable file of known size."""

    def __init__(self, file: BinaryIO, size: int, shard: str) -> None:
        self._file, self.shard = file, shard
        self._size = size
        self.end: int | None = size

    def at(self, offset: int, count: int) -> bytes:
        if offset >= self._size:  # a damaged header may give an offset that no file system has
            return b""
        self._file.seek(offset)
        return self._file.read(count)

    piece = at


class BufferSource:
    """A part of a tar in memory, which stands at `base` in the file."""

    def __init__(self, data: bytes, base: int, shard: str) -> None:
        self._view, self._base, self.shard = memoryview(data), base, shard
        self.end: int | None = base + len(data)

    def at(self, offset: int, count: int) -> bytes:
        return bytes(self.piece(offset, count))

    def piece(self, offset: int, count: int) -> memoryview:
        """Return the bytes as `at` does, without a copy."""
        return self._view[offset - self._base : offset - self._base + count]


class StreamSource:
    """A tar in chunks that come once, such as those of a compressed file.

    Holds one chunk, or one piece that was asked for.
    """

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
        """Read to the end and return its offset.

        Errors that show only at the end, such as a wrong checksum, are raised by it.
        """
        while chunk := self._next():
            self._base, self._held = self._base + len(self._held), chunk
        return self._base + len(self._held)

    def _next(self, end: int | None = None) -> bytes:
        """Return the next chunk, empty at the end of the stream, which then is at `end`."""
        for chunk in self._chunks:
            if chunk:
                return chunk
        self.end = self._base + len(self._held) if end is None else end
        return b""
