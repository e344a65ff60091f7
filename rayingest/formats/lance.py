"""Read Lance: a dataset at one of its versions is a shard, a block is a run of its rows.

Owns which version is meant: a shard is the manifest file of that version (`_versions/N.manifest`,
or 2^64-1-N in twenty digits: https://lance.org/format/table/), so a later commit makes another
shard, not a changed one. pylance reads the rows, without deleted ones; it opens files by itself, so
they must be local. Damage is what pylance detects.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError, IngestError
from rayingest.formats.arrays import row_blocks
from rayingest.formats.extension_types import convert_extensions
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    Columns,
    Format,
    Options,
    Shard,
    check_columns,
    check_samples,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.arrow import int64_column
from rayingest.storage.file_info import FileInfo, local_path
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, Urls, list_shards
from rayingest.storage.redact import redact
from rayingest.util.optional import import_optional

VERSION = "version"
"""The option: which version of each dataset; by default the last."""

_VERSIONS, _SUFFIX = "/_versions/", ".manifest"


class Lance(Format):
    """Folders that Lance wrote."""

    name = "lance"
    suffixes = (_SUFFIX,)
    option_names = (VERSION,)

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """Return each dataset at its last version, or at the given one."""
        there = list_shards(urls, suffixes=self.suffixes, storage=storage)
        versions: dict[str, dict[int, FileInfo]] = {}
        for number, (size, mark) in enumerate(zip(there.sizes, there.marks, strict=True)):
            url = there.url(number)
            if _VERSIONS in url:
                versions.setdefault(url.rpartition(_VERSIONS)[0], {})[_version(url)] = FileInfo(
                    url, size, mark
                )
        if not versions:
            raise ConfigError(
                f"there is no Lance dataset in {redact(str(urls))}: it would have a folder "
                f"{_VERSIONS.strip('/')!r}"
            )
        wanted = options.get(VERSION)
        for folder, found in versions.items():
            if wanted is not None and wanted not in found:
                listed = ", ".join(map(str, sorted(found)))
                raise ConfigError(
                    f"{VERSION}={wanted}: {redact(folder)} does not have this version; it has "
                    f"{listed}"
                )
        return Listing.of([found[wanted or max(found)] for found in versions.values()])

    def files(self, url: str, size: int) -> list[tuple[str, int]]:
        """Return []: a version consists of many files, which other versions share."""
        return []

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        """Return blocks of rows, which are taken to be of one size."""
        with _open(shard) as data:
            folder = _folder(shard)
            files = [
                f"{folder}/data/{file.path}"
                for part in data.get_fragments()
                for file in part.data_files()
            ]
            nbytes = sum(map(os.path.getsize, files))
            rows = data.count_rows()
            return row_blocks(rows, -(-nbytes // max(1, rows)), block_bytes)

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return the columns, or those asked for in that order, and `__offset__`: the row."""
        with _open(shard) as data:
            names = list(check_columns(shard, data.schema.names, columns))
            return [_table(shard, data, block, names) for block in blocks]


FORMAT = Lance()


def _table(shard: Shard, data: Any, block: Block, names: list[str]) -> pa.Table:
    begin, end, samples = block
    if names:
        table = data.to_table(columns=names, offset=begin, limit=end - begin)
        check_samples(shard, block, table.num_rows)
        table.validate(full=True)
        table = convert_extensions(table)
    else:
        table = pa.table({})
    table = table.append_column(OFFSET, int64_column(np.arange(begin, begin + samples)))
    return table.replace_schema_metadata({b"shard": shard.safe_url.encode()})


def _version(url: str) -> int:
    digits = url.rpartition("/")[2].removesuffix(_SUFFIX)
    number = int(digits) if digits.isdecimal() else 0
    return 2**64 - 1 - number if len(digits) == 20 else number


def _folder(shard: Shard) -> str:
    path = local_path(shard.url)
    if path is None:
        raise ConfigError(
            f"{shard.safe_url} is not local: Lance's library opens files by itself; copy the "
            "dataset to a local disk"
        )
    return path.rpartition(_VERSIONS)[0]


@contextmanager
def _open(shard: Shard) -> Iterator[Any]:
    folder = _folder(shard)
    shard.storage.check_size(shard.url, shard.size, shard.mark)
    try:
        yield _open_version(folder, _version(shard.url), shard.size)
    except IngestError:
        raise
    except (pa.ArrowException, ValueError, OSError) as error:
        raise shard.error(f"damaged Lance data, or not Lance: {error}", 0) from error


@lru_cache(maxsize=64)
def _open_version(folder: str, version: int, size: int) -> Any:
    return import_optional("lance", "lance", "reading Lance").dataset(folder, version=version)
