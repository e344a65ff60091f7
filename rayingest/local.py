"""The reference: the same stream made in the calling process, step by step, without Ray and without threads.

Owns nothing but a cache of raw blocks. What the cluster delivers is tested against this.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import IngestError
from rayingest.plan.protocols import Batch
from rayingest.stream import Stream


class LocalSource:
    """A batch source that works when asked. Keeps up to `max_bytes` of raw blocks, those used last."""

    def __init__(self, stream: Stream, max_bytes: int) -> None:
        self._stream, self._max_bytes = stream, max_bytes
        self._steps = stream.steps(0, 0)
        self._tables: OrderedDict[int, pa.Table] = OrderedDict()
        self._held = 0
        self._closed = False
        self._counts = {"read_seconds": 0.0, "decode_seconds": 0.0, "blocks_read": 0, "bytes_read": 0, "samples": 0}

    def start(self, epoch: int, step: int) -> None:
        self._steps = self._stream.steps(epoch, step)

    def get(self) -> Batch:
        if self._closed:
            raise IngestError("this loader is closed")
        picks = next(self._steps)
        blocks = np.unique(picks.block)
        begun = time.perf_counter()
        tables = self._fetch(blocks.tolist())
        read = time.perf_counter()
        rows = self._stream.rows(picks, slice(None), blocks)
        pipeline = self._stream.work.pipeline
        columns = pipeline.finish(rows.samples(pipeline, tables))
        self._counts["read_seconds"] += read - begun
        self._counts["decode_seconds"] += time.perf_counter() - read
        self._counts["samples"] += picks.rows
        return Batch(picks.epoch, picks.step, self._stream.complete(picks, columns))

    def ready(self) -> bool:
        return False  # the work is done in `get`

    def stats(self) -> dict[str, Any]:
        return dict(self._counts)

    def close(self) -> None:
        self._closed = True
        self._tables.clear()

    def _fetch(self, blocks: list[int]) -> list[pa.Table]:
        absent = [number for number in blocks if number not in self._tables]
        for number, table in zip(absent, self._stream.work.read(self._stream.spans(absent)), strict=True):
            self._tables[number] = table
            self._held += table.nbytes
            self._counts["blocks_read"] += 1
            self._counts["bytes_read"] += table.nbytes
        tables = [self._tables[number] for number in blocks]
        for number in blocks:
            self._tables.move_to_end(number)
        while self._held > self._max_bytes and len(self._tables) > len(blocks):
            self._held -= self._tables.popitem(last=False)[1].nbytes
        return tables
