"""Read LMDB: the entries of a database are samples, a key and a value each.

Owns the numbering of entries, in the order of their keys. A block is a range of numbers; its first
key is looked up in a table that each process makes once per database, in one pass over the keys.
The library maps files into memory, so they must be local, and trusts them: a damaged file may end
the process that reads it. See http://www.lmdb.tech/doc.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError
from rayingest.formats.columns import bytes_column
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    BlockBuilder,
    Columns,
    Format,
    Shard,
    check_columns,
    check_samples,
    raw_table,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.file_info import local_path
from rayingest.storage.files import Storage
from rayingest.util.optional import import_optional

SKIP = "skip"
"""The option: keys of entries that are not samples."""

_EVERY = 256
_opening = threading.Lock()  # a process may have a database open only once


class Lmdb(Format):
    """LMDB databases: their one file, or `data.mdb` in their folder."""

    name = "lmdb"
    suffixes = ("/data.mdb", ".lmdb")
    option_names = (SKIP,)

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        sizes = []
        with _entries(shard) as cursor:
            skip = _skip_keys(shard)
            for key, value in cursor:
                if bytes(key) not in skip:
                    sizes.append(len(key) + len(value))
        nbytes = np.array(sizes, np.int64)
        ends = np.cumsum(nbytes)
        builder = BlockBuilder(block_bytes)
        builder.extend(ends - nbytes, ends, nbytes)  # as if they were contiguous
        blocks = builder.finish()
        last = np.cumsum(blocks.samples)
        return ShardBlocks(last - blocks.samples, last, blocks.samples, blocks.nbytes)

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return `key` and `value` (binary), or those asked for, and `__offset__`: the number."""
        names = check_columns(shard, ("key", "value"), columns)
        starts = _starts(shard.storage, shard.url, shard.size, _skip_keys(shard))
        tables = []
        for block in blocks:
            begin, end, _ = block
            place = min(begin // _EVERY, len(starts) - 1)
            with _entries(shard, starts[place]) as cursor:
                skip = _skip_keys(shard)
                samples = (
                    (bytes(key), bytes(value)) for key, value in cursor if bytes(key) not in skip
                )
                found = list(islice(samples, begin - place * _EVERY, end - place * _EVERY))
            check_samples(shard, block, len(found))
            both = {name: [entry[i] for entry in found] for i, name in enumerate(("key", "value"))}
            offsets = pa.array(np.arange(begin, begin + len(found)))
            tables.append(
                raw_table(
                    shard, {**{name: bytes_column(both[name]) for name in names}, OFFSET: offsets}
                )
            )
        return tables


FORMAT = Lmdb()


def _skip_keys(shard: Shard) -> frozenset[bytes]:
    return frozenset(key.encode() for key in shard.options.get(SKIP, ()))


@lru_cache(maxsize=64)
def _starts(storage: Storage, url: str, size: int, skip: frozenset[bytes]) -> list[bytes]:
    """Return the key of every 256th sample."""
    with _entries(Shard(storage, url, size), values=False) as cursor:
        return list(
            islice((bytes(key) for key in cursor if bytes(key) not in skip), 0, None, _EVERY)
        ) or [b""]


@contextmanager
def _entries(shard: Shard, first: bytes = b"", *, values: bool = True) -> Iterator[Iterator[Any]]:
    """Open the database and yield its entries from this key on.

    Keys and values are views, valid until the next one.
    """
    lmdb = import_optional("lmdb", "lmdb", "reading LMDB")
    path = local_path(shard.url)
    if path is None:
        raise ConfigError(
            f"{shard.safe_url} is not local: LMDB maps files into memory; copy the database to a "
            "local disk"
        )
    shard.storage.check_size(shard.url, shard.size, shard.mark)
    with _opening:
        try:
            options = {
                "subdir": False,
                "readonly": True,
                "lock": False,
                "readahead": False,
                "create": False,
            }
            with lmdb.open(path, **options) as environment:
                pages, length = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
                if pages * length > shard.size:
                    raise shard.error(
                        f"the database is cut off: it has {pages} pages of {length} bytes",
                        shard.size,
                    )
                with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
                    cursor.set_range(first)
                    yield cursor.iternext(keys=True, values=values)
        except lmdb.Error as error:
            raise shard.error(f"damaged LMDB database, or not LMDB: {error}", 0) from error
