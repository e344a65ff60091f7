"""List local files by name, glob and folder. URLs are absolute paths; links are followed.

A name that exists and leads to no file is an error: otherwise its data would be missing without
notice.
"""

from __future__ import annotations

import glob as globbing
import os
import stat
from collections.abc import Iterator, Sequence

from rayingest.errors import ConfigError
from rayingest.storage.files import Storage
from rayingest.storage.listing import FileInfo, closest_names, ends_in, refuse_lost_folders
from rayingest.storage.local_files import local_path


def list_urls(
    storage: Storage, urls: Sequence[str], suffixes: Sequence[str]
) -> dict[str, list[FileInfo]]:
    """Return for each name its file, or the files of its folder; [] if it does not exist."""
    return {url: _file_or_folder(_path(url), suffixes) for url in urls}


def list_glob(storage: Storage, url: str, suffixes: Sequence[str]) -> list[FileInfo]:
    """Return the files that match; `refuse_lost_folders` checks the folders that match."""
    # Hidden names match, as on object storage, so that a copy of a dataset is the same dataset.
    paths = globbing.glob(_path(url), recursive=True, include_hidden=True)
    found = {path: _file(path) for path in paths}
    others = (path for path, shard in found.items() if shard is None)
    folders = filter(os.path.isdir, others)
    refuse_lost_folders(folders, paths, suffixes)
    return [shard for shard in found.values() if shard is not None]


def suggest_names(storage: Storage, url: str, suffixes: Sequence[str]) -> list[str]:
    """Return a few names in the nearest existing folder, similar ones first."""
    folder, wanted = _path(url), ""
    while not os.path.isdir(folder):  # noqa: PTH112
        folder, wanted = os.path.split(folder)
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    return [os.path.join(folder, name) for name in closest_names(wanted, names, suffixes)]


def _path(url: str) -> str:
    path = local_path(url)
    if path is None:
        raise ConfigError(f"{url!r} is not a path of a local file")
    return path


def _file_or_folder(path: str, suffixes: Sequence[str]) -> list[FileInfo]:
    if os.path.isdir(path):  # noqa: PTH112
        files = (_file(name, asked_for="" not in suffixes) for name in _walk(path, suffixes, set()))
        return [shard for shard in files if shard is not None]
    shard = _file(path)
    return [] if shard is None else [shard]


def _file(path: str, *, asked_for: bool = True) -> FileInfo | None:
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
