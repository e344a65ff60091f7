"""Read local files directly, and notice when they are written again. Errors are the system's."""

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
    """Remember when each file was last written, at the first look of this process.

    Keys are its URL and its mark in the index: a new index begins anew. Holds at most 65,536 files,
    which bounds memory. Times only: some filesystems give a file another inode at each request.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], int] = {}

    def differs(self, key: tuple[str, str], found: os.stat_result) -> bool:
        """Return whether the file has been written since the first look."""
        first = self._times.get(key)
        if first is None and len(self._times) < _REMEMBERED:
            self._times[key] = found.st_mtime_ns
        return first not in {None, found.st_mtime_ns}


def is_pipe(url: str) -> bool:
    """Return whether the URL names a command instead of a file."""
    return url.startswith(PIPE)


def local_path(url: str) -> str | None:
    """Return the absolute path of a local file's URL or path, None for any other URL."""
    scheme, separator, rest = url.partition("://")
    if is_pipe(url) or (separator and scheme not in {"file", "local"}):
        return None
    path = os.path.abspath(rest if separator else os.path.expanduser(url))  # noqa: PTH100, PTH111
    # A chain has a URL or a bare protocol (no slash) before "::"; an existing file is no chain.
    may_be_chain = "::" in url and (separator or "/" not in url.partition("::")[0])
    return None if may_be_chain and not os.path.exists(path) else path  # noqa: PTH110


def open_file(path: str, buffering: int = -1) -> BinaryIO:
    """Open the file. NotAFileError for a device, or a FIFO, whose writer is not waited for."""
    file = open(path, "rb", buffering, opener=_without_waiting)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotAFileError("it is a pipe, a socket or a device")
    return file  # type: ignore[return-value]


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> tuple[os.stat_result, list[bytes]]:
    """Return the file's stat result and its ranges, from one open file, so that they agree."""
    with open_file(path, buffering=0) as file:
        found = os.fstat(file.fileno())
        pieces = []
        for begin, end in ranges:
            file.seek(begin)
            pieces.append(_read_fully(file, end - begin))  # type: ignore[arg-type]
        return found, pieces


def _read_fully(file: io.FileIO, count: int) -> bytes:
    """Return `count` bytes, fewer only at the end: one system call reads at most 2 GiB."""
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
    """Return the whole file."""
    with open_file(path) as file:
        return file.read()
