"""Local files by name, glob and folder. URLs of local files are absolute paths; links are followed.

A name that is there and leads to no file is an error: what was meant by it would be missing without a word.
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
    """For each name its file, or the files of its folder; an empty list where there is neither."""
    return {url: _file_or_folder(_path(url), suffixes) for url in urls}


def list_glob(storage: Storage, url: str, suffixes: Sequence[str]) -> list[FileInfo]:
    """Files that match; folders that match are left out, as far as `refuse_lost_folders` lets them."""
    # Hidden names match too, as they do on object storage, so that a copy of a data set is the same data set.
    paths = globbing.glob(_path(url), recursive=True, include_hidden=True)
    found = {path: _file(path) for path in paths}
    folders = (path for path, shard in found.items() if shard is None and os.path.isdir(path))  # noqa: PTH112
    refuse_lost_folders(folders, paths, suffixes)
    return [shard for shard in found.values() if shard is not None]


def suggest_names(storage: Storage, url: str, suffixes: Sequence[str]) -> list[str]:
    """A few names in the nearest folder that exists, those like the missing one if there are any."""
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
        raise ConfigError(f"{url!r} is not the path of a local file")
    return path


def _file_or_folder(path: str, suffixes: Sequence[str]) -> list[FileInfo]:
    if os.path.isdir(path):  # noqa: PTH112
        files = (_file(name, asked_for="" not in suffixes) for name in _walk(path, suffixes, set()))
        return [shard for shard in files if shard is not None]
    shard = _file(path)
    return [] if shard is None else [shard]


def _file(path: str, *, asked_for: bool = True) -> FileInfo | None:
    """The file; None for a folder, or where nothing is.

    ConfigError when looking at it is not allowed, for a link that leads nowhere, and for what is no file, such as a
    pipe that nobody may ever write to, unless it only happened to be there.
    """
    try:
        found = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):  # noqa: PTH114
            raise _leads_nowhere(path) from None
        return None
    except OSError as error:
        raise _cannot_look_at(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        if asked_for and not stat.S_ISDIR(found.st_mode):
            raise ConfigError(
                f"{path} is a pipe, a socket or a device, and only files can be read: take it away"
            )
        return None
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{os.fsencode(path)!r}: a file whose name is not UTF-8 has no URL; rename it"
        ) from None
    return FileInfo(path, found.st_size, str(found.st_mtime_ns))


def _walk(folder: str, suffixes: Sequence[str], above: set[tuple[int, int]]) -> Iterator[str]:
    """What ends in the suffixes below a folder, and is none, through links too; a link back to a folder above is not
    entered again.
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
        elif "." not in entry.name and entry.is_symlink() and not os.path.exists(entry.path):  # noqa: PTH110
            raise _leads_nowhere(entry.path)  # it may have been a folder


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # links in a ring
        raise _cannot_look_at(entry.path, error) from error


def _cannot_look_at(path: str, error: OSError) -> ConfigError:
    return ConfigError(f"cannot look at {path}: {error.strerror}")


def _leads_nowhere(path: str) -> ConfigError:
    return ConfigError(
        f"{path} is a link to {os.path.realpath(path)}, which does not exist: fetch that, mount "
        "what it is on, or take "
        "the link away"
    )
