"""The plan of a stream that has no end: step s is the s-th batch of records, and its block holds a rank's rows of it.

Owns which rows those are, and that a bad one's stand-in comes from the same block. What the records are is found by
those who read; where they begin is known from the `bookmarks`.
"""

from __future__ import annotations

import numpy as np

from rayingest.plan.order.batching import bounds, check_ranks
from rayingest.plan.order.offsets import Bookmarks
from rayingest.plan.order.order import Order
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.protocols import ENDLESS


class UnboundedPlanner:
    """One rank's part: rows [r G / W, (r + 1) G / W) of every step of G. There is one epoch, and one cycle.

    `share` is the rows that its blocks hold: one even where a rank has none, for the fields of its empty batches.
    """

    def __init__(
        self, marks: Bookmarks, batch: int, rank: int, world_size: int, uneven: bool
    ) -> None:
        check_ranks(batch, rank, world_size, uneven)
        self.marks, self.rank, self.world_size = marks, rank, world_size
        self.order = Order(ENDLESS, batch, "drop", None, 1, 1)
        begin, end = bounds(batch, rank, world_size)
        self.rows = end - begin
        self.share = begin, max(end, begin + 1)

    def steps_in(self, epoch: int) -> int:
        return ENDLESS

    def step_samples(self, epoch: int, step: int) -> StepSamples:
        begin, end = self.share
        row = np.arange(end - begin)
        first = step * self.order.batch + begin
        block, until, window_begin, window_end = (
            np.full(len(row), value)
            for value in (self.marks.block(step), step + 1, first, first + len(row))
        )
        where = block, row, first + row
        valid = np.ones(len(row), bool)
        return StepSamples(
            epoch, step, 0, self.rows, *where, valid, until, first + row, window_begin, window_end
        )

    def run(self, epoch: int, step: int, count: int) -> list[StepSamples]:
        return [self.step_samples(epoch, step)]

    def replacement(self, samples: StepSamples, row: int, place: int) -> tuple[int, int, int, int]:
        return (
            int(samples.block[row]),
            place - int(samples.window_begin[row]),
            place,
            int(samples.expires[row]),
        )
