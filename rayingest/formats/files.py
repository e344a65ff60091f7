"""Folders of files, each a sample: images in one folder a class, or files of any kind as bytes.

Owns the fields of such a sample. Nothing is opened for the index: names and sizes are those of one listing, and a file
that is gone or of another size when it is read is a fault of its own sample. Files lie together in bundles, each one
block.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from rayingest.errors import DataError
from rayingest.formats.blocks import single_block
from rayingest.formats.columns import nullable_column
from rayingest.formats.file_groups import File, group_files, parse_group
from rayingest.formats.protocol import (
    FAULT,
    FILE,
    OFFSET,
    Block,
    Columns,
    Format,
    Options,
    Shard,
    check_columns,
    raw_table,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.local_files import local_path
from rayingest.storage.redact import redact
from rayingest.storage.urls import Listing, Urls, find_shards

SUFFIXES = "suffixes"
"""The option: ends of names of the files of a folder."""

_AT_ONCE = 16


class Files(Format):
    """Files as bytes, field `data`."""

    name = "files"
    suffixes: ClassVar[tuple[str, ...]] = ("",)
    option_names = (SUFFIXES,)
    opens_shards = False
    contents = "data"
    encoding: str | None = None

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """The files in bundles of about `block_bytes`."""
        suffixes = tuple(suffix.lower() for suffix in options.get(SUFFIXES, self.suffixes))
        return group_files(find_shards(urls, suffixes, storage), block_bytes)

    def files(self, url: str, size: int) -> list[tuple[str, int]]:
        """Those of the bundle."""
        root, files = parse_group(url)
        return [(root + file.path, file.size) for file in files]

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        _, files = parse_group(shard.url)
        return single_block(shard.size, len(files), shard.size)

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Columns for the file's bytes, its `path` below the folder that all files share, `size`, the `class` that its
        folder is named after, and `label`, the number of that. `__file__` is its URL, `__offset__` always 0. The bytes
        are null where there is a `__fault__`.
        """
        root, files = parse_group(shard.url)
        wanted = check_columns(shard, (self.contents, "path", "size", "class", "label"), columns)
        found = _contents(shard.storage, root, files) if self.contents in wanted else []
        make: dict[str, Any] = {
            self.contents: lambda: nullable_column([data for data, _ in found]),
            "path": lambda: pa.array([file.path for file in files]),
            "size": lambda: pa.array([file.size for file in files]),
            "class": lambda: pa.array([file.folder for file in files]),
            "label": lambda: pa.array([file.label for file in files]),
        }
        table = {name: make[name]() for name in wanted}
        table[FILE] = pa.array([redact(root + file.path) for file in files])
        table[OFFSET] = pa.array(np.zeros(len(files), np.int64))
        if any(fault for _, fault in found):
            table[FAULT] = nullable_column(
                [None if fault is None else fault.encode() for _, fault in found], text=True
            )
        named = Shard(shard.storage, root, shard.size)
        encodings = (
            {self.contents: self.encoding} if self.encoding and self.contents in wanted else None
        )
        return [raw_table(named, table, encodings)] * len(blocks)


FORMAT = Files()


def _contents(
    storage: Storage, root: str, files: Sequence[File]
) -> list[tuple[bytes | None, str | None]]:
    """Of each file its bytes, or why they cannot be had. DataError where that may pass: all are to be read again."""

    def one(file: File) -> tuple[bytes | None, str | None]:
        try:
            data = storage.read_all(root + file.path)
        except DataError as error:
            if error.transient:
                raise
            return None, error.reason
        if len(data) != file.size:
            return (
                None,
                f"the file changed since it was indexed: {file.size} bytes then, {len(data)} now",
            )
        return data, None

    if local_path(root or files[0].path) is not None:
        return [one(file) for file in files]
    with ThreadPoolExecutor(_AT_ONCE, "rayingest-read") as pool:
        return list(pool.map(one, files))


# Folders of images, one folder a class.


class Images(Files):
    """Files as `files` has them, but for their contents: field `image`, decoded as one."""

    name = "images"
    suffixes = (
        ".jpg",
        ".jpeg",
        ".png",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
        ".webp",
        ".bmp",
        ".tif",
        ".tiff",
        ".gif",
    )
    contents = "image"
    encoding = "jpg"  # whose decoder takes every kind of image


IMAGES = Images()
