"""Resolve what `urls` names: paths, folders, globs, brace ranges and lists become one listing.

Owns the order of shards, and what is refused before anything is read. `local_listing` and
`remote_listing` know how a kind of storage lists files; nothing here opens one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import bracex
from fsspec.utils import glob_translate

from rayingest.errors import ConfigError
from rayingest.storage import local_listing, pipes
from rayingest.storage.files import Storage
from rayingest.storage.listing import FileInfo, common_prefix, ends_in, has_wildcard, within_url
from rayingest.storage.local_files import local_path
from rayingest.storage.redact import redact

__all__ = ["Listing", "list_shards", "redact"]

MAX_BRACE_NAMES = 1 << 22
_SHOWN = 5

Urls = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Listing:
    """The shards of a dataset, in order: `root + paths[i]` is the URL of shard i.

    `root` is the longest common folder, protocol included, ending in "/", or "". `sizes` are in
    bytes. `marks` change when a shard is written again: an etag, else a modification time (ns for
    local files), else "".
    """

    root: str = field(repr=False)  # URLs may have credentials in them
    paths: tuple[str, ...] = field(repr=False)
    sizes: tuple[int, ...]
    marks: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def url(self, shard: int) -> str:
        """Return the URL of a shard."""
        return self.root + self.paths[shard]

    @classmethod
    def of(cls, found: Sequence[FileInfo]) -> Listing:
        """Return the listing of these files, in this order."""
        root = _common_folder([shard.url for shard in found])
        return cls(
            root=root,
            paths=tuple(shard.url[len(root) :] for shard in found),
            sizes=tuple(shard.size for shard in found),
            marks=tuple(shard.mark for shard in found),
        )


def list_shards(
    urls: Urls,
    *,
    storage_options: Mapping[str, Any] | None = None,
    suffixes: Sequence[str],
    storage: Storage | None = None,
) -> Listing:
    """Return the shards that `urls` names, on any fsspec storage.

    `urls` is a path, folder, glob or brace range, or a list of them. One string gives shards sorted
    by URL; a list keeps its order, and each element is sorted in itself. A folder gives all its
    files, at any depth, whose names end in one of `suffixes` (ignoring case); files named in
    another way are taken as they are. ConfigError if nothing matches, a file of a brace range is
    missing, a list names a shard twice, or the kind of URL is refused.
    """
    return Listing.of(find_shards(urls, suffixes, storage or Storage(storage_options)))


def find_shards(urls: Urls, suffixes: Sequence[str], storage: Storage) -> list[FileInfo]:
    """Return the files of `list_shards`, one by one."""
    if isinstance(urls, str | os.PathLike):
        found = _expand(os.fspath(urls), storage, suffixes)
    else:
        found = [shard for url in urls for shard in _expand(os.fspath(url), storage, suffixes)]
        if not found:
            raise ConfigError(
                "the list of URLs is empty; give at least one path, folder, glob or brace range"
            )
    _refuse_duplicates(found)
    return found


def may_include(urls: Urls, path: str) -> bool:
    """Return whether a local file of this path, if it existed, could be a shard of `urls`."""
    given = [urls] if isinstance(urls, str | os.PathLike) else urls
    names = (local_path(name) for url in given for name in _braces(os.fspath(url)))
    real = os.path.realpath(path)
    return any(name is not None and _may_hold(os.path.realpath(name), real) for name in names)


def _may_hold(name: str, path: str) -> bool:
    if has_wildcard(name) and not os.path.exists(name):  # noqa: PTH110
        return re.match(glob_translate(name), path) is not None
    return os.path.commonpath([name, path]) == name


def _expand(url: str, storage: Storage, suffixes: Sequence[str]) -> list[FileInfo]:
    """Return the shards of one string, sorted by URL."""
    if pipes.is_pipe(url):
        return sorted(pipes.list_commands(storage, url), key=lambda shard: shard.url)
    if not url.strip():
        raise ConfigError(f"{url!r} is not a path or URL: it is empty")
    names = _braces(url)
    lister: Any = local_listing
    if local_path(url) is None:
        from rayingest.storage import remote_listing  # local data needs none of it

        lister = remote_listing
    found: dict[str, FileInfo] = {}
    missing: list[str] = []
    plain = [name for name in names if not _is_glob(name)]
    lists = lister.list_urls(storage, plain, suffixes)
    lists |= {
        name: lister.list_glob(storage, name, suffixes) for name in names if name not in lists
    }
    for name in names:
        if not lists[name]:
            missing.append(name)
        found.update((shard.url, shard) for shard in lists[name])
    if missing:
        raise ConfigError(
            _nothing_there(
                url, names, missing, lister.suggest_names(storage, missing[0], suffixes), suffixes
            )
        )
    return sorted(found.values(), key=lambda shard: shard.url)


def _braces(url: str) -> list[str]:
    path = local_path(url)
    if "{" not in url or (path is not None and os.path.exists(path)):  # noqa: PTH110
        return [url]
    try:
        return list(dict.fromkeys(bracex.iexpand(url, keep_escapes=False, limit=MAX_BRACE_NAMES)))
    except bracex.ExpansionLimitException:
        raise ConfigError(
            f"{redact(url)!r} names more than {MAX_BRACE_NAMES} files: use a glob or a folder"
        ) from None


def _is_glob(url: str) -> bool:
    path = local_path(url)
    if path is not None:
        return has_wildcard(path) and not os.path.exists(path)  # noqa: PTH110
    # In a web address, a question mark begins the query.
    return has_wildcard(within_url(url).replace("?", "") if re.match(r"https?://", url) else url)


def _nothing_there(
    url: str,
    names: Sequence[str],
    missing: Sequence[str],
    nearby: Sequence[str],
    suffixes: Sequence[str],
) -> str:
    shown = ", ".join(redact(name) for name in missing[:_SHOWN]) + (
        ", ..." if len(missing) > _SHOWN else ""
    )
    if len(names) > 1:
        what = f"{len(missing)} of the {len(names)} names in {redact(url)!r} match no file: {shown}"
    else:
        what = f"{redact(url)!r} matches no file"
    path = local_path(missing[0])
    is_folder = path is not None and os.path.isdir(path)  # noqa: PTH112
    rule = f" (of a folder, files that end in {', '.join(suffixes)} are taken)"
    rule = rule if is_folder or not ends_in(missing[0], suffixes) else ""
    return what + rule + (f"; names nearby: {', '.join(nearby)}" if nearby else "")


def _refuse_duplicates(found: Sequence[FileInfo]) -> None:
    seen: set[str] = set()
    for shard in found:
        if shard.url in seen:
            raise ConfigError(
                f"{redact(shard.url)} is twice in the list of URLs, and an epoch reads a shard "
                "once: remove one"
            )
        seen.add(shard.url)


def _common_folder(urls: Sequence[str]) -> str:
    """Return the longest folder that all URLs share.

    It never includes a query, a command or the far side of a chain.
    """
    if any(map(pipes.is_pipe, urls)):
        return ""
    low, high = min(urls), max(urls)
    shared = common_prefix(within_url(low), within_url(high))
    return shared[: shared.rfind("/") + 1]
