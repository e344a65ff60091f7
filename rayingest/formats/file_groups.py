"""Bundles: many small files of a listing as one shard, so that what is indexed and read at a time is of a decent size.

Owns how a bundle is written where a shard's URL is, since a reader gets nothing else: the common folder, a zero byte,
and of each file its path from there (percent-encoded), its size and the number of its class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from rayingest.errors import ConfigError
from rayingest.plan.order.manifest import MAX_BLOCK_SAMPLES
from rayingest.storage.listing import FileInfo, within_url
from rayingest.storage.local_files import local_path
from rayingest.storage.redact import redact
from rayingest.storage.urls import Listing

_MARK, _BETWEEN = "\0", "|"


class File(NamedTuple):
    """One file: its path below the folder that all share, its bytes, and the number of its class."""

    path: str
    size: int
    label: int

    @property
    def folder(self) -> str:
        """The name of the folder it is in: its class."""
        return self.path.rpartition("/")[0].rpartition("/")[2]


def group_files(found: Sequence[FileInfo], block_bytes: int) -> Listing:
    """The files, in their order, as shards of about so many bytes and at most 1,024 files.

    Classes are numbered in the order of their names. ConfigError for URLs with a query, which may hold credentials.
    """
    files = Listing.of(found)
    folders = [_folder_name(shard.url) for shard in found]
    labels = {name: label for label, name in enumerate(sorted(set(folders)))}
    bundles = []
    for first, last in _cuts(files.sizes, block_bytes):
        entries = []
        for place in range(first, last):
            url, path = found[place].url, files.paths[place]
            if local_path(url) is None and within_url(url) != url.partition("::")[0]:
                raise ConfigError(
                    f"{redact(url)}: files with a query in their URL cannot be read as a folder's"
                )
            entries.append(f"{quote(path)}:{files.sizes[place]}:{labels[folders[place]]}")
        mark = hashlib.blake2b(
            "\0".join(files.marks[first:last]).encode(), digest_size=16
        ).hexdigest()
        bundles.append((_MARK + _BETWEEN.join(entries), sum(files.sizes[first:last]), mark))
    paths, sizes, marks = zip(*bundles, strict=True)
    return Listing(files.root, paths, sizes, marks)


def parse_group(url: str) -> tuple[str, list[File]]:
    """The folder that all files share, and the files of a bundle."""
    root, _, entries = url.partition(_MARK)
    files = []
    for entry in entries.split(_BETWEEN):
        path, size, label = entry.split(":")
        files.append(File(unquote(path), int(size), int(label)))
    return root, files


def _folder_name(url: str) -> str:
    return within_url(url).rpartition("/")[0].rpartition("/")[2]


def _cuts(sizes: Sequence[int], block_bytes: int) -> Iterator[tuple[int, int]]:
    """Where bundles begin and end in the listing."""
    first = held = 0
    for place, size in enumerate(sizes):
        held += size
        if held >= block_bytes or place + 1 - first >= MAX_BLOCK_SAMPLES:
            yield first, place + 1
            first, held = place + 1, 0
    if first < len(sizes):
        yield first, len(sizes)
