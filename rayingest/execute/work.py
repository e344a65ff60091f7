"""Define what a worker does for a stream: read blocks, learn the schema, decode rows of blocks.

Owns the joint of formats and transforms, as far as a worker needs it. A `Work` is picklable and
free of the manifest and the plan. `mixed_work` combines the work on several sources.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa

from rayingest.errors import DataError, IngestError
from rayingest.formats.hive import with_folder_columns
from rayingest.formats.protocol import Block, Format, Shard
from rayingest.plan.order.step_samples import Layout
from rayingest.plan.protocols import Columns
from rayingest.storage.file_info import local_path
from rayingest.storage.files import Counters, Storage
from rayingest.transforms.open_block import OpenBlock
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.raw_block import RawBlock
from rayingest.transforms.run_stages import Samples
from rayingest.transforms.schema import FieldType, Schema
from rayingest.transforms.stages import Stage
from rayingest.util.names import show_names

_SHARDS_AT_ONCE = 16


class Span(NamedTuple):
    """Blocks of one shard to read; `size` and `mark` are the shard's at the time of indexing.

    `source` is the number of the shard's source in a mixture. `rows`: of the span's only block, the
    rows to keep, ascending; None: all.
    """

    url: str
    size: int
    mark: str
    blocks: list[Block]
    source: int = 0
    rows: np.ndarray | None = None


Spans = list[Span]
"""One span for each shard to read from."""


class Work(Protocol):
    """A worker's part of a stream; picklable, free of the manifest."""

    @property
    def pipeline(self) -> Pipeline:
        """How samples are decoded and collated."""

    @property
    def skip(self) -> bool:
        """Whether bad samples are left out and reported, so that others can replace them."""

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages of all sources."""

    @property
    def code_mark(self) -> str:
        """8 hex digits of the stages' code."""

    @property
    def spec_bytes(self) -> int:
        """Bytes of a decoded sample, of the fields whose size is known; 0 if none is."""

    @property
    def counters(self) -> Counters:
        """What storage counted in this process."""

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """Options whose values must not be shown."""

    def with_options(self, skip: bool, image_backend: str) -> Self:
        """Return the same work with these options."""

    def learn_schema(self, heads: Sequence[Head]) -> dict[str, FieldType]:
        """Return the schema of the samples: that of the first head with a good sample.

        Raises ConfigError if the description does not fit the data, DataError if no head has a good
        sample.
        """

    def with_schema(self, schema: Schema) -> Self:
        """Return the same work with this schema of its samples."""

    def read(self, spans: Spans) -> list[pa.Table]:
        """Read one raw table per block. Raises DataError or ConfigError."""

    def open(self, table: pa.Table) -> OpenBlock:
        """Open a raw block, so that many tasks can take samples from it."""

    def run(
        self, blocks: Sequence[OpenBlock], rows: BlockRows, bad: dict[int, DataError] | None
    ) -> Samples:
        """Decode the rows' samples, as `Pipeline.run` does."""

    def notes(self, tables: Sequence[pa.Table]) -> tuple[str, ...]:
        """Return a note for each table of `read` that its stream needs to know; () for none."""

    def close(self) -> None:
        """Close what reading has left open."""


@dataclass(frozen=True)
class SourceWork:
    """The work on one source. `options` are the format's; `strict` is as for indexing.

    `folder_types`: the columns that the folders of the shards give.
    """

    format: Format
    storage: Storage
    pipeline: Pipeline
    strict: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    skip: bool = False
    folder_types: Mapping[str, pa.DataType] = field(default_factory=dict)

    @property
    def stages(self) -> Sequence[Stage]:
        return self.pipeline.stages

    @property
    def code_mark(self) -> str:
        return self.pipeline.code_mark

    @property
    def spec_bytes(self) -> int:
        return self.pipeline.spec_bytes

    @property
    def counters(self) -> Counters:
        return self.storage.counters

    @property
    def storage_options(self) -> Mapping[str, Any]:
        return self.storage.storage_options

    def with_options(self, skip: bool, image_backend: str) -> Self:
        pipeline = replace(self.pipeline, image_backend=image_backend)
        return replace(self, skip=skip, pipeline=pipeline)

    def learn_schema(self, heads: Sequence[Head]) -> dict[str, FieldType]:
        first: DataError | None = None
        for spans, rows in heads:
            try:
                return self.pipeline.learn_schema(
                    self.read(spans), rows.table_of, rows.row_of, rows.ordinals
                )
            except DataError as error:
                if error.transient:
                    raise
                first = first or self._name_absent_field(error, spans)
        if first is None:
            raise DataError("there are no samples")
        if self.skip:
            count = sum(len(rows.ordinals) for _, rows in heads)
            reason = (
                f"all {count} samples in the first {len(heads)} blocks are bad, and a good sample "
                f"is needed to learn the fields; the first is bad because: {first.reason}"
            )
            raise first.with_reason(reason) from first
        raise first

    def with_schema(self, schema: Schema) -> Self:
        return replace(self, pipeline=replace(self.pipeline, schema=schema))

    def read(self, spans: Spans) -> list[pa.Table]:
        return read_shards(spans, self.read_shard)

    def read_shard(self, span: Span) -> list[pa.Table]:
        """Read the blocks of one span."""
        how = self.strict, self.options, span.mark, self.folder_types
        shard = Shard(self.storage, span.url, span.size, *how)
        columns = self.pipeline.columns
        tables = with_folder_columns(shard, self.format.read(shard, span.blocks, columns), columns)
        return tables if span.rows is None else [take_rows(table, span.rows) for table in tables]

    def open(self, table: pa.Table) -> OpenBlock:
        return self.pipeline.open(table)

    def run(
        self, blocks: Sequence[OpenBlock], rows: BlockRows, bad: dict[int, DataError] | None
    ) -> Samples:
        passes = rows.pass_number if rows.passes is None else rows.passes
        return self.pipeline.run(blocks, rows.table_of, rows.row_of, rows.ordinals, passes, bad)

    def notes(self, tables: Sequence[pa.Table]) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        pass

    def _name_absent_field(self, error: DataError, spans: Spans) -> DataError:
        """Add to the error a field that no sample of the block has: this may be the whole cause."""
        if self.pipeline.columns is None:
            return error
        everything = replace(self, pipeline=replace(self.pipeline, stages=()))
        try:
            raw = RawBlock(everything.read(spans)[0])
        except IngestError:
            return error
        absent = [name for name in self.pipeline.columns if name not in raw.names]
        if raw.has_documents or not absent:
            return error
        fields = show_names(raw.names, absent[0])
        return error.with_reason(
            f"{error.reason}; no sample in its block has a field {absent[0]!r}; there are {fields}"
        )


def take_rows(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return a copy of these rows of a table."""
    columns = [_take(column, rows) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _take(column: pa.ChunkedArray, rows: np.ndarray) -> pa.ChunkedArray:
    try:
        return column.take(pa.array(rows))
    except pa.ArrowNotImplementedError:  # views and run-end encoded arrays
        each = [chunk for row in rows.tolist() for chunk in column.slice(row, 1).chunks]
        return pa.chunked_array([pa.concat_arrays(each)] if each else [], column.type)


def read_shards(spans: Spans, read: Callable[[Span], list[pa.Table]]) -> list[pa.Table]:
    """Return the tables of all spans, in order; call `read` for remote shards in parallel."""
    if len(spans) < 2 or all(local_path(span.url) is not None for span in spans):
        return [table for span in spans for table in read(span)]
    # Threads suffice: each one waits for the storage.
    with ThreadPoolExecutor(min(len(spans), _SHARDS_AT_ONCE), "rayingest-shard") as pool:
        return [table for tables in pool.map(read, spans) for table in tables]


@dataclass(frozen=True)
class BlockRows:
    """Samples to decode together: sample i is row `row_of[i]` of block `table_of[i]`.

    Attributes:
        pass_number: keys the samples' random numbers.
        table_of: int64[n], positions in a list of blocks.
        row_of: int64[n].
        ordinals: int64[n], the samples' numbers in the manifest.
        lengths: int64[n], how long each sample must be; None if rows are not packed.
        layout: how the samples are packed, if these are all samples of their step.
        passes: int64[n], replaces `pass_number` where the samples' sources differ in their pass.
    """

    pass_number: int
    table_of: np.ndarray
    row_of: np.ndarray
    ordinals: np.ndarray
    lengths: np.ndarray | None = None
    layout: Layout | None = None
    passes: np.ndarray | None = None

    def samples(
        self, work: Work, blocks: Sequence[OpenBlock]
    ) -> tuple[Samples, dict[int, DataError]]:
        """Decode and map the samples, without collating them.

        Returns the good samples, and the errors of bad ones by place; with `work.skip` off, a bad
        sample is raised.
        """
        bad: dict[int, DataError] = {}
        samples = work.run(blocks, self, bad if work.skip else None)
        misfit = self._find_misfit(work, samples)
        if misfit is not None:
            place, reason = misfit
            raise DataError(reason, **self.where(blocks, place))
        return samples, bad

    def where(self, blocks: Sequence[OpenBlock], place: int) -> dict[str, Any]:
        """Return shard, offset, key and number of the sample at this place, for an error."""
        where = blocks[self.table_of[place]].rows.where(int(self.row_of[place]))
        return {**where, "sample": int(self.ordinals[place])}

    @property
    def first(self) -> tuple[int, int]:
        """Pass and ordinal of the first sample, as in `StepSamples`."""
        pass_number = self.pass_number if self.passes is None else int(self.passes[0])
        return pass_number, int(self.ordinals[0])

    def select(self, places: np.ndarray) -> BlockRows:
        """Return the samples at these places, which must not be packed."""
        passes = None if self.passes is None else self.passes[places]
        return BlockRows(
            self.pass_number,
            self.table_of[places],
            self.row_of[places],
            self.ordinals[places],
            passes=passes,
        )

    def columns(self, work: Work, blocks: Sequence[OpenBlock]) -> Columns | None:
        """Return all samples as columns at once, or None if a stage needs them one by one."""
        if work.pipeline.packed is None:
            return work.pipeline.whole_columns(blocks, self.table_of, self.row_of)
        if self.layout is None:
            return None
        views = work.pipeline.sample_views(blocks, self.table_of, self.row_of)
        if views is None or self._find_misfit(work, views):
            return None
        return work.pipeline.finish(views, self.layout, self.first)

    def _find_misfit(
        self, work: Work, samples: Sequence[Mapping[str, Any]]
    ) -> tuple[int, str] | None:
        """Return place and reason of the first sample that has not its planned length."""
        packed = work.pipeline.packed
        if packed is None or self.lengths is None:
            return None
        for place, (sample, length) in enumerate(zip(samples, self.lengths.tolist(), strict=True)):
            reason = packed.misfit(sample, length)
            if reason:
                return place, reason
        return None


@dataclass(frozen=True)
class TaskRows:
    """The samples of one decode task: parts of several steps, one behind the other.

    Part i has the samples [bounds[i], bounds[i + 1]). The arrays are those of `BlockRows`, joined:
    each array costs time on its way to a worker. `pass_numbers` and `layouts` have one entry per
    part; `layouts` is empty if rows are not packed.
    """

    pass_numbers: tuple[int, ...]
    bounds: tuple[int, ...]
    table_of: np.ndarray
    row_of: np.ndarray
    ordinals: np.ndarray
    lengths: np.ndarray | None = None
    layouts: tuple[Layout | None, ...] = ()
    passes: np.ndarray | None = None

    def __iter__(self) -> Iterator[BlockRows]:
        """Yield the rows of each part."""
        layouts = self.layouts or (None,) * len(self.pass_numbers)
        for pass_number, layout, (begin, end) in zip(
            self.pass_numbers, layouts, itertools.pairwise(self.bounds), strict=True
        ):
            lengths = None if self.lengths is None else self.lengths[begin:end]
            where = self.table_of[begin:end], self.row_of[begin:end], self.ordinals[begin:end]
            passes = None if self.passes is None else self.passes[begin:end]
            yield BlockRows(pass_number, *where, lengths, layout, passes)

    def columns(self, work: Work, blocks: Sequence[OpenBlock]) -> JoinedColumns | None:
        """Return all parts as columns at once; None if a stage, or a part's shape, prevents it."""
        if not work.pipeline.has_fixed_shapes:
            return None
        columns = work.pipeline.whole_columns(blocks, self.table_of, self.row_of)
        return None if columns is None else JoinedColumns(columns, self.bounds)


@dataclass(frozen=True)
class JoinedColumns:
    """The columns of several parts, one behind the other; `bounds` as in `TaskRows`."""

    columns: Columns
    bounds: tuple[int, ...]

    def first(self, count: int) -> JoinedColumns:
        """Return the first `count` parts alone."""
        bounds = self.bounds[: count + 1]
        return JoinedColumns(
            {name: column[: bounds[-1]] for name, column in self.columns.items()}, bounds
        )

    def __iter__(self) -> Iterator[Columns]:
        """Yield each part's columns, as views of the joined ones."""
        for begin, end in itertools.pairwise(self.bounds):
            yield {name: column[begin:end] for name, column in self.columns.items()}


Head = tuple[Spans, BlockRows]
"""A block, and its first samples, to learn the schema from."""
