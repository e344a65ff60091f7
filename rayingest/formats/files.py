"""Read folders of files, each a sample: images by class, or files of any kind as bytes.

Owns the fields of a sample. The index opens no file: names and sizes come from one listing. A file
that is missing, or of another size, when it is read is a fault of its own sample. Files lie in
groups (`file_groups`), each one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from rayingest.errors import DataError
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
    single_block,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.file_info import local_path
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, Urls, find_shards
from rayingest.storage.redact import redact
from rayingest.transforms.images.pixels import EXTENSIONS

SUFFIXES = "suffixes"
"""The option: ends of the names of files to take from a folder."""

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
        """Return the files in groups of about `block_bytes`."""
        suffixes = tuple(suffix.lower() for suffix in options.get(SUFFIXES, self.suffixes))
        return group_files(find_shards(urls, suffixes, storage), block_bytes)

    def files(self, url: str, size: int) -> list[tuple[str, int]]:
        """Return the files of a group."""
        root, files = parse_group(url)
        return [(root + file.path, file.size) for file in files]

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        _, files = parse_group(shard.url)
        return single_block(shard.size, len(files), shard.size)

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return the file's bytes and the columns `path`, `size`, `class` and `label`.

        `path` is below the folder that all files share, `class` the name of the file's folder,
        `label` the number of that class. `__file__` is the file's URL, `__offset__` is 0. The bytes
        are null if there is a `__fault__`.
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
    """Return the bytes of each file, or the reason why it cannot be read.

    DataError if a retry may help: the whole block is then read again.
    """

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
                f"the file changed since it was indexed: it had {file.size} bytes then, "
                f"{len(data)} now",
            )
        return data, None

    if local_path(root or files[0].path) is not None:
        return [one(file) for file in files]
    with ThreadPoolExecutor(_AT_ONCE, "rayingest-read") as pool:
        return list(pool.map(one, files))


class Images(Files):
    """Image files: as `Files`, but for the bytes, which are field `image` and decoded as one."""

    name = "images"
    suffixes = tuple(f".{extension}" for extension in EXTENSIONS)
    contents = "image"
    encoding = "jpg"  # its decoder takes every kind of image


IMAGES = Images()
