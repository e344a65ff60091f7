"""The reference: the same stream made in the calling process, step by step, without Ray and without threads.

Owns nothing but a cache of raw blocks. What the cluster delivers is tested against this.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rayingest.errors import DataError, IngestError
from rayingest.execute.quarantine import NOTHING_SKIPPED, Quarantine
from rayingest.execute.stream import Stream
from rayingest.plan.figures.histogram import Histogram
from rayingest.plan.order.replacements import FilledStep, Known
from rayingest.plan.protocols import Batch, array_bytes
from rayingest.transforms.open_block import OpenBlock
from rayingest.transforms.run_stages import Samples


class LocalSource:
    """A batch source that works when asked. Keeps up to `max_bytes` of raw blocks, those used last.

    `quarantine` is where samples go that the stream's work skips. `tick` is called with every batch.
    """

    def __init__(
        self,
        stream: Stream,
        max_bytes: int,
        quarantine: Quarantine | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._stream, self._max_bytes, self._quarantine, self._tick = (
            stream,
            max_bytes,
            quarantine,
            tick,
        )
        self._steps = stream.steps(0, 0)
        self._blocks: OrderedDict[int, OpenBlock] = OrderedDict()
        self._held = 0
        self._known = Known()
        self._closed = False
        self._counts: dict[str, float] = {
            **dict.fromkeys(("read_seconds", "decode_seconds"), 0.0),
            **dict.fromkeys(
                ("blocks_read", "bytes_read", "samples", "steps", "bytes_assembled"), 0
            ),
        }
        self._reads, self._decodes = Histogram(), Histogram()

    def start(self, epoch: int, step: int) -> None:
        self._steps = self._stream.steps(epoch, step)

    def get(self) -> Batch:
        if self._closed:
            raise IngestError("this loader is closed")
        pipeline = self._stream.work.pipeline
        if pipeline.schema is None and pipeline.collate is None:
            work = self._stream.known() or self._stream.work.learnt(self._stream.heads())
            self._stream.learnt(work)
            self._stream = replace(self._stream, work=work)
        step = FilledStep(self._stream.planner, next(self._steps), self._known)
        begun, read_before = time.perf_counter(), self._counts["read_seconds"]
        columns = self._stream.work.pipeline.finish(self._samples(step), step.samples.layout)
        read = self._counts["read_seconds"] - read_before
        decoding = time.perf_counter() - begun - read
        self._counts["decode_seconds"] += decoding
        self._decodes.add(decoding)
        self._counts["samples"] += step.own.rows
        self._counts["steps"] += 1
        self._counts["bytes_assembled"] += array_bytes(columns)
        self._tick()
        if self._quarantine is not None:
            self._quarantine.admit(step.own.rows, self._stream.bad(step))
        return Batch(step.own.epoch, step.own.step, self._stream.complete(step.samples, columns))

    def ready(self) -> bool:
        return False  # the work is done in `get`

    def stats(self) -> dict[str, Any]:
        counts = self._counts
        # The loop waits for nothing else than this work.
        stalls = {
            "stall_read_seconds": counts["read_seconds"],
            "stall_decode_seconds": counts["decode_seconds"],
        }
        durations = {
            "read_durations": self._reads.counts.copy(),
            "decode_durations": self._decodes.counts.copy(),
        }
        counters = self._stream.work.counters
        stored = {
            "storage_retries": counters.retries,
            "cache_hits": counters.cache_hits,
            "cache_misses": counters.cache_misses,
        }
        return {
            **counts,
            **stalls,
            **durations,
            **stored,
            **(NOTHING_SKIPPED if self._quarantine is None else self._quarantine.counts),
        }

    def close(self) -> None:
        self._closed = True
        self._blocks.clear()
        self._stream.work.close()

    def _samples(self, step: FilledStep) -> Samples:
        """The step's samples in row order, with stand-ins for those that are to be skipped."""
        rows = np.arange(len(step.own.block))
        done: list[tuple[np.ndarray, Samples]] = []
        while len(rows):
            numbers, blocks = self._readable(step, rows)
            samples, bad = self._stream.rows(step.samples, rows, numbers).samples(
                self._stream.work, blocks
            )
            done.append((np.delete(rows, list(bad)), samples))
            for place, error in bad.items():
                self._fill(step, int(rows[place]), error)
            rows = rows[list(bad)]
        if len(done) == 1:
            return done[0][1]
        by_row = {
            row: sample
            for some, samples in done
            for row, sample in zip(some.tolist(), samples, strict=True)
        }
        return Samples(by_row[row] for row in sorted(by_row))

    def _readable(self, step: FilledStep, rows: np.ndarray) -> tuple[np.ndarray, list[OpenBlock]]:
        """The numbers of these rows' blocks, and the blocks, after stand-ins took the places of unreadable ones."""
        while True:
            blocks = np.unique(step.samples.block[rows])
            try:
                return blocks, self._fetch(blocks.tolist())
            except DataError as error:
                if error.transient or not self._stream.work.skip:
                    raise
            for number in blocks.tolist():
                try:
                    self._fetch([number])
                except DataError as error:
                    if error.transient:
                        raise
                    for row in rows[step.samples.block[rows] == number].tolist():
                        self._fill(step, row, error, unreadable=True)

    def _fill(self, step: FilledStep, row: int, error: DataError, unreadable: bool = False) -> None:
        found = step.fill(row, error, unreadable)
        if isinstance(found, DataError):
            raise self._stream.named(found, step.own, row)

    def _fetch(self, blocks: list[int]) -> list[OpenBlock]:
        begun = time.perf_counter()
        absent = [number for number in blocks if number not in self._blocks]
        read = self._stream.work.read(self._stream.spans(absent))
        self._stream.noted(absent, self._stream.work.notes(read))
        for number, table in zip(absent, read, strict=True):
            self._blocks[number] = self._stream.work.open(table)
            self._held += table.nbytes
            self._counts["blocks_read"] += 1
            self._counts["bytes_read"] += table.nbytes
        took = time.perf_counter() - begun
        self._counts["read_seconds"] += took
        if absent:
            self._reads.add(took)
        opened = [self._blocks[number] for number in blocks]
        for number in blocks:
            self._blocks.move_to_end(number)
        while self._held > self._max_bytes and len(self._blocks) > len(blocks):
            self._held -= self._blocks.popitem(last=False)[1].table.nbytes
        return opened
