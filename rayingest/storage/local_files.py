"""Local files, read directly: which they are, and their bytes. Errors are those of the system."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from rayingest.storage.redact import PIPE


def local_path(url: str) -> str | None:
    """The absolute path of a local file's URL or path, None for a URL of anything else."""
    if "::" in url or url.startswith(PIPE):
        return None
    scheme, separator, rest = url.partition("://")
    if not separator:
        return os.path.abspath(os.path.expanduser(url))  # noqa: PTH100, PTH111 (text in, text out)
    return os.path.abspath(rest) if scheme in {"file", "local"} else None  # noqa: PTH100


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> tuple[int, list[bytes]]:
    """The file's size and its ranges, from one open file, so that they belong together."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        pieces = []
        for begin, end in ranges:
            file.seek(begin)
            pieces.append(_read_fully(file, end - begin))
        return size, pieces


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
    with open(path, "rb") as file:
        return file.read()
