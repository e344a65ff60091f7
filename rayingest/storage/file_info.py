"""Describe the files of a listing, and answer questions about URLs for every kind of listing."""

from __future__ import annotations

import bisect
import difflib
import fnmatch
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rayingest.errors import ConfigError
from rayingest.storage.redact import PIPE, redact

UNKNOWN_SIZE = -1
"""The size of what no listing describes: the output of a command."""

_SHOWN = 5
_COMPARED = 5000
_HIDDEN = frozenset(
    {"_SUCCESS", "_common_metadata", "_delta_log", "_metadata", "_spark_metadata", "_temporary"}
    | {"__MACOSX"}
)
_HIDDEN_BEGINS = (".", "_committed_", "_started_")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file: its URL, its size in bytes (or `UNKNOWN_SIZE`) and its mark.

    The mark changes when the file is written again; "" if unknown.
    """

    url: str
    size: int
    mark: str


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


def has_wildcard(path: str) -> bool:
    """Return whether the path is a glob."""
    return re.search(r"[*?\[]", path) is not None


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is no data unless the user names it.

    Editors, notebooks, archivers and Spark leave these names beside the data.
    """
    return name in _HIDDEN or (name.startswith(_HIDDEN_BEGINS) and name not in {".", ".."})


def is_listed(path: str, folder: str) -> bool:
    """Return whether no name on the way from the folder to the path is hidden."""
    return not any(map(is_hidden, path[len(folder) :].split("/")))


def is_matched(path: str, pattern: str) -> bool:
    """Return whether a glob that matches the path names all its hidden names.

    As in a shell, a wildcard does not stand for the first character of a hidden name.
    """
    parts = pattern.strip("/").split("/")
    fixed = next((i for i, part in enumerate(parts) if has_wildcard(part)), len(parts))
    return all(
        not is_hidden(name)
        or any(part[:1] == name[:1] and fnmatch.fnmatchcase(name, part) for part in parts[fixed:])
        for name in path.strip("/").split("/")[fixed:]
    )


def common_prefix(first: str, second: str) -> str:
    """Return the longest common begin of two texts."""
    return os.path.commonprefix([first, second])  # noqa: RUF071 (by letters, not by folders)


def within_url(url: str) -> str:
    """Return a URL up to its query (web addresses) and up to the storage it is chained to."""
    start = url.find("://") + 3 if "://" in url else 0
    end = (
        re.compile(r"\?|::").search(url, start)
        if re.match(r"https?://", url)
        else re.compile("::").search(url, start)
    )
    return url[: end.start()] if end and start else url


def ends_in(url: str, suffixes: Sequence[str]) -> bool:
    """Return whether the file's name ends in one of the suffixes, ignoring case."""
    return within_url(url).lower().endswith(tuple(suffixes))


def refuse_lost_folders(
    folders: Iterable[str], matches: Collection[str], suffixes: Sequence[str]
) -> None:
    """Raise ConfigError for a folder with a shard's suffix that a glob matches.

    It is allowed if the glob also matches something in it.
    """
    alike = [] if "" in suffixes else [folder for folder in folders if ends_in(folder, suffixes)]
    ordered = sorted(matches) if alike else []
    for folder in alike:
        after = bisect.bisect(ordered, folder + "/")
        if not any(name.startswith(folder + "/") for name in ordered[after : after + 1]):
            raise ConfigError(
                f"{redact(folder)} is a folder, and a glob takes files only: name the folder "
                "itself, match the files in it, or remove it"
            )


def closest_names(
    wanted: str, names: Collection[str], suffixes: Sequence[str], only_similar: bool = False
) -> list[str]:
    """Return a few of a folder's names: similar ones, else shards first and hidden names last.

    `only_similar`: the folder is not the one that was named, so its other names say nothing.
    """
    by_lower = {name.lower(): name for name in sorted(names)}
    place = bisect.bisect(ordered := sorted(by_lower), wanted.lower())
    around = ordered[max(0, place - _COMPARED) : place + _COMPARED]
    near = [by_lower[name] for name in difflib.get_close_matches(wanted.lower(), around, n=_SHOWN)]
    if near or only_similar:
        return near
    rest = sorted(
        names,
        key=lambda name: (name.startswith("."), not ends_in(name, suffixes), "." in name, name),
    )
    return rest[:_SHOWN]
