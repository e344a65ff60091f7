"""Read slices of blocks where a window of whole blocks exceeds the budget.

A *run* is as many steps as have samples that fit the budget together. A *slice* is the rows of one
block that a run needs. To dispatch, each slice is a block of its own: a read brings no other rows
into the object store, and a run reads no block twice. So a read serves all steps of its run,
however far beyond the budget the window is, and dispatch keeps its bound as ever.

Owns how blocks are cut into slices, and their numbers. The samples and their order are those of the
plan.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from rayingest.execute.stream import ManifestStream
from rayingest.execute.work import Spans
from rayingest.plan.order.step_samples import StepSamples

if TYPE_CHECKING:
    from rayingest.plan.dispatch.block_cache import Sizes


@dataclass
class _Slices:
    """The slices of the latest runs.

    Slice `run * blocks + block` is of block `block`: its number alone says where it lies.
    """

    blocks: int
    runs: int = 0
    # The rows of each slice, ascending.
    rows: dict[int, np.ndarray] = field(default_factory=dict)
    # The slices of each run in `rows`, the oldest run first.
    numbers: deque[list[int]] = field(default_factory=deque)
    # The blocks that runs of this pass need so far.
    seen: set[int] = field(default_factory=set)
    # Slices not read yet of blocks that a run before needs too, and the number of those read.
    again: set[int] = field(default_factory=set)
    reread: int = 0

    def cut(self, run: Sequence[StepSamples], keep: int) -> Iterator[StepSamples]:
        """Yield the steps of a run with slices in the place of blocks; keep the last runs alone."""
        self.runs += 1
        first = self.runs * self.blocks
        if run[0].step == 0:
            self.seen.clear()
        block = np.concatenate([samples.block for samples in run])
        row = np.concatenate([samples.row for samples in run])
        most = int(row.max()) + 1
        pairs, place = np.unique(block * most + row, return_inverse=True)
        numbers, begins = np.unique(pairs // most, return_index=True)
        parts = np.split(pairs % most, begins[1:])
        self.numbers.append((first + numbers).tolist())
        self.rows.update(zip(self.numbers[-1], parts, strict=True))
        self.again.update(first + block for block in self.seen.intersection(numbers.tolist()))
        self.seen.update(numbers.tolist())
        while len(self.numbers) > keep:
            for number in self.numbers.popleft():
                del self.rows[number]
                self.again.discard(number)
        place -= begins[np.searchsorted(numbers, block)]
        ends = np.cumsum([len(samples.block) for samples in run])
        for samples, own in zip(run, np.split(place, ends[:-1]), strict=True):
            until = np.full(len(own), run[-1].step + 1)
            yield replace(samples, block=first + samples.block, row=own, expires=until)

    def begin_read(self, number: int) -> np.ndarray:
        """Return the rows of a slice to read: none if it is forgotten, since nothing needs it."""
        self.reread += number in self.again
        self.again.discard(number)
        return self.rows.get(number, np.zeros(0, np.int64))


@dataclass(frozen=True)
class SlicedStream(ManifestStream):
    """A stream whose blocks are slices: those of `run_steps` steps at a time.

    `keep_runs`: how many runs may have steps that are not delivered yet.
    """

    run_steps: int
    keep_runs: int
    _slices: _Slices = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_slices", _Slices(self.manifest.num_blocks))

    @property
    def blocks_reread(self) -> int:
        return self._slices.reread

    def sizes(self, row_overhead: int, block_overhead: int) -> Sizes:
        row_bytes = self.manifest.nbytes / np.maximum(1, self.manifest.samples) + row_overhead
        return _Sizes(self._slices, row_bytes, block_overhead)

    def spans(self, blocks: Iterable[int]) -> Spans:
        spans: Spans = []
        for number in blocks:
            (span,) = super().spans([number % self.manifest.num_blocks])
            spans.append(span._replace(rows=self._slices.begin_read(number)))
        return spans

    def location(self, block: int) -> tuple[str, int]:
        return super().location(block % self.manifest.num_blocks)

    def steps(self, epoch: int, step: int, epochs: int | None = None) -> Iterator[StepSamples]:
        planned = super().steps(epoch, step, epochs)
        for _, steps in itertools.groupby(planned, key=lambda samples: samples.epoch):
            while run := list(itertools.islice(steps, self.run_steps)):
                yield from self._slices.cut(run, self.keep_runs)


class _Sizes:
    """The expected bytes of slices, by number."""

    def __init__(self, slices: _Slices, row_bytes: np.ndarray, overhead: int) -> None:
        self._slices, self._row_bytes, self._overhead = slices, row_bytes, overhead

    def __getitem__(self, number: int) -> int:
        rows = len(self._slices.rows.get(number, ()))
        return int(rows * self._row_bytes[number % len(self._row_bytes)]) + self._overhead
