"""What a listing finds, and small questions about URLs that every kind of listing asks."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

UNKNOWN_SIZE = -1
"""The size of what no listing tells of: the output of a command."""

# Best first: what changes with the contents, then what changes with a write.
_MARKS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True, slots=True)
class Found:
    """One shard: its URL, its size in bytes (or `UNKNOWN_SIZE`), and a mark that changes when it is written again
    ("" if unknown).
    """

    url: str
    size: int
    mark: str


def has_magic(path: str) -> bool:
    """Whether it is a glob."""
    return re.search(r"[*?\[]", path) is not None


def common_prefix(first: str, second: str) -> str:
    """The longest text with which both begin."""
    return os.path.commonprefix([first, second])  # noqa: RUF071 (letter by letter is what is meant)


def within_url(url: str) -> str:
    """The part of a URL up to its query (web addresses) and up to the storage it is chained to."""
    start = url.find("://") + 3 if "://" in url else 0
    end = (
        re.compile(r"\?|::").search(url, start) if re.match(r"https?://", url) else re.compile("::").search(url, start)
    )
    return url[: end.start()] if end and start else url


def ends_in(url: str, suffixes: Sequence[str]) -> bool:
    """Whether the file's name ends in one of the suffixes, case aside."""
    return within_url(url).lower().endswith(tuple(suffixes))


def mark_of(info: dict[str, Any]) -> str:
    """The mark in what fsspec tells of a file."""
    for name in _MARKS:
        value = info.get(name)
        if isinstance(value, datetime):
            value = value.timestamp()
        if value not in {None, ""}:
            # One file's time comes as a float from a listing and as a date from a single look in some storages.
            return f"{value:.6f}" if isinstance(value, float) else str(value).strip('"')
    return ""
