"""The reader actor: reads blocks from storage into the object store.

It waits for storage most of the time, so it has threads and needs no CPU of its own. Owns no
policy; knows streams by key.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
import ray

from rayingest.errors import IngestError
from rayingest.execute.cluster.node_info import (
    NodeInfo,
    Usage,
    await_rays_end,
    own_node_info,
    own_usage,
)
from rayingest.execute.work import Spans, Work
from rayingest.storage.files import Counters

THREADS = 32
"""Concurrent reads of a reader: with 100 ms and 2 MiB per block, about 600 MB/s."""
BLOCK_OVERHEAD = 2048
"""Bytes that a raw block takes in the store besides its buffers."""


@dataclass(frozen=True)
class ReadResult:
    """The result of a read, without the blocks.

    Attributes:
        nbytes: bytes of each block in the store. Fewer blocks than requested if no more exist yet.
        seconds: how long the read took.
        counters: what storage counted meanwhile.
        notes: `Work.notes` of the blocks.
        left: bytes of the next blocks, which exceeded the read's room.
        error: why there are no blocks. A value and not raised: Ray would log an error for each
            block that is never fetched, which is all of them.
    """

    nbytes: tuple[int, ...]
    seconds: float
    counters: Counters
    notes: tuple[str, ...] = ()
    left: tuple[int, ...] = ()
    error: IngestError | None = None


class Reader:
    """Its `read` returns 1 + n objects for n blocks: a `ReadResult`, then the blocks."""

    def __init__(self) -> None:
        await_rays_end()
        # Ray's own serializer handles slices, which these tables are not, and imports pandas for
        # it.
        ray.util.register_serializer(pa.Table, serializer=_columns, deserializer=_table)
        self._work: dict[str, Work] = {}
        self._reported: dict[str, Counters] = {}
        self._lock = threading.Lock()

    def node_info(self) -> NodeInfo:
        """Return where this actor runs. The result also shows that it has started."""
        return own_node_info()

    def usage(self) -> Usage:
        """Return what this process uses."""
        return own_usage()

    def register(self, key: str, work: Work) -> None:
        """Accept reads of the stream `key` from now on."""
        self._work[key] = work

    def forget(self, key: str) -> None:
        """End the stream `key`."""
        work = self._work.pop(key, None)
        self._reported.pop(key, None)
        if work is not None:
            work.close()

    def read(self, key: str, spans: Spans, room: int) -> list[Any]:
        """Read blocks up to `room` bytes together; the first block that exceeds it ends the read.

        Returns [ReadResult, *blocks] with None for each missing block; None throughout if the
        stream has ended.
        """
        begun = time.perf_counter()
        nothing = [None] * sum(len(span.blocks) for span in spans)
        work = self._work.get(key)
        if (
            work is None
        ):  # the stream has ended: no caller reads the result, and Ray would log an error
            return [None, *nothing]
        failed: IngestError | None = None
        tables: list[pa.Table] = []
        try:
            tables = work.read(spans)
        except IngestError as error:
            failed = error
        with self._lock:
            before, self._reported[key] = self._reported.get(key, Counters()), work.counters
            counters = self._reported[key] - before
        nbytes = tuple(table.nbytes + BLOCK_OVERHEAD for table in tables)
        fit = bisect_right([*accumulate(nbytes)], room)
        notes = work.notes(tables[:fit])
        result = ReadResult(
            nbytes[:fit], time.perf_counter() - begun, counters, notes, nbytes[fit:], failed
        )
        return [result, *tables[:fit], *nothing[fit:]]


def _columns(table: pa.Table) -> tuple[list[pa.ChunkedArray], pa.Schema]:
    return table.columns, table.schema


def _table(parts: tuple[list[pa.ChunkedArray], pa.Schema]) -> pa.Table:
    return pa.Table.from_arrays(parts[0], schema=parts[1])
