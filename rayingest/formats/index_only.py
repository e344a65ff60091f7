"""Describe datasets that are functions of an index: no files, no bytes, one block of all indices.

The raw table has a row per index and takes no memory: `__number__` is a column of nulls, which
stand for the numbers of the rows. A transform makes the sample of an index.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rayingest.formats.protocol import NUMBER, Block, Columns, Format, Options, Shard
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, Urls


class _IndexOnly(Format):
    name = "index_only"
    suffixes = ()
    option_names = ("samples",)
    opens_shards = lists_storage = False

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """Return one shard, named as the dataset."""
        return Listing("", (str(urls),), (int(options["samples"]),), ("",))

    def files(self, url: str, size: int) -> list[tuple[str, int]]:
        """Return []."""
        return []

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        samples = np.array([shard.size] if shard.size else [], np.int64)
        return ShardBlocks(samples * 0, samples, samples, samples * 0 + 1)

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        metadata = {b"shard": shard.url.encode()}
        return [
            pa.table({NUMBER: pa.nulls(samples)}, metadata=metadata) for _, _, samples in blocks
        ]


FORMAT = _IndexOnly()
