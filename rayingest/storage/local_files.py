"""Local files, read directly: which they are, their bytes, and whether they were written again meanwhile.

Errors are those of the system.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Sequence
from typing import BinaryIO

from rayingest.storage.failures import NotAFileError
from rayingest.storage.redact import PIPE

_REMEMBERED = 1 << 16


class FirstTimes:
    """When each file had last been written when this process first looked at it, by its URL and its mark in the index:
    with a new index that begins anew. Of 65,536 files at most, a bound on memory.

    Times only: some file systems give a file another inode whenever they are asked.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], int] = {}

    def differs(self, key: tuple[str, str], found: os.stat_result) -> bool:
        """Whether it has been written since the first look."""
        first = self._times.get(key)
        if first is None and len(self._times) < _REMEMBERED:
            self._times[key] = found.st_mtime_ns
        return first not in {None, found.st_mtime_ns}


def local_path(url: str) -> str | None:
    """The absolute path of a local file's URL or path, None for a URL of anything else."""
    scheme, separator, rest = url.partition("://")
    if url.startswith(PIPE) or (separator and scheme not in {"file", "local"}):
        return None
    path = os.path.abspath(rest if separator else os.path.expanduser(url))  # noqa: PTH100, PTH111 (text in, text out)
    # Before "::" of a chain stands a URL or a bare protocol, which has no slash; a file that is there is no chain.
    may_be_chain = "::" in url and (separator or "/" not in url.partition("::")[0])
    return None if may_be_chain and not os.path.exists(path) else path  # noqa: PTH110


def open_file(path: str, buffering: int = -1) -> BinaryIO:
    """The file for reading; NotAFileError for a FIFO, whose writer is not waited for, or a device."""
    file = open(path, "rb", buffering, opener=_without_waiting)  # noqa: SIM115 (the caller's)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotAFileError("a pipe, a socket or a device is in the file's place")
    return file  # type: ignore[return-value]


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> tuple[os.stat_result, list[bytes]]:
    """What the system tells of the file, and its ranges, from one open file, so that they belong together."""
    with open_file(path, buffering=0) as file:
        found = os.fstat(file.fileno())
        pieces = []
        for begin, end in ranges:
            file.seek(begin)
            pieces.append(_read_fully(file, end - begin))  # type: ignore[arg-type]
        return found, pieces


def _read_fully(file: io.FileIO, count: int) -> bytes:
    """`count` bytes, fewer only at the end: one read system call gives at most 2 GiB."""
    piece = file.read(count) or b""
    if len(piece) in {0, count}:
        return piece
    parts = [piece]
    missing = count - len(piece)
    while missing and (piece := file.read(missing) or b""):
        parts.append(piece)
        missing -= len(piece)
    return b"".join(parts)


def read_whole(path: str) -> bytes:
    """All of the file."""
    with open_file(path) as file:
        return file.read()
