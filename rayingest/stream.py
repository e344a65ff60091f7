"""A stream: one data set's description and plan, from which any process makes any part of any batch.

Owns the joint of floor 0's plan with floor 1's formats and transforms; the one-process reference and the cluster both
execute exactly this. Knows no Ray and no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError, DataError, IngestError
from rayingest.formats import get_format
from rayingest.formats.protocol import Block, Shard
from rayingest.plan.layout import Layout
from rayingest.plan.manifest import Manifest
from rayingest.plan.planner import Picks, Planner
from rayingest.plan.protocols import Columns
from rayingest.plan.standins import FilledStep
from rayingest.plan.view import View
from rayingest.storage.files import Storage
from rayingest.storage.local_files import local_path
from rayingest.storage.redact import redact
from rayingest.transforms.columnar import OpenBlock
from rayingest.transforms.pipeline import Pipeline, Samples
from rayingest.transforms.rows import Rows as RawRows
from rayingest.transforms.schema import RESERVED

_LEARN_BLOCKS, _LEARN_SAMPLES = 4, 8
_RUN_ROWS = 1 << 14
"""Steps are planned together up to so many rows."""
_SHARDS_AT_ONCE = 16

Span = tuple[str, int, str, list[Block]]
"""A shard's URL, its size and mark when it was indexed, and blocks of it."""

Spans = list[Span]
"""One for each shard to read from."""


def spans_of(manifest: Manifest, blocks: Iterable[int]) -> Spans:
    """Where these blocks of a manifest lie, in the same order."""
    spans: Spans = []
    for number in blocks:
        shard = int(manifest.shard[number])
        url, size, mark = manifest.url(shard), int(manifest.sizes[shard]), manifest.marks[shard]
        block = int(manifest.begin[number]), int(manifest.end[number]), int(manifest.samples[number])
        if spans and spans[-1][0] == url:
            spans[-1][-1].append(block)
        else:
            spans.append((url, size, mark, [block]))
    return spans


@dataclass(frozen=True)
class Work:
    """What a worker must know of a stream to do a part of it; picklable, free of the manifest.

    `options` are the format's, `strict` as for indexing. `skip`: samples that cannot be had are left out and named, for
    others to stand in for them.
    """

    format_name: str
    storage: Storage
    pipeline: Pipeline
    strict: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    skip: bool = False

    def read(self, spans: Spans) -> list[pa.Table]:
        """One raw table for each block. Raises DataError, ConfigError."""
        format_ = get_format(self.format_name)
        columns = self.pipeline.columns

        def of_shard(span: Span) -> list[pa.Table]:
            url, size, mark, blocks = span
            return format_.read(Shard(self.storage, url, size, self.strict, self.options, mark), blocks, columns)

        if len(spans) < 2 or all(local_path(url) is not None for url, *_ in spans):
            return [table for span in spans for table in of_shard(span)]
        with ThreadPoolExecutor(min(len(spans), _SHARDS_AT_ONCE), "rayingest-shard") as pool:  # each waits for answers
            return [table for tables in pool.map(of_shard, spans) for table in tables]

    def learnt(self, heads: Sequence[Head]) -> Work:
        """The same work with the schema of its samples: those of the first head that has any good ones.

        Raises ConfigError where the description does not fit the data, DataError where no head can be read or decoded.
        """
        first: DataError | None = None
        for spans, rows in heads:
            try:
                schema = self.pipeline.learn(self.read(spans), rows.table_of, rows.row_of, rows.ordinals)
                return replace(self, pipeline=replace(self.pipeline, schema=schema))
            except DataError as error:
                if error.transient:
                    raise
                first = first or self._explained(error, spans)
        raise first or DataError("there are no samples")

    def _explained(self, error: DataError, spans: Spans) -> DataError:
        """The error, and which of the raw fields to be read no sample of this block has: that may be all there is."""
        if self.pipeline.columns is None:
            return error
        everything = replace(self, pipeline=replace(self.pipeline, stages=()))
        try:
            raw = RawRows(everything.read(spans)[0])
        except IngestError:
            return error
        absent = [name for name in self.pipeline.columns if name not in raw.names]
        if raw.has_documents or not absent:
            return error
        found = f"no sample around it has a field {absent[0]!r}; there are {', '.join(map(repr, raw.names))}"
        return error.saying(f"{error.reason}; {found}")


@dataclass(frozen=True)
class Rows:
    """Samples to decode together: sample i is row `row_of[i]` of table `table_of[i]`; int64 arrays of one length.

    Where they are packed, sample i must be `lengths[i]` long, and `layout` is that of all the step's, if they are that.
    """

    cycle: int
    table_of: np.ndarray
    row_of: np.ndarray
    ordinals: np.ndarray
    lengths: np.ndarray | None = None
    layout: Layout | None = None

    def samples(self, work: Work, tables: Sequence[pa.Table]) -> tuple[Samples, dict[int, DataError]]:
        """Decoded and mapped, not yet collated; and where the work is to `skip` bad ones, these, by their place."""
        bad: dict[int, DataError] = {}
        chosen = (self.table_of, self.row_of, self.ordinals, self.cycle)
        samples = work.pipeline.run_samples(tables, *chosen, bad if work.skip else None)
        misfit = self._misfit(work, samples)
        if misfit is not None:
            place, reason = misfit
            where = RawRows(tables[self.table_of[place]]).where(int(self.row_of[place]))
            raise DataError(reason, **where, sample=int(self.ordinals[place]))
        return samples, bad

    def columns(self, work: Work, blocks: Sequence[OpenBlock]) -> Columns | None:
        """All of them as columns at once, where nothing is done to any: none can be bad then. Else None."""
        if work.pipeline.packed is None:
            return work.pipeline.whole(blocks, self.table_of, self.row_of)
        views = None if self.layout is None else work.pipeline.views(blocks, self.table_of, self.row_of)
        return None if views is None or self._misfit(work, views) else work.pipeline.finish(views, self.layout)

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

    `cycles` has an entry a part. One set of arrays for all: each takes its time on its way to a worker. `lengths` and
    `layouts`, an entry a part, are those of packed rows, as `Rows` has them.
    """

    cycles: tuple[int, ...]
    bounds: tuple[int, ...]
    table_of: np.ndarray
    row_of: np.ndarray
    ordinals: np.ndarray
    lengths: np.ndarray | None = None
    layouts: tuple[Layout | None, ...] = ()

    def __iter__(self) -> Iterator[Rows]:
        """The parts."""
        layouts = self.layouts or (None,) * len(self.cycles)
        for cycle, layout, (begin, end) in zip(self.cycles, layouts, itertools.pairwise(self.bounds), strict=True):
            lengths = None if self.lengths is None else self.lengths[begin:end]
            where = self.table_of[begin:end], self.row_of[begin:end], self.ordinals[begin:end]
            yield Rows(cycle, *where, lengths, layout)

    def columns(self, work: Work, blocks: Sequence[OpenBlock]) -> JoinedColumns | None:
        """All parts at once, where nothing is done to any sample, and no part's columns depend on what is in it."""
        if not work.pipeline.fixed_shapes:
            return None
        columns = work.pipeline.whole(blocks, self.table_of, self.row_of)
        return None if columns is None else JoinedColumns(columns, self.bounds)


@dataclass(frozen=True)
class JoinedColumns:
    """The columns of several parts one behind the other; `bounds` as in `Parts`."""

    columns: Columns
    bounds: tuple[int, ...]

    def __iter__(self) -> Iterator[Columns]:
        """Each part's own, which share their memory."""
        for begin, end in itertools.pairwise(self.bounds):
            yield {name: column[begin:end] for name, column in self.columns.items()}


Head = tuple[Spans, Rows]
"""A block, and its first samples."""


def heads_of(manifest: Manifest, view: View) -> list[Head]:
    """From which a schema is learnt: a function of the data alone, so that all ranks and runs learn the same."""
    heads = []
    for block in np.flatnonzero(view.samples)[:_LEARN_BLOCKS]:
        rows = view.row(block, np.arange(min(_LEARN_SAMPLES, view.samples[block])))
        ordinals = manifest.first_ordinal[block] + rows
        heads.append((spans_of(manifest, [int(block)]), Rows(0, np.zeros_like(rows), rows, ordinals)))
    return heads


@dataclass(frozen=True)
class Stream:
    """One rank's stream of batches: what is done, on which data, in which order.

    `flag_valid`: whether batches hold `__valid__`, because a row may be a repeat or a stand-in.
    """

    manifest: Manifest
    planner: Planner
    work: Work
    flag_valid: bool

    def spans(self, blocks: Iterable[int]) -> Spans:
        """Where these blocks lie, in the same order."""
        return spans_of(self.manifest, blocks)

    def heads(self) -> list[Head]:
        """From which the schema is learnt."""
        return heads_of(self.manifest, self.planner.view)

    def place(self, block: int) -> tuple[str, int]:
        """The shard, as it may be shown, and the beginning of a block in it."""
        manifest = self.manifest
        return redact(manifest.url(int(manifest.shard[block]))), int(manifest.begin[block])

    def named(self, error: DataError, picks: Picks, row: int) -> DataError:
        """The error, with what it does not know of the sample in this row and of where that is."""
        shard, begin = self.place(int(picks.block[row]))
        return DataError(
            error.reason if error.offset is not None else f"{error.reason}; the offset is that of its block",
            shard=error.shard or shard,
            offset=begin if error.offset is None else error.offset,
            sample=int(picks.ordinal[row]) if error.sample is None else error.sample,
            key=None if error.sample is None else error.key,  # else that of whatever sample the damage is at
            transient=error.transient,
        )

    def bad(self, step: FilledStep) -> list[DataError]:
        """What is wrong with each of the step's own samples that has a stand-in, in row order."""
        rows = sorted(row for row in step.errors if row < step.own.rows)
        return [self.named(step.errors[row], step.own, row) for row in rows]

    def steps(self, epoch: int, step: int, epochs: int | None = None) -> Iterator[Picks]:
        """The picks from this position on, epoch after epoch, up to and without epoch `epochs`, or for ever."""
        if not self.planner.steps_in(epoch):
            return
        while epochs is None or epoch < epochs:
            count = 1  # planning ahead pays for those who go on
            while step < self.planner.steps_in(epoch):
                run = self.planner.run(epoch, step, count)
                yield from run
                step += len(run)
                count = max(1, min(2 * count, _RUN_ROWS // max(1, run[0].rows)))
            epoch, step = epoch + 1, 0

    def rows(self, picks: Picks, chosen: np.ndarray | slice, blocks: np.ndarray) -> Rows:
        """The chosen samples of a step as rows of the tables of `blocks` (ascending block numbers, all that occur)."""
        table_of = np.searchsorted(blocks, picks.block[chosen])
        lengths = None if picks.length is None else picks.length[chosen]
        layout = picks.layout if len(table_of) == len(picks.block) else None
        return Rows(picks.cycle, table_of, picks.row[chosen], picks.ordinal[chosen], lengths, layout)

    def parts(self, parts: Sequence[tuple[Picks, np.ndarray]], blocks: np.ndarray) -> Parts:
        """The chosen samples of several steps, as `rows` has them of one."""
        columns = zip(
            *((picks.block[rows], picks.row[rows], picks.ordinal[rows]) for picks, rows in parts), strict=True
        )
        block, row, ordinal = map(np.concatenate, columns)
        bounds = tuple(itertools.accumulate((len(rows) for _, rows in parts), initial=0))
        cycles = tuple(picks.cycle for picks, _ in parts)
        packed = [(picks.length[rows], picks, rows) for picks, rows in parts if picks.length is not None]
        lengths = np.concatenate([length for length, _, _ in packed]) if packed else None
        layouts = tuple(picks.layout if len(rows) == len(picks.block) else None for _, picks, rows in packed)
        return Parts(cycles, bounds, np.searchsorted(blocks, block), row, ordinal, lengths, layouts)

    def complete(self, picks: Picks, columns: Columns) -> Columns:
        """The batch: the columns of all the step's samples, cut to its rows, with `__index__` and `__valid__`.

        The columns of packed rows are those already; `__index__` then has an entry for each of `cu_seqlens`' segments,
        -1 for what is left of a row. ConfigError where a collate function of the user's gave columns of these names.
        """
        taken = [name for name in RESERVED if name in columns]
        if taken:
            raise ConfigError(
                f"collate gave a field {taken[0]!r}, which the loader adds itself: call it something else"
            )
        if picks.layout is not None:
            return {**columns, **self._of_packed(picks, picks.layout)}
        batch: Columns = {name: column[: picks.rows] for name, column in columns.items()}
        batch["__index__"] = picks.ordinal[: picks.rows]
        if self.flag_valid:
            batch["__valid__"] = picks.valid[: picks.rows]
        return batch

    def _of_packed(self, picks: Picks, layout: Layout) -> Columns:
        _, piece = layout.segments
        index = np.full(len(piece), -1, np.int64)
        index[piece >= 0] = picks.ordinal[layout.sample[piece[piece >= 0]]]
        return {"__index__": index, "__valid__": layout.valid} if self.flag_valid else {"__index__": index}
