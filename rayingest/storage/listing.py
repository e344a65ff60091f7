"""What a listing finds, and small questions about URLs that every kind of listing asks."""

from __future__ import annotations

import bisect
import difflib
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rayingest.errors import ConfigError
from rayingest.storage.redact import redact

UNKNOWN_SIZE = -1
"""The size of what no listing tells of: the output of a command."""

_SHOWN = 5
_COMPARED = 5000

# Best first: what changes with the contents, then what changes with a write.
_MARKS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One shard: its URL, its size in bytes (or `UNKNOWN_SIZE`), and a mark that changes when it is written again
    ("" if unknown).
    """

    url: str
    size: int
    mark: str


def has_wildcard(path: str) -> bool:
    """Whether it is a glob."""
    return re.search(r"[*?\[]", path) is not None


def common_prefix(first: str, second: str) -> str:
    """The longest text with which both begin."""
    return os.path.commonprefix([first, second])  # noqa: RUF071 (letter by letter is what is meant)


def within_url(url: str) -> str:
    """The part of a URL up to its query (web addresses) and up to the storage it is chained to."""
    start = url.find("://") + 3 if "://" in url else 0
    end = (
        re.compile(r"\?|::").search(url, start)
        if re.match(r"https?://", url)
        else re.compile("::").search(url, start)
    )
    return url[: end.start()] if end and start else url


def ends_in(url: str, suffixes: Sequence[str]) -> bool:
    """Whether the file's name ends in one of the suffixes, case aside."""
    return within_url(url).lower().endswith(tuple(suffixes))


def refuse_lost_folders(
    folders: Iterable[str], matches: Collection[str], suffixes: Sequence[str]
) -> None:
    """ConfigError for a folder called like a shard that a glob matches, where nothing in it is among the matches."""
    alike = [] if "" in suffixes else [folder for folder in folders if ends_in(folder, suffixes)]
    ordered = sorted(matches) if alike else []
    for folder in alike:
        after = bisect.bisect(ordered, folder + "/")
        if not any(name.startswith(folder + "/") for name in ordered[after : after + 1]):
            raise ConfigError(
                f"{redact(folder)} is a folder, and a glob takes files only: name the folder "
                "itself, match the files "
                "in it, or take it away"
            )


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


def closest_names(wanted: str, names: Collection[str], suffixes: Sequence[str]) -> list[str]:
    """A few of a folder's names: those like the one wanted, else shards, folders and all else before what is hidden."""
    by_lower = {name.lower(): name for name in sorted(names)}
    place = bisect.bisect(ordered := sorted(by_lower), wanted.lower())
    around = ordered[max(0, place - _COMPARED) : place + _COMPARED]
    near = [by_lower[name] for name in difflib.get_close_matches(wanted.lower(), around, n=_SHOWN)]
    rest = sorted(
        names,
        key=lambda name: (name.startswith("."), not ends_in(name, suffixes), "." in name, name),
    )
    return near or rest[:_SHOWN]
