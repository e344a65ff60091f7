"""Join a plan with its work: a stream, from which any process makes any part of any batch.

Owns what both executions need of the two: where blocks lie, which rows a task decodes, which
columns a batch has. The reference in one process and the cluster execute exactly this. Knows no Ray
and no torch.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.execute.work import BlockRows, Head, Span, Spans, TaskRows, Work
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.replacements import FilledStep
from rayingest.plan.order.step_samples import Layout, StepSamples
from rayingest.plan.order.subset import Subset
from rayingest.plan.protocols import Columns
from rayingest.storage.redact import redact
from rayingest.transforms.schema import RESERVED, Schema

if TYPE_CHECKING:
    # A type alone: a loader without workers does not load dispatch.
    from rayingest.plan.dispatch.block_cache import Sizes

_LEARN_BLOCKS, _LEARN_SAMPLES = 4, 8
_SPREAD_BLOCKS, _SPREAD_SAMPLES = 8, 64
_LEAST_KEPT_BYTES = 256 << 20
_RUN_ROWS = 1 << 14
"""The planner plans up to this many rows of the next steps in one call."""


def spans_of(manifest: Manifest, blocks: Iterable[int], source: int = 0) -> Spans:
    """Return where these blocks lie, in the same order; `source` numbers the first source."""
    spans: Spans = []
    for number in blocks:
        shard = int(manifest.shard[number])
        url, size, mark = manifest.url(shard), int(manifest.sizes[shard]), manifest.marks[shard]
        block = (
            int(manifest.begin[number]),
            int(manifest.end[number]),
            int(manifest.samples[number]),
        )
        of = source + manifest.source_of(shard)
        if spans and (spans[-1].url, spans[-1].source) == (url, of):
            spans[-1].blocks.append(block)
        else:
            spans.append(Span(url, size, mark, [block], of))
    return spans


def heads_of(subset: Subset, source: int = 0, spread: bool = False) -> list[Head]:
    """Return the blocks and samples to learn the schema from.

    A function of the data alone, so that all ranks and runs learn the same. These are the first few
    blocks; with `spread`, some from all over the rest follow: if bad samples are skipped, the first
    shard may have no good one.
    """
    blocks = np.flatnonzero(subset.samples)
    first, rest = blocks[:_LEARN_BLOCKS], blocks[_LEARN_BLOCKS:]
    count = min(_SPREAD_BLOCKS, len(rest)) if spread else 0
    further = rest[[(2 * i + 1) * len(rest) // (2 * count) for i in range(count)]]
    heads = [_head(subset, block, source, _LEARN_SAMPLES) for block in first]
    return heads + [_head(subset, block, source, _SPREAD_SAMPLES) for block in further]


def _head(subset: Subset, block: np.ndarray, source: int, most: int) -> Head:
    rows = subset.row(block, np.arange(min(most, subset.samples[block])))
    ordinals = subset.manifest.first_ordinal[block] + rows
    return spans_of(subset.manifest, [int(block)], source), BlockRows(
        0, np.zeros_like(rows), rows, ordinals
    )


@dataclass(frozen=True)
class Stream(ABC):
    """One rank's stream of batches: the work, on which data, in which order.

    `flag_valid`: whether batches have `__valid__`, because a row may be a repeat or a replacement.
    """

    planner: Planner
    work: Work
    flag_valid: bool

    @property
    @abstractmethod
    def name(self) -> str:
        """16 hex digits that identify the data."""

    @property
    @abstractmethod
    def row_bytes(self) -> float:
        """The approximate mean size of a raw sample, in bytes."""

    @property
    @abstractmethod
    def window_steps(self) -> int:
        """The number of steps that need a block after it was read."""

    @property
    @abstractmethod
    def kept_bytes(self) -> int:
        """Bytes of blocks to keep if one process does all the work."""

    @property
    def blocks_reread(self) -> int:
        """How often the plan had a block read again in a pass; dispatch counts its own rereads."""
        return 0

    @property
    def in_order(self) -> bool:
        """Whether blocks can only be read one after the other."""
        return False

    @abstractmethod
    def sizes(self, row_overhead: int, block_overhead: int) -> Sizes:
        """Return the expected bytes of every block, with overheads per sample and per block."""

    @abstractmethod
    def spans(self, blocks: Iterable[int]) -> Spans:
        """Return where these blocks lie, in the same order."""

    @abstractmethod
    def heads(self) -> list[Head]:
        """Return the blocks and samples to learn the schema from."""

    @abstractmethod
    def location(self, block: int) -> tuple[str, int | None]:
        """Return a block's shard, without credentials, and its begin there (None if unknown)."""

    @property
    def can_learn(self) -> bool:
        """Whether the samples to learn the schema from can be read already."""
        return True

    @property
    def needs_schema(self) -> bool:
        """Whether samples are checked against a schema: not before a user's collate."""
        return self.work.pipeline.collate is None

    @property
    def known_schema(self) -> Schema | None:
        """The schema, if it is known without the data; otherwise None."""
        return None

    @abstractmethod
    def on_schema_learned(self, schema: Schema) -> None:
        """Take the schema of the samples. A stream that is resumed must use the same one."""

    @abstractmethod
    def on_blocks_read(self, blocks: Sequence[int], notes: Sequence[str]) -> None:
        """Take `Work.notes` of blocks that were read."""

    def locate(self, error: DataError, samples: StepSamples, row: int) -> DataError:
        """Return the error with the location of this row's sample, as far as it has none."""
        shard, begin = self.location(int(samples.block[row]))
        return DataError(
            f"{error.reason}; the offset is that of its block"
            if error.offset is None and begin is not None
            else error.reason,
            shard=error.shard or shard,
            offset=begin if error.offset is None else error.offset,
            sample=int(samples.ordinal[row]) if error.sample is None else error.sample,
            # Without a sample, the key is that of the sample at the damage, not of this one.
            key=None if error.sample is None else error.key,
            transient=error.transient,
        )

    def errors_in(self, step: FilledStep) -> list[DataError]:
        """Return the errors of the step's own samples that are replaced, in row order."""
        rows = sorted(row for row in step.errors if row < step.own.rows)
        return [self.locate(step.errors[row], step.own, row) for row in rows]

    def steps(self, epoch: int, step: int, epochs: int | None = None) -> Iterator[StepSamples]:
        """Yield the samples of each step from this position on, epoch after epoch.

        Stops before epoch `epochs`; None: never.
        """
        if not self.planner.steps_in(epoch):
            return
        while epochs is None or epoch < epochs:
            count = 1  # planning ahead pays only if the consumer continues
            while step < self.planner.steps_in(epoch):
                run = self.planner.run(epoch, step, count)
                yield from run
                step += len(run)
                count = max(1, min(2 * count, _RUN_ROWS // max(1, run[0].rows)))
            epoch, step = epoch + 1, 0

    def block_rows(
        self, samples: StepSamples, chosen: np.ndarray | slice, blocks: np.ndarray
    ) -> BlockRows:
        """Return the chosen samples of a step, as rows of `blocks`.

        `blocks` are ascending block numbers, among them all that occur.
        """
        table_of = np.searchsorted(blocks, samples.block[chosen])
        lengths = None if samples.length is None else samples.length[chosen]
        layout = samples.layout if len(table_of) == len(samples.block) else None
        passes = None if samples.passes is None else samples.passes[chosen]
        return BlockRows(
            samples.pass_number,
            table_of,
            samples.row[chosen],
            samples.ordinal[chosen],
            lengths,
            layout,
            passes,
        )

    def task_rows(
        self, parts: Sequence[tuple[StepSamples, np.ndarray]], blocks: np.ndarray
    ) -> TaskRows:
        """Return the chosen samples of several steps, as `block_rows` does for one."""
        columns = zip(
            *(
                (samples.block[rows], samples.row[rows], samples.ordinal[rows])
                for samples, rows in parts
            ),
            strict=True,
        )
        block, row, ordinal = map(np.concatenate, columns)
        bounds = tuple(itertools.accumulate((len(rows) for _, rows in parts), initial=0))
        pass_numbers = tuple(samples.pass_number for samples, _ in parts)
        packed = [
            (samples.length[rows], samples, rows)
            for samples, rows in parts
            if samples.length is not None
        ]
        lengths = np.concatenate([length for length, _, _ in packed]) if packed else None
        layouts = tuple(
            samples.layout if len(rows) == len(samples.block) else None
            for _, samples, rows in packed
        )
        own = [samples.passes[rows] for samples, rows in parts if samples.passes is not None]
        passes = np.concatenate(own) if own else None
        return TaskRows(
            pass_numbers,
            bounds,
            np.searchsorted(blocks, block),
            row,
            ordinal,
            lengths,
            layouts,
            passes,
        )

    def complete(self, samples: StepSamples, columns: Columns) -> Columns:
        """Return the batch: the columns cut to the step's rows, and the loader's own columns.

        The columns of packed rows are complete already. Their `__index__` has an entry for each
        segment of `cu_seqlens`, -1 for the padding of a row. Raises ConfigError if a user's collate
        function gave a column of a reserved name.
        """
        taken = [name for name in RESERVED if name in columns]
        if taken:
            raise ConfigError(
                f"collate gave a field {taken[0]!r}, which the loader adds itself; rename the field"
            )
        if samples.layout is not None:
            return {**columns, **self._of_packed(samples, samples.layout)}
        batch: Columns = {name: column[: samples.rows] for name, column in columns.items()}
        batch["__index__"] = samples.ordinal[: samples.rows]
        if samples.source is not None:
            batch["__source__"] = samples.source[: samples.rows]
        if self.flag_valid:
            batch["__valid__"] = samples.valid[: samples.rows]
        return batch

    def _of_packed(self, samples: StepSamples, layout: Layout) -> Columns:
        _, piece = layout.segments
        index = np.full(len(piece), -1, np.int64)
        index[piece >= 0] = samples.ordinal[layout.sample[piece[piece >= 0]]]
        return {"__index__": index, **({"__valid__": layout.valid} if self.flag_valid else {})}


@dataclass(frozen=True)
class ManifestStream(Stream):
    """The stream of data whose blocks are known before any is read."""

    manifest: Manifest

    @property
    def name(self) -> str:
        return self.manifest.fingerprint

    @property
    def row_bytes(self) -> float:
        return self.manifest.total_bytes / self.manifest.num_samples

    @property
    def window_steps(self) -> int:
        return self.planner.order.window_steps if self.manifest.num_blocks > 1 else 0

    @property
    def kept_bytes(self) -> int:
        window = self.planner.order.window_samples / self.planner.world_size
        return max(
            _LEAST_KEPT_BYTES,
            int(1.5 * window * self.manifest.total_bytes / self.planner.num_samples),
        )

    def sizes(self, row_overhead: int, block_overhead: int) -> Sizes:
        return self.manifest.nbytes + row_overhead * self.manifest.samples + block_overhead

    def spans(self, blocks: Iterable[int]) -> Spans:
        return spans_of(self.manifest, blocks)

    def heads(self) -> list[Head]:
        """Return the first block of each source, then the second of each, and so on."""
        each = [
            heads_of(subset, source, self.work.skip)
            for source, subset in enumerate(self.planner.subsets)
        ]
        return [
            head for heads in itertools.zip_longest(*each) for head in heads if head is not None
        ]

    def location(self, block: int) -> tuple[str, int]:
        manifest = self.manifest
        return redact(manifest.url(int(manifest.shard[block]))), int(manifest.begin[block])

    def on_schema_learned(self, schema: Schema) -> None:
        pass  # every rank and run learns the same schema from the data

    def on_blocks_read(self, blocks: Sequence[int], notes: Sequence[str]) -> None:
        pass
