"""Local files by name, glob and folder. URLs of local files are absolute paths; links are followed."""

from __future__ import annotations

import glob as globbing
import os
import stat
from collections.abc import Iterator, Sequence

from rayingest.errors import ConfigError
from rayingest.storage.files import Storage
from rayingest.storage.listing import Found, ends_in, likeliest
from rayingest.storage.local_files import local_path


def plain(storage: Storage, urls: Sequence[str], suffixes: Sequence[str]) -> dict[str, list[Found]]:
    """For each name its file, or the files of its folder; an empty list where there is neither."""
    return {url: _file_or_folder(_path(url), suffixes) for url in urls}


def glob(storage: Storage, url: str) -> list[Found]:
    """Files that match; folders that match are left out."""
    # Hidden names match too, as they do on object storage, so that a copy of a data set is the same data set.
    paths = globbing.glob(_path(url), recursive=True, include_hidden=True)
    return [shard for path in paths if (shard := _file(path)) is not None]


def nearby(storage: Storage, url: str, suffixes: Sequence[str]) -> list[str]:
    """A few names in the nearest folder that exists, those like the missing one if there are any."""
    folder, wanted = _path(url), ""
    while not os.path.isdir(folder):  # noqa: PTH112
        folder, wanted = os.path.split(folder)
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    return [os.path.join(folder, name) for name in likeliest(wanted, names, suffixes)]


def _path(url: str) -> str:
    path = local_path(url)
    if path is None:
        raise ConfigError(f"{url!r} is not the path of a local file")
    return path


def _file_or_folder(path: str, suffixes: Sequence[str]) -> list[Found]:
    if os.path.isdir(path):  # noqa: PTH112
        files = (_file(name) for name in _walk(path, set()) if ends_in(name, suffixes))
        return [shard for shard in files if shard is not None]
    shard = _file(path)
    return [] if shard is None else [shard]


def _file(path: str) -> Found | None:
    """The file; None when there is none, ConfigError when looking at it is not allowed."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"cannot look at {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):  # a folder, or what nobody may ever write to, such as a FIFO
        return None
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{os.fsencode(path)!r}: a file whose name is not UTF-8 has no URL; rename it") from None
    return Found(path, found.st_size, str(found.st_mtime_ns))


def _walk(folder: str, above: set[tuple[int, int]]) -> Iterator[str]:
    """Files below a folder, through links too; a link back to a folder above is not entered again."""
    try:
        here = os.stat(folder)  # noqa: PTH116
        entries = list(os.scandir(folder))
    except OSError as error:
        raise ConfigError(f"cannot list {folder}: {error.strerror}") from error
    identity = (here.st_dev, here.st_ino)
    if identity in above:
        return
    for entry in entries:
        if entry.is_dir():
            yield from _walk(entry.path, above | {identity})
        else:
            yield entry.path
