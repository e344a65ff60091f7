"""Define the stream of an unbounded source: the workers' part, and how it is joined to its plan.

Owns what differs where blocks come into being as they are read: the position of the next block and
the schema of the samples travel with the position, in the offsets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rayingest.execute.stream import Stream
from rayingest.execute.unbounded.partitions import Partitions, mark_after
from rayingest.execute.work import BlockRows, Head, SourceWork, Span, Spans
from rayingest.plan.order.offsets import Offsets
from rayingest.plan.order.step_samples import StepSamples
from rayingest.transforms.schema import (
    FieldType,
    Schema,
    schema_from_json,
    schema_to_json,
    with_padding,
)

if TYPE_CHECKING:
    # A type alone: a loader without workers does not load dispatch.
    from rayingest.plan.dispatch.block_cache import Sizes

_LEARN_SAMPLES = 8
_ROW_BYTES = 1024
"""The expected size of a record, until the first have been read."""


@dataclass(frozen=True)
class UnboundedWork(SourceWork):
    """A worker's part: it reads blocks from the partitions."""

    partitions: Partitions = field(kw_only=True)

    def read(self, spans: Spans) -> list[pa.Table]:
        return self.partitions.read(spans)

    def notes(self, tables: Sequence[pa.Table]) -> tuple[str, ...]:
        return tuple(map(mark_after, tables))

    def learn_schema(self, heads: Sequence[Head]) -> dict[str, FieldType]:
        # A reader of its own: the one for the stream must not move.
        once = replace(self, partitions=Partitions(self.partitions.source))
        try:
            return super(UnboundedWork, once).learn_schema(heads)
        finally:
            once.close()

    def close(self) -> None:
        self.partitions.close()


@dataclass(frozen=True)
class UnboundedStream(Stream):
    """One rank's stream of batches of records.

    `offsets`: where the source stands before each step. `share`: the rows of a step that a block
    holds.
    """

    work: UnboundedWork
    offsets: Offsets
    share: tuple[int, int]

    @property
    def name(self) -> str:
        return hashlib.blake2b(
            repr(self.work.partitions.source.names).encode(), digest_size=8
        ).hexdigest()

    @property
    def row_bytes(self) -> float:
        return _ROW_BYTES

    @property
    def window_steps(self) -> int:
        return 0

    @property
    def kept_bytes(self) -> int:
        return 1

    @property
    def in_order(self) -> bool:
        return True

    def sizes(self, row_overhead: int, block_overhead: int) -> Sizes:
        begin, end = self.share
        return _EqualSizes((end - begin) * (_ROW_BYTES + row_overhead) + block_overhead)

    def spans(self, blocks: Iterable[int]) -> Spans:
        return self._spans(blocks, self.share)

    def heads(self) -> list[Head]:
        """Return the walk's first records, the same ones on every rank."""
        count, first = min(_LEARN_SAMPLES, self.planner.order.batch), self.offsets.first
        row = np.arange(count)
        ordinals = first * self.planner.order.batch + row
        spans = self._spans([self.offsets.block(first)], (0, count))
        return [(spans, BlockRows(0, np.zeros_like(row), row, ordinals))]

    def location(self, block: int) -> tuple[str, None]:
        return self.work.partitions.source.label, None

    @property
    def can_learn(self) -> bool:
        return self.offsets.first_is_read

    @property
    def known_schema(self) -> Schema | None:
        if self.offsets.schema is None:
            return None
        return with_padding(schema_from_json(self.offsets.schema), self.work.pipeline.padding)

    def on_schema_learned(self, schema: Schema) -> None:
        self.offsets.schema = schema_to_json(schema)

    def on_blocks_read(self, blocks: Sequence[int], notes: Sequence[str]) -> None:
        for block, note in zip(blocks, notes, strict=False):
            self.offsets.note(block, note)

    def steps(self, epoch: int, step: int, epochs: int | None = None) -> Iterator[StepSamples]:
        return super().steps(epoch, step, epochs) if self.offsets.begin(step) else iter(())

    def _spans(self, blocks: Iterable[int], share: tuple[int, int]) -> Spans:
        """Return where these blocks lie, with one span for blocks that follow each other."""
        rows = (*share, share[1] - share[0])
        spans: Spans = []
        for block in blocks:
            step, mark = self.offsets.before(block)
            if spans and step == spans[-1].size + len(spans[-1].blocks):
                spans[-1].blocks.append(rows)
            else:
                spans.append(Span(self.work.partitions.source.label, step, mark, [rows]))
        return spans


@dataclass(frozen=True)
class _EqualSizes:
    """The sizes of blocks that all have one size."""

    nbytes: int

    def __getitem__(self, number: int) -> int:
        return self.nbytes
