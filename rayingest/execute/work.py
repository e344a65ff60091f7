"""What workers do for a stream: read blocks, learn the schema, decode rows of them.

Owns the joint of formats and transforms, as far as a worker needs it: picklable, and free of the manifest and the plan.
What is done with several sources together is `mixed_work`'s.
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
from rayingest.formats.protocol import Block, Format, Shard
from rayingest.plan.order.layout import Layout
from rayingest.plan.protocols import Columns
from rayingest.storage.files import Counters, Storage
from rayingest.storage.local_files import local_path
from rayingest.transforms.open_block import OpenBlock
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.raw_block import RawBlock
from rayingest.transforms.run_stages import Samples
from rayingest.transforms.stages import Stage

_SHARDS_AT_ONCE = 16


class Span(NamedTuple):
    """A shard's URL, its size and mark when it was indexed, blocks of it, and the number of the source it is of."""

    url: str
    size: int
    mark: str
    blocks: list[Block]
    source: int = 0


Spans = list[Span]
"""One for each shard to read from."""


class Work(Protocol):
    """What a worker must know of a stream to do a part of it; picklable, free of the manifest.

    `pipeline` is how samples are put together. `skip`: samples that cannot be had are left out and named, for others to
    stand in for them.
    """

    @property
    def pipeline(self) -> Pipeline: ...

    @property
    def skip(self) -> bool: ...

    @property
    def stages(self) -> Sequence[Stage]:
        """All that is done with samples, of whatever source."""

    @property
    def code_mark(self) -> str:
        """8 hex digits of the stages' code."""

    @property
    def spec_bytes(self) -> int:
        """Bytes of a decoded sample as far as they are known; 0 if not."""

    @property
    def counters(self) -> Counters:
        """What storage counted, in this process."""

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """Values that are not to be shown."""

    def made(self, skip: bool, path: str) -> Self:
        """The same, with bad samples to skip or not, and images decoded on this path."""

    def read(self, spans: Spans) -> list[pa.Table]:
        """One raw table for each block. Raises DataError, ConfigError."""

    def learnt(self, heads: Sequence[Head]) -> Self:
        """The same work with the schema of its samples: those of the first head that has any good ones.

        Raises ConfigError where the description does not fit the data, DataError where no head has a good sample.
        """

    def open(self, table: pa.Table) -> OpenBlock:
        """A raw block, to take samples from many times."""

    def run(
        self, blocks: Sequence[OpenBlock], rows: Rows, bad: dict[int, DataError] | None
    ) -> Samples:
        """The rows' samples, as of `Pipeline.run`."""

    def notes(self, tables: Sequence[pa.Table]) -> tuple[str, ...]:
        """What is to be told of each table that `read` gave, besides its bytes; () for nothing."""

    def close(self) -> None:
        """Give up what reading has left open."""


@dataclass(frozen=True)
class SourceWork:
    """The work on one source. `options` are the format's, `strict` as for indexing."""

    format: Format
    storage: Storage
    pipeline: Pipeline
    strict: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    skip: bool = False

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

    def made(self, skip: bool, path: str) -> Self:
        return replace(self, skip=skip, pipeline=replace(self.pipeline, image_backend=path))

    def read(self, spans: Spans) -> list[pa.Table]:
        return read_shards(spans, self.read_shard)

    def read_shard(self, span: Span) -> list[pa.Table]:
        """The blocks of one shard."""
        shard = Shard(self.storage, span.url, span.size, self.strict, self.options, span.mark)
        return self.format.read(shard, span.blocks, self.pipeline.columns)

    def open(self, table: pa.Table) -> OpenBlock:
        return self.pipeline.open(table)

    def notes(self, tables: Sequence[pa.Table]) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        pass

    def run(
        self, blocks: Sequence[OpenBlock], rows: Rows, bad: dict[int, DataError] | None
    ) -> Samples:
        passes = rows.pass_number if rows.passes is None else rows.passes
        return self.pipeline.run(blocks, rows.table_of, rows.row_of, rows.ordinals, passes, bad)

    def learnt(self, heads: Sequence[Head]) -> Self:
        first: DataError | None = None
        for spans, rows in heads:
            try:
                schema = self.pipeline.learn_schema(
                    self.read(spans), rows.table_of, rows.row_of, rows.ordinals
                )
                return replace(self, pipeline=replace(self.pipeline, schema=schema))
            except DataError as error:
                if error.transient:
                    raise
                first = first or self._explained(error, spans)
        if first is None:
            raise DataError("there are no samples")
        if self.skip:
            looked = sum(len(rows.ordinals) for _, rows in heads)
            found = f"none of the {looked} samples of {len(heads)} blocks that were looked at first is good"
            why = "and which fields there are can only be learnt from one that is"
            raise first.saying(
                f"{found}, {why}; what is wrong with the first: {first.reason}"
            ) from first
        raise first

    def _explained(self, error: DataError, spans: Spans) -> DataError:
        """The error, and which of the raw fields to be read no sample of this block has: that may be all there is."""
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
        found = f"no sample around it has a field {absent[0]!r}; there are {', '.join(map(repr, raw.names))}"
        return error.saying(f"{error.reason}; {found}")


def read_shards(spans: Spans, read: Callable[[Span], list[pa.Table]]) -> list[pa.Table]:
    """What `read` gives of each, one behind the other; of remote ones several at a time."""
    if len(spans) < 2 or all(local_path(span.url) is not None for span in spans):
        return [table for span in spans for table in read(span)]
    with ThreadPoolExecutor(
        min(len(spans), _SHARDS_AT_ONCE), "rayingest-shard"
    ) as pool:  # each waits for answers
        return [table for tables in pool.map(read, spans) for table in tables]


@dataclass(frozen=True)
class Rows:
    """Samples to decode together: sample i is row `row_of[i]` of block `table_of[i]`; int64 arrays of one length.

    `passes` has the pass that keys the random numbers of each sample, where that is not
    `pass_number`. Where they are packed, sample i must be `lengths[i]` long, and `layout` is that
    of all the step's, if they are that.
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
        """Decoded and mapped, not yet collated; and where the work is to `skip` bad ones, these, by their place."""
        bad: dict[int, DataError] = {}
        samples = work.run(blocks, self, bad if work.skip else None)
        misfit = self._misfit(work, samples)
        if misfit is not None:
            place, reason = misfit
            raise DataError(reason, **self.where(blocks, place))
        return samples, bad

    def where(self, blocks: Sequence[OpenBlock], place: int) -> dict[str, Any]:
        """`shard`, `offset`, `key` and `sample` of the sample at this place, for an error."""
        where = blocks[self.table_of[place]].rows.where(int(self.row_of[place]))
        return {**where, "sample": int(self.ordinals[place])}

    def some(self, places: np.ndarray) -> Rows:
        """Those at these places, which are not packed."""
        passes = None if self.passes is None else self.passes[places]
        return Rows(
            self.pass_number,
            self.table_of[places],
            self.row_of[places],
            self.ordinals[places],
            passes=passes,
        )

    def columns(self, work: Work, blocks: Sequence[OpenBlock]) -> Columns | None:
        """All of them as columns at once, where nothing is done to any: none can be bad then. Else None."""
        if work.pipeline.packed is None:
            return work.pipeline.whole_columns(blocks, self.table_of, self.row_of)
        views = (
            None
            if self.layout is None
            else work.pipeline.sample_views(blocks, self.table_of, self.row_of)
        )
        return (
            None
            if views is None or self._misfit(work, views)
            else work.pipeline.finish(views, self.layout)
        )

    def _misfit(self, work: Work, samples: Sequence[Mapping[str, Any]]) -> tuple[int, str] | None:
        """The place of the first sample that is not as long as was planned, and what to say of it."""
        packed = work.pipeline.packed
        if packed is None or self.lengths is None:
            return None
        for place, (sample, length) in enumerate(zip(samples, self.lengths.tolist(), strict=True)):
            reason = packed.misfit(sample, length)
            if reason:
                return place, reason
        return None


@dataclass(frozen=True)
class Parts:
    """Samples to decode together, as parts of several steps: those of part i are [bounds[i], bounds[i + 1]) of them.

    `pass_numbers` has an entry a part. One set of arrays for all: each takes its time on its way
    to a worker. `lengths`, `layouts` (an entry a part) and `passes` are as `Rows` has them.
    """

    pass_numbers: tuple[int, ...]
    bounds: tuple[int, ...]
    table_of: np.ndarray
    row_of: np.ndarray
    ordinals: np.ndarray
    lengths: np.ndarray | None = None
    layouts: tuple[Layout | None, ...] = ()
    passes: np.ndarray | None = None

    def __iter__(self) -> Iterator[Rows]:
        """The parts."""
        layouts = self.layouts or (None,) * len(self.pass_numbers)
        for pass_number, layout, (begin, end) in zip(
            self.pass_numbers, layouts, itertools.pairwise(self.bounds), strict=True
        ):
            lengths = None if self.lengths is None else self.lengths[begin:end]
            where = self.table_of[begin:end], self.row_of[begin:end], self.ordinals[begin:end]
            passes = None if self.passes is None else self.passes[begin:end]
            yield Rows(pass_number, *where, lengths, layout, passes)

    def columns(self, work: Work, blocks: Sequence[OpenBlock]) -> JoinedColumns | None:
        """All parts at once, where nothing is done to any sample, and no part's columns depend on what is in it."""
        if not work.pipeline.has_fixed_shapes:
            return None
        columns = work.pipeline.whole_columns(blocks, self.table_of, self.row_of)
        return None if columns is None else JoinedColumns(columns, self.bounds)


@dataclass(frozen=True)
class JoinedColumns:
    """The columns of several parts one behind the other; `bounds` as in `Parts`."""

    columns: Columns
    bounds: tuple[int, ...]

    def first(self, count: int) -> JoinedColumns:
        """The first so many parts alone."""
        bounds = self.bounds[: count + 1]
        return JoinedColumns(
            {name: column[: bounds[-1]] for name, column in self.columns.items()}, bounds
        )

    def __iter__(self) -> Iterator[Columns]:
        """Each part's own, which share their memory."""
        for begin, end in itertools.pairwise(self.bounds):
            yield {name: column[begin:end] for name, column in self.columns.items()}


Head = tuple[Spans, Rows]
"""A block, and its first samples."""
