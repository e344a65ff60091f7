"""The reader actor: fetches blocks from storage and puts them into the object store. I/O-bound, so it has threads.

Owns no policy; knows streams by key.
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
from rayingest.execute.cluster.node_info import Site, Usage, here, own_usage
from rayingest.execute.work import Spans, Work
from rayingest.storage.files import Counters

THREADS = 32
"""Reads at a time: at 100 ms each, and 2 MiB a block, some 600 MB a second."""
BLOCK_OVERHEAD = 2048
"""Bytes that a raw block takes in the store besides its buffers."""


@dataclass(frozen=True)
class Fetched:
    """What a read took: bytes of each block in the store, seconds, what storage counted meanwhile, and what there is to
    say of each block (`Work.notes`). Fewer blocks than were asked for where there are no more yet; `left` are the bytes
    of those that come next, for which there was no room.

    Or the `error` for which there are no blocks: told so, and not raised, as Ray logs each error of a block not asked
    for, which none of them is.
    """

    nbytes: tuple[int, ...]
    seconds: float
    counters: Counters
    notes: tuple[str, ...] = ()
    left: tuple[int, ...] = ()
    error: IngestError | None = None


class Reader:
    """`read` gives 1 + n objects for n blocks: `Fetched`, then the blocks."""

    def __init__(self) -> None:
        # Ray's own way with tables takes slices into account, which these are not, and imports pandas for it.
        ray.util.register_serializer(pa.Table, serializer=_columns, deserializer=_table)
        self._work: dict[str, Work] = {}
        self._told: dict[str, Counters] = {}
        self._lock = threading.Lock()

    def site(self) -> Site:
        """Where this runs; an answer also tells that it runs."""
        return here()

    def usage(self) -> Usage:
        """What this process takes."""
        return own_usage()

    def register(self, key: str, work: Work) -> None:
        """From now on, `key` means this stream."""
        self._work[key] = work

    def forget(self, key: str) -> None:
        """The stream has ended."""
        work = self._work.pop(key, None)
        self._told.pop(key, None)
        if work is not None:
            work.close()

    def read(self, key: str, spans: Spans, room: int) -> list[Any]:
        """[Fetched, *blocks], None for each block that there is not, nothing but None for a stream forgotten. The first
        that would go beyond `room` bytes and all behind it are left.
        """
        begun = time.perf_counter()
        nothing = [None] * sum(len(span.blocks) for span in spans)
        work = self._work.get(key)
        if work is None:  # nobody awaits the answer any more, and Ray would log an error
            return [None, *nothing]
        failed: IngestError | None = None
        tables: list[pa.Table] = []
        try:
            tables = work.read(spans)
        except IngestError as error:
            failed = error
        with self._lock:
            told, self._told[key] = self._told.get(key, Counters()), work.counters
            counters = self._told[key] - told
        nbytes = tuple(table.nbytes + BLOCK_OVERHEAD for table in tables)
        fit = bisect_right([*accumulate(nbytes)], room)
        notes = work.notes(tables[:fit])
        fetched = Fetched(
            nbytes[:fit], time.perf_counter() - begun, counters, notes, nbytes[fit:], failed
        )
        return [fetched, *tables[:fit], *nothing[fit:]]


def _columns(table: pa.Table) -> tuple[list[pa.ChunkedArray], pa.Schema]:
    return table.columns, table.schema


def _table(parts: tuple[list[pa.ChunkedArray], pa.Schema]) -> pa.Table:
    return pa.Table.from_arrays(parts[0], schema=parts[1])
