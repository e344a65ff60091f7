"""The reader actor: fetches blocks from storage and puts them into the object store. I/O-bound, so it has threads.

Owns no policy; knows streams by key.
"""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import ray

from rayingest.stream import Spans, Work

THREADS = 8
BLOCK_OVERHEAD = 2048
"""Bytes that a raw block takes in the store besides its buffers."""


class Reader:
    """`read` gives 1 + n objects for n blocks: what it took, then the blocks."""

    def __init__(self) -> None:
        self._work: dict[str, Work] = {}

    def node(self) -> str:
        """The node this runs on; an answer also tells that it runs."""
        return str(ray.get_runtime_context().get_node_id())

    def register(self, key: str, work: Work) -> None:
        """From now on, `key` means this stream."""
        self._work[key] = work

    def forget(self, key: str) -> None:
        """The stream has ended."""
        self._work.pop(key, None)

    def read(self, key: str, spans: Spans) -> list[Any]:
        """((bytes of each block, seconds), *blocks)."""
        begun = time.perf_counter()
        tables: list[pa.Table] = self._work[key].read(spans)
        nbytes = tuple(table.nbytes + BLOCK_OVERHEAD for table in tables)
        return [(nbytes, time.perf_counter() - begun), *tables]
