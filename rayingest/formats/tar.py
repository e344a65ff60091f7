"""Parse tar archives: bytes in, members out; and read the indexes beside them.

Reads POSIX ustar and pax (IEEE Std 1003.1, `pax`, "Interchange Formats") and the GNU extensions for
long names. Refuses what it cannot read whole: sparse and multi-volume members, unknown types,
headers whose checksum is wrong, and headers that readers interpret differently. A tar has checksums
of headers only: the decoder of a member must find damage inside it. Which members are samples is
not known here.

An index beside a tar saves a pass over the tar. Two kinds are read: Energon's `X.tar.idx`, a table
of where samples begin (https://github.com/NVIDIA/Megatron-Energon), and DALI's `X.idx` from
`wds2idx`, a line per sample (https://github.com/NVIDIA/DALI). An index that does not fit its tar is
logged and not used. Of the tar, only the part before the first sample and the last sample are
checked; errors between them show when the samples are read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

import numpy as np

from rayingest.errors import DataError, IngestError
from rayingest.formats.protocol import Shard
from rayingest.storage.redact import redact

_log = logging.getLogger("rayingest")

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


class Samples(NamedTuple):
    """Begins and ends of samples in the tar, and the bytes of their files: int64[n] each."""

    begins: np.ndarray
    ends: np.ndarray
    nbytes: np.ndarray


def read_foreign_index(shard: Shard, samples_in: Callable[[int, int], int]) -> Samples | None:
    """Return what an index beside the tar says, or None if there is no usable one.

    `samples_in(begin, end)` counts the samples of a range, up to 2. It raises DataError if the
    places are no headers.
    """
    for index, data, parse in _beside(shard):
        try:
            samples = parse(data)
            _check_places(samples, shard.size)
            _check_outermost(samples, samples_in)
        except (ValueError, IndexError, DataError) as error:
            if isinstance(error, DataError) and error.transient:
                raise
            _log.warning(
                "the index %s is ignored, and the tar is read instead: %s", redact(index), error
            )
        else:
            return samples
    return None


def blame_foreign_index(shard: Shard, error: DataError) -> DataError:
    """Return the error, which names the index beside the tar as another possible cause."""
    index = None
    with suppress(IngestError):  # the first error matters, not this one
        index = None if error.transient else next((index for index, *_ in _beside(shard)), None)
    if index is None:
        return error
    return error.with_reason(
        f"{error.reason}; or the index {redact(index)}, from which the offsets come, belongs to "
        "another tar: "
        "then remove it, and the cached index that was built with it"
    )


def _beside(shard: Shard) -> Iterator[tuple[str, bytes, Callable[[bytes], Samples]]]:
    """Yield URL, contents and parser of each index beside the tar."""
    url = shard.url
    if not url.lower().endswith(".tar"):  # with a signed URL, no other file can be read
        return
    for index, parse in ((url + ".idx", _energon), (url[: -len(".tar")] + ".idx", _dali)):
        if (data := shard.storage.read_if_exists(index)) is not None:
            yield index, data, parse


def _energon(data: bytes) -> Samples:
    """Parse a table of u64: the begin of each sample, and the end of the last."""
    places = np.frombuffer(data, "<u8").astype(np.int64)
    return Samples(places[:-1], places[1:], np.diff(places))


def _dali(data: bytes) -> Samples:
    """Parse a line with version and number of samples, then a line per sample.

    A line gives extension, offset and size (from version 1.2 on, the name too) of each file,
    separated by spaces.
    """
    version, *lines = data.decode().splitlines()
    width = {"v1.1": 3, "v1.2": 4}.get(version.partition(" ")[0], 0)
    if not width or int(version.partition(" ")[2]) != len(lines):
        raise ValueError(
            f"its first line, {version[:40]!r}, has an unknown version, or its number of samples "
            f"is not {len(lines)}, the number of lines that follow"
        )
    ends, nbytes = [], []
    for line in lines:
        words = line.split(" ")
        if len(words) % width:
            raise ValueError("it has names with spaces, which are ambiguous")
        sizes = [int(size) for size in words[2::width]]
        ends.append(int(words[-width + 1]) + -(-sizes[-1] // BLOCK) * BLOCK)
        nbytes.append(sum(sizes))
    return Samples(
        np.array([0, *ends[:-1]], np.int64), np.array(ends, np.int64), np.array(nbytes, np.int64)
    )


def _check_places(samples: Samples, size: int) -> None:
    begins, ends, _ = samples
    if not len(ends):
        raise ValueError("it lists no sample")
    last = int(ends[-1])
    if (begins >= ends).any() or (begins[1:] < ends[:-1]).any() or begins[0] < 0 or last > size:
        raise ValueError(f"its offsets are out of order, or past the end of the tar at {size}")
    if (begins % BLOCK).any() or (ends % BLOCK).any():
        raise ValueError(f"its offsets are not multiples of {BLOCK}, as those of tar headers are")


def _check_outermost(samples: Samples, samples_in: Callable[[int, int], int]) -> None:
    begins, ends, _ = samples
    if samples_in(0, int(begins[0])):
        raise ValueError(f"the tar has samples before its first offset, {begins[0]}")
    if samples_in(int(begins[-1]), int(ends[-1])) != 1:
        raise ValueError(
            f"it lists one sample from {begins[-1]} to {ends[-1]}, and the tar does not have "
            "exactly one there"
        )
