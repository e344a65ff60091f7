"""Join many small files of a listing into one shard, so that reads and index entries are large.

Owns how the URL of such a shard writes its files, since a reader is given nothing else: the common
folder, a zero byte, then of each file its path below that folder (percent-encoded), its size and
the number of its class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from rayingest.errors import ConfigError
from rayingest.plan.order.manifest import MAX_BLOCK_SAMPLES
from rayingest.storage.file_info import FileInfo, local_path, within_url
from rayingest.storage.listing import Listing
from rayingest.storage.redact import redact

_MARK, _BETWEEN = "\0", "|"


class File(NamedTuple):
    """One file: its path below the common folder, its bytes, the number of its class."""

    path: str
    size: int
    label: int

    @property
    def folder(self) -> str:
        """The name of the file's folder: its class."""
        return self.path.rpartition("/")[0].rpartition("/")[2]


def group_files(found: Sequence[FileInfo], block_bytes: int) -> Listing:
    """Return the files, in order, as shards of about `block_bytes` and at most 1,024 files.

    Classes are numbered in the order of their names. ConfigError for URLs with a query, which may
    hold credentials.
    """
    files = Listing.of(found)
    folders = [_folder_name(shard.url) for shard in found]
    labels = {name: label for label, name in enumerate(sorted(set(folders)))}
    groups = []
    for first, last in _cuts(files.sizes, block_bytes):
        entries = []
        for place in range(first, last):
            url, path = found[place].url, files.paths[place]
            if local_path(url) is None and within_url(url) != url.partition("::")[0]:
                raise ConfigError(
                    f"the URL {redact(url)} has a query, which files of a folder cannot have: "
                    "give plain URLs"
                )
            entries.append(f"{quote(path)}:{files.sizes[place]}:{labels[folders[place]]}")
        mark = hashlib.blake2b(
            "\0".join(files.marks[first:last]).encode(), digest_size=16
        ).hexdigest()
        groups.append((_MARK + _BETWEEN.join(entries), sum(files.sizes[first:last]), mark))
    paths, sizes, marks = zip(*groups, strict=True)
    return Listing(files.root, paths, sizes, marks)


def parse_group(url: str) -> tuple[str, list[File]]:
    """Return the common folder, and the files of a group."""
    root, _, entries = url.partition(_MARK)
    files = []
    for entry in entries.split(_BETWEEN):
        path, size, label = entry.split(":")
        files.append(File(unquote(path), int(size), int(label)))
    return root, files


def _folder_name(url: str) -> str:
    return within_url(url).rpartition("/")[0].rpartition("/")[2]


def _cuts(sizes: Sequence[int], block_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each group in the listing."""
    first = held = 0
    for place, size in enumerate(sizes):
        held += size
        if held >= block_bytes or place + 1 - first >= MAX_BLOCK_SAMPLES:
            yield first, place + 1
            first, held = place + 1, 0
    if first < len(sizes):
        yield first, len(sizes)
