"""Resolve what `urls` names: paths, folders, globs, brace ranges and lists become one listing.

Owns the order of shards, what is refused before anything is read, and how local files are listed:
URLs are absolute paths, and links are followed. A name that exists and leads to no file is an
error: otherwise its data would be missing without notice. `remote_listing` lists other storage.
Nothing here opens a file.
"""

from __future__ import annotations

import glob as globbing
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import bracex
from fsspec.utils import glob_translate

from rayingest.errors import ConfigError
from rayingest.storage.file_info import (
    UNKNOWN_SIZE,
    FileInfo,
    closest_names,
    common_prefix,
    ends_in,
    has_wildcard,
    is_hidden,
    is_matched,
    is_pipe,
    local_path,
    refuse_lost_folders,
    within_url,
)
from rayingest.storage.files import Storage
from rayingest.storage.pipes import check_allowed
from rayingest.storage.redact import redact

MAX_BRACE_NAMES = 1 << 22

_NEAR = 2
"""Missing parts of a path above which the names of a folder say nothing."""
_SHOWN = 5
_NUMBERS = re.compile(r"(\{\d+\.\.\d+\})")

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
    another way are taken as they are. Below a folder, and where a wildcard stands for a name,
    hidden names are left out (`file_info.is_hidden`). ConfigError if nothing matches, a
    file of a brace range is missing, a list names a shard twice, or the kind of URL is refused.
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
    if is_pipe(url):
        return sorted(list_commands(storage, url), key=lambda shard: shard.url)
    if not url.strip():
        raise ConfigError(f"{url!r} is not a path or URL: it is empty")
    names = _braces(url)
    list_urls, list_glob, suggest_names = _list_local_urls, _list_local_glob, _suggest_local_names
    if local_path(url) is None:
        from rayingest.storage import remote_listing as remote  # local data needs none of it

        list_urls, list_glob = remote.list_urls, remote.list_glob
        suggest_names = remote.suggest_names
    found: dict[str, FileInfo] = {}
    missing: list[str] = []
    plain = [name for name in names if not _is_glob(name)]
    lists = list_urls(storage, plain, suffixes)
    lists |= {name: list_glob(storage, name, suffixes) for name in names if name not in lists}
    for name in names:
        if not lists[name]:
            missing.append(name)
        found.update((shard.url, shard) for shard in lists[name])
    if missing:
        raise ConfigError(
            _nothing_there(
                url, names, missing, suggest_names(storage, missing[0], suffixes), suffixes
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
    folder = None if path is None else os.path.dirname(path)  # noqa: PTH120
    if folder and not os.path.isdir(folder):  # noqa: PTH112
        rule = f": there is no folder {folder!r}"
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
    if any(map(is_pipe, urls)):
        return ""
    low, high = min(urls), max(urls)
    shared = common_prefix(within_url(low), within_url(high))
    return shared[: shared.rfind("/") + 1]


def list_commands(storage: Storage, url: str) -> list[FileInfo]:
    """Return one shard per command.

    A number range such as `{000..009}` gives several commands; other braces are the shell's.
    """
    check_allowed(storage, url)
    parts = [
        list(bracex.iexpand(part)) if _NUMBERS.fullmatch(part) else [part]
        for part in _NUMBERS.split(url)
    ]
    return [FileInfo("".join(chosen), UNKNOWN_SIZE, "") for chosen in product(*parts)]


def _list_local_urls(
    storage: Storage, urls: Sequence[str], suffixes: Sequence[str]
) -> dict[str, list[FileInfo]]:
    """Return for each name its file, or the files of its folder; [] if it does not exist."""
    return {url: _local_shards(_local(url), suffixes) for url in urls}


def _list_local_glob(storage: Storage, url: str, suffixes: Sequence[str]) -> list[FileInfo]:
    """Return the files that match; `refuse_lost_folders` checks the folders that match."""
    pattern = _local(url)
    matches = globbing.glob(pattern, recursive=True, include_hidden=True)
    paths = [path for path in matches if is_matched(path, pattern)]
    found = {path: _local_file(path) for path in paths}
    others = (path for path, shard in found.items() if shard is None)
    folders = filter(os.path.isdir, others)
    refuse_lost_folders(folders, paths, suffixes)
    return [shard for shard in found.values() if shard is not None]


def _suggest_local_names(storage: Storage, url: str, suffixes: Sequence[str]) -> list[str]:
    """Return a few names in the nearest existing folder, similar ones first."""
    folder, wanted = _local(url), ""
    depth = 0
    while not os.path.isdir(folder):  # noqa: PTH112
        folder, wanted = os.path.split(folder)
        depth += 1
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    far = depth > _NEAR or os.path.dirname(folder) == folder  # noqa: PTH120 - the root has all
    near = closest_names(wanted, names, suffixes, only_similar=far)
    return [os.path.join(folder, name) for name in near]


def _local(url: str) -> str:
    path = local_path(url)
    if path is None:
        raise ConfigError(f"{url!r} is not a path of a local file")
    return path


def _local_shards(path: str, suffixes: Sequence[str]) -> list[FileInfo]:
    if os.path.isdir(path):  # noqa: PTH112
        files = (
            _local_file(name, asked_for="" not in suffixes) for name in _walk(path, suffixes, set())
        )
        return [shard for shard in files if shard is not None]
    shard = _local_file(path)
    return [] if shard is None else [shard]


def _local_file(path: str, *, asked_for: bool = True) -> FileInfo | None:
    """Return the file; None for a folder, or if nothing is there.

    ConfigError if access is refused, for a link that leads nowhere, and for a pipe, socket or
    device if the user `asked_for` it.
    """
    try:
        found = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):  # noqa: PTH114
            raise _dangling_link(path) from None
        return None
    except OSError as error:
        raise _no_access(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        if asked_for and not stat.S_ISDIR(found.st_mode):
            raise ConfigError(
                f"{path} is a pipe, a socket or a device, and only files can be read: remove it"
            )
        return None
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"the file name {os.fsencode(path)!r} is not UTF-8, so that it has no URL: rename the "
            "file"
        ) from None
    return FileInfo(path, found.st_size, str(found.st_mtime_ns))


def _walk(folder: str, suffixes: Sequence[str], above: set[tuple[int, int]]) -> Iterator[str]:
    """Yield what ends in the suffixes below a folder and is no folder, through links too.

    A link back to a folder above is not entered again.
    """
    try:
        here = os.stat(folder)  # noqa: PTH116
        entries = list(os.scandir(folder))
    except OSError as error:
        raise ConfigError(f"cannot list {folder}: {error.strerror}") from error
    identity = (here.st_dev, here.st_ino)
    if identity in above:
        return
    for entry in entries:
        if is_hidden(entry.name):
            continue
        if _is_folder(entry):
            yield from _walk(entry.path, suffixes, above | {identity})
        elif ends_in(entry.path, suffixes):
            yield entry.path
        elif "." not in entry.name and _leads_nowhere(entry):
            raise _dangling_link(entry.path)  # it may be a link to a folder of shards


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a ring of links
        raise _no_access(entry.path, error) from error


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)  # noqa: PTH110


def _no_access(path: str, error: OSError) -> ConfigError:
    return ConfigError(f"cannot access {path}: {error.strerror}")


def _dangling_link(path: str) -> ConfigError:
    return ConfigError(
        f"{path} is a link to {os.path.realpath(path)}, which does not exist: fetch that file, "
        "mount its disk, or remove the link"
    )
