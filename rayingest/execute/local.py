"""Make a stream in the calling process, step by step, without Ray and without threads.

This is the reference: tests compare what the cluster delivers with it. Owns a cache of raw blocks.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
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
    """A batch source that does all work inside `get`.

    Args:
        stream: what to make.
        max_bytes: bytes of raw blocks to keep; the blocks used last stay. None: as many as the
            stream can use again.
        quarantine: receives the samples that the stream's work skips.
        tick: called with every batch.
    """

    def __init__(
        self,
        stream: Stream,
        max_bytes: int | None,
        quarantine: Quarantine | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._stream, self._max_bytes = stream, max_bytes
        self._quarantine, self._tick = quarantine, tick
        self._steps = stream.steps(0, 0)
        self._blocks: OrderedDict[int, OpenBlock] = OrderedDict()  # the least recently used first
        self._cached_bytes = 0  # of `_blocks`
        self._known = Known()
        self._closed = False
        self._counts: dict[str, float] = {
            **dict.fromkeys(("read_seconds", "decode_seconds"), 0.0),
            **dict.fromkeys(
                (
                    *("blocks_read", "bytes_read", "samples_decoded"),
                    *("samples", "steps", "bytes_assembled"),
                ),
                0,
            ),
        }
        self._reads, self._decodes = Histogram(), Histogram()

    @cached_property
    def _budget(self) -> int:
        return self._stream.kept_bytes if self._max_bytes is None else self._max_bytes

    def start(self, epoch: int, step: int) -> None:
        """Make the batches from this position on."""
        self._steps = self._stream.steps(epoch, step)

    def get(self) -> Batch:
        """Return the next batch. Raises the error that takes its place."""
        if self._closed:
            raise IngestError("this loader is closed")
        self._learn_schema()
        step = FilledStep(self._stream.planner, next(self._steps), self._known)
        begun, read_before = time.perf_counter(), self._counts["read_seconds"]
        done = self._samples(step)  # it may change the step's samples
        finish = self._stream.work.pipeline.finish
        columns = finish(done, step.samples.layout, step.samples.first)
        read = self._counts["read_seconds"] - read_before
        decoding = time.perf_counter() - begun - read
        self._counts["decode_seconds"] += decoding
        self._decodes.add(decoding)
        self._counts["samples"] += step.own.rows
        self._counts["steps"] += 1
        self._counts["bytes_assembled"] += array_bytes(columns)
        self._tick()
        if self._quarantine is not None:
            self._quarantine.admit(step.own.rows, self._stream.errors_in(step))
        return Batch(step.own.epoch, step.own.step, self._stream.complete(step.samples, columns))

    def ready(self) -> bool:
        """Return False: the work is done inside `get`, so `get` always takes time."""
        return False

    def stats(self) -> dict[str, Any]:
        """Return the figures of docs/observing.md that a source has."""
        counters = self._stream.work.counters
        return {
            **self._counts,
            # The loop waits for this work and for nothing else.
            "stall_read_seconds": self._counts["read_seconds"],
            "stall_decode_seconds": self._counts["decode_seconds"],
            "read_durations": self._reads.counts.copy(),
            "decode_durations": self._decodes.counts.copy(),
            "cluster_cpus": os.cpu_count() or 1,
            "storage_retries": counters.retries,
            "cache_hits": counters.cache_hits,
            "cache_misses": counters.cache_misses,
            **(NOTHING_SKIPPED if self._quarantine is None else self._quarantine.counts),
        }

    def close(self) -> None:
        """Drop all blocks and close what reading has left open."""
        self._closed = True
        self._blocks.clear()
        self._stream.work.close()

    def _learn_schema(self) -> None:
        work = self._stream.work
        if work.pipeline.schema is None and self._stream.needs_schema:
            schema = self._stream.known_schema
            if schema is None:
                schema = work.learn_schema(self._stream.heads())
                self._stream.on_schema_learned(schema)
            self._stream = replace(self._stream, work=work.with_schema(schema))

    def _samples(self, step: FilledStep) -> Samples:
        """Return the step's samples in row order, with replacements for those that are skipped."""
        rows = np.arange(len(step.own.block))
        done: list[tuple[np.ndarray, Samples]] = []
        while len(rows):
            numbers, blocks = self._readable(step, rows)
            samples, bad = self._stream.block_rows(step.samples, rows, numbers).samples(
                self._stream.work, blocks
            )
            self._counts["samples_decoded"] += len(rows)
            done.append((np.delete(rows, list(bad)), samples))
            for place, error in bad.items():
                self._replace(step, int(rows[place]), error)
            rows = rows[list(bad)]  # a replacement may be bad, too
        if len(done) == 1:
            return done[0][1]
        by_row = {
            row: sample
            for some, samples in done
            for row, sample in zip(some.tolist(), samples, strict=True)
        }
        return Samples(by_row[row] for row in sorted(by_row))

    def _readable(self, step: FilledStep, rows: np.ndarray) -> tuple[np.ndarray, list[OpenBlock]]:
        """Return the numbers of these rows' blocks, and the blocks.

        If a block cannot be read, replacements take the places of its samples, which changes the
        blocks: so this tries again.
        """
        while True:
            numbers = np.unique(step.samples.block[rows])
            try:
                return numbers, self._fetch(numbers.tolist())
            except DataError as error:
                if error.transient or not self._stream.work.skip:
                    raise
            for number in numbers.tolist():
                try:
                    self._fetch([number])
                except DataError as error:
                    if error.transient:
                        raise
                    for row in rows[step.samples.block[rows] == number].tolist():
                        self._replace(step, row, error, unreadable=True)

    def _replace(
        self, step: FilledStep, row: int, error: DataError, unreadable: bool = False
    ) -> None:
        found = step.fill(row, error, unreadable)
        if isinstance(found, DataError):  # no replacement is left
            raise self._stream.locate(found, step.own, row)

    def _fetch(self, numbers: list[int]) -> list[OpenBlock]:
        begun = time.perf_counter()
        absent = [number for number in numbers if number not in self._blocks]
        tables = self._stream.work.read(self._stream.spans(absent))
        self._stream.on_blocks_read(absent, self._stream.work.notes(tables))
        for number, table in zip(absent, tables, strict=True):
            self._blocks[number] = self._stream.work.open(table)
            self._cached_bytes += table.nbytes
            self._counts["blocks_read"] += 1
            self._counts["bytes_read"] += table.nbytes
        took = time.perf_counter() - begun
        self._counts["read_seconds"] += took
        if absent:
            self._reads.add(took)
        blocks = [self._blocks[number] for number in numbers]
        for number in numbers:
            self._blocks.move_to_end(number)
        # The blocks of this call stay, even beyond `max_bytes`.
        while self._cached_bytes > self._budget and len(self._blocks) > len(numbers):
            self._cached_bytes -= self._blocks.popitem(last=False)[1].table.nbytes
        return blocks
