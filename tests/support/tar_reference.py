"""Read tars with the standard library, write valid tars, and damage them; for tests and fuzzing.

`reference` reads independently: tarfile finds the members, WebDataset's rules make samples of them.
`check` compares the package's reader with it: the same samples, or a DataError. Randomness is an
argument, so that a fuzzer can guide it.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from rayingest.errors import DataError
from rayingest.formats import get_format
from rayingest.formats.protocol import Block, Shard
from rayingest.storage.files import Storage

Sample = dict[str, Any]

FORMAT = get_format("webdataset")
BLOCK = 512

_NAME = re.compile(r"(?P<key>(?:.*/)?[^/.]+)\.(?P<extension>[^/]+)", re.DOTALL)
_UNREAD = ((100, 8), (108, 8), (116, 8), (136, 12), (329, 8), (337, 8))
# Where the fields that we read stand: name, size, checksum, type, magic, prefix.
_FIELDS = ((0, 100), (124, 12), (148, 8), (156, 1), (257, 8), (345, 155))


class Header(tarfile.TarInfo):
    """tarfile's header, but read strictly by the format's text.

    tarfile stops silently at a header with an invalid number, even one that does not matter here.
    It takes the times that GNU headers have in the place of POSIX's prefix for a part of the name.
    It takes a file of the oldest type for a folder if its long name, cut to 100 bytes, ends in a
    slash.
    """

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Header:
        block = bytes(buf)
        if len(block) == BLOCK and block.count(0) != BLOCK and _sum_holds(block):
            for at, width in _UNREAD:
                block = block[:at] + b"0" * (width - 1) + b"\0" + block[at + width :]
            if block[257:263] != b"ustar\0":
                block = block[:345] + bytes(155) + block[500:]
            if block[156:157] == tarfile.AREGTYPE:
                block = block[:156] + tarfile.REGTYPE + block[157:]
            block = with_sum(block)
        return super().frombuf(block, encoding, errors)  # type: ignore[return-value]


def reference(data: bytes) -> list[Sample]:
    """Return the samples of an archive: {"__key__": key, extension: bytes}. Errors of tarfile pass
    through.
    """
    found: list[Sample] = []
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", tarinfo=Header) as tar:
        for info in tar:
            name = info.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            named, top = _NAME.fullmatch(name), name.split("/")[0]
            if not info.isreg() or named is None or (len(top) > 3 and top[:2] == top[-2:] == "__"):
                continue
            key, extension = named["key"], named["extension"].lower()
            if not found or found[-1]["__key__"] != key:
                found.append({"__key__": key})
            if extension in found[-1]:
                raise ValueError(f"{extension} comes twice")
            content = tar.extractfile(info)
            found[-1][extension] = content.read() if content else b""
            if len(found[-1][extension]) != info.size:
                raise ValueError(f"{name} is cut off")
    return found


def check(data: bytes, before: bytes | None, folder: Path) -> bool:
    """Return whether `data` is read without an error; fail if it is read wrongly or with another
    error.

    Reads its compressed form too, which must yield the same, and, with `before`, reads `data` with
    the index of that valid archive: the result is an error, or as many samples as there were.
    """
    found = _outcome(lambda: read(data, folder / "s.tar"))
    assert _outcome(lambda: read(gzip.compress(data, 0), folder / "s.tgz")) == found
    if found is not None:
        assert found == reference(data)
    if before is None:
        return found is not None
    changed = data[: len(before)].ljust(len(before), b"\0")
    path = folder / "c.tar"
    path.write_bytes(before)
    blocks = index(path)
    path.write_bytes(changed)
    rows = _outcome(lambda: rows_of(path, blocks))
    assert rows is None or len(rows) == sum(samples for _, _, samples in blocks)
    return found is not None


def read(data: bytes, path: Path) -> list[Sample]:
    """Read a file of these bytes with the package, every sample in a block of its own."""
    path.write_bytes(data)
    return rows_of(path, index(path))


def index(path: Path) -> list[Block]:
    blocks = FORMAT.index(Shard(Storage(), str(path), path.stat().st_size), 1)
    return list(
        zip(blocks.begin.tolist(), blocks.end.tolist(), blocks.samples.tolist(), strict=True)
    )


def rows_of(path: Path, blocks: list[Block]) -> list[Sample]:
    """Return the samples of these blocks, joined."""
    tables = FORMAT.read(Shard(Storage(), str(path), path.stat().st_size), blocks, None)
    rows = [row for table in tables for row in table.to_pylist()]
    return [{k: v for k, v in row.items() if v is not None and k != "__offset__"} for row in rows]


def _outcome(read: Callable[[], list[Sample]]) -> list[Sample] | None:
    try:
        return read()
    except DataError as error:
        if error.shard is None or error.offset is None:
            raise AssertionError("the error does not say where") from error
        return None


def archive(random: Random) -> bytes:
    """Return a valid archive of a few members of all kinds."""
    target = io.BytesIO()
    form = random.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(fileobj=target, mode="w", format=form) as tar:
        for i in range(random.randrange(1, 6)):
            stem = random.choice(("a", "b/c", "x/" * 60, "ü" * 40, "__m__/q", "."))
            info = tarfile.TarInfo(
                f"{stem}{i // 2}{random.choice(('.txt', '.A.b') if i % 2 else ('.x', ''))}"
            )
            info.type = random.choice((b"0",) * 9 + (b"\0", b"7", b"5", b"2", b"1"))
            info.size = 0 if info.type in b"521" else random.choice((0, 1, 511, 512, 513, 1500))
            if random.randrange(4) == 0:
                info.pax_headers = {"comment": "x" * random.randrange(600)}
            tar.addfile(info, io.BytesIO(random.randbytes(info.size)))
    return target.getvalue()


def damaged(data: bytes, random: Random) -> bytes:
    """Return the archive with up to three faults: flipped, cut, inserted, removed or repeated
    bytes, a changed header.
    """
    changed = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(changed) + 1)
        block = at // BLOCK * BLOCK
        kind = random.randrange(8)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            changed[at:at] = random.randbytes(random.choice((1, BLOCK, 700)))
        elif kind == 3:
            changed[at:at] = changed[at : at + random.choice((1, BLOCK, 1024))]
        elif kind == 4:
            begin = random.randrange(len(changed) + 1) // BLOCK * BLOCK
            changed[block:block] = changed[begin : begin + BLOCK * random.randrange(1, 4)]
        elif kind == 5:
            del changed[at : at + random.choice((1, BLOCK, 600))]
        elif block + BLOCK <= len(changed):
            changed[block : block + BLOCK] = _changed_header(
                bytes(changed[block : block + BLOCK]), random
            )
    return bytes(changed)


def _changed_header(block: bytes, random: Random) -> bytes:
    """Set a field to another value, and correct the checksum."""
    at, width = random.choice(_FIELDS)
    kind = random.randrange(6)
    if kind == 0:
        value = random.randbytes(width)
    elif kind == 1:
        value = bytes([random.choice(b"0123567xXgLKSDVMNZ5\0")]) * width
    elif kind == 2:
        value = b"%o" % random.choice((0, 1, BLOCK, 700, 10**6, 8**11 - 1))
    elif kind == 3:
        value = b"\x80" + random.choice((3, 600, 1 << 40, 1 << 62, 1 << 63, 1 << 80)).to_bytes(
            11, "big"
        )
    elif kind == 4:
        value = random.choice((b"a.txt/", b"q/", b"ustar\0", b"ustar  ", b"a0.txt"))
    else:
        value = b""
    return with_sum(block[:at] + value[:width].ljust(width, b"\0") + block[at + width :])


def with_sums(data: bytes) -> bytes:
    """Set the checksum of every 512 bytes that are not zero, as if they were a header."""
    blocks = (data[at : at + BLOCK] for at in range(0, len(data), BLOCK))
    return b"".join(
        with_sum(block) if len(block) == BLOCK and any(block) else block for block in blocks
    )


def with_sum(block: bytes) -> bytes:
    """Set the checksum of a header."""
    rest = block[:148] + b" " * 8 + block[156:]
    return rest[:148] + b"%06o\0 " % sum(rest) + rest[156:]


def _sum_holds(block: bytes) -> bool:
    try:
        return int(block[148:156].split(b"\0")[0].strip() or b"0", 8) in tarfile.calc_chksums(block)
    except ValueError:
        return False
