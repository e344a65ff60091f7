"""Orders "window", "weighted" and "sampler" as far as they are alike: the batcher of lanes.

Owns which positions a step takes: in step s, positions [s b, (s + 1) b) of every lane, and at the
tail what the lanes have left, each with its repeats. Kind "window": each sample once a pass,
shuffled in windows or in file order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rayingest.plan.order.arrays import runs
from rayingest.plan.order.kinds import OrderRequest
from rayingest.plan.order.order import EpochLength, Lanes, Order
from rayingest.plan.order.planner import ALONE, Kind, Planner, RankSlice, Rows
from rayingest.plan.order.sequence import BlockSequence, Sequence
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import Subset
from rayingest.plan.order.tails import Steps, reads_per_block, repeat_backwards
from rayingest.plan.order.windows import Windows


class LaneBatcher:
    """Equally many rows of a step from every lane; windows of each lane are permuted."""

    most_steps = 1 << 30

    def __init__(self, order: Order, sequence: Sequence, lengths: np.ndarray | None = None) -> None:
        self.order, self.lanes = order, Lanes(order)
        self.windows = Windows(self.lanes, sequence, lengths)

    def steps(self, pass_number: int) -> Steps:
        return self.lanes.steps

    def rows(self, pass_number: int, step: int, count: int, numbers: np.ndarray) -> Rows:
        lanes, each = self.lanes, len(numbers)
        lane, position, valid = lane_rows(lanes, step, numbers)
        if step >= lanes.steps.full:
            # The window of a lane is that of the first of its rows, be it a repeat.
            starts, counts = runs(lane)
            first = np.minimum.reduceat(position, starts) // lanes.rows
            placed = self.windows.place(pass_number, lane, position, np.repeat(first, counts))
            return self._rows(placed, valid, np.full(each, step))
        step_of = np.repeat(np.arange(step, step + count), each)
        if count == 1:
            placed = self.windows.place(pass_number, lane, position, step_of)
            return self._rows(placed, valid, step_of)
        # A lane's steps together: each window is then looked at once.
        lane, valid = np.tile(lane, count), np.tile(valid, count)
        position = np.tile(position, count) + (step_of - step) * lanes.rows
        by_lane = np.argsort(lane, kind="stable")
        found = self.windows.place(pass_number, lane[by_lane], position[by_lane], step_of[by_lane])
        columns = tuple(np.empty(count * each, np.int64) for _ in found)
        for column, ordered in zip(columns, found, strict=True):
            column[by_lane] = ordered
        return self._rows(columns, valid, step_of)

    def _rows(self, placed: tuple[np.ndarray, ...], valid: np.ndarray, step: np.ndarray) -> Rows:
        position, expires, window_begin, window_end = placed
        if self.order.seed is None:
            # A row of padding may repeat a block that is past.
            expires = np.clip(expires, step + 1, self.lanes.steps.count)
        return Rows(position, valid, expires, window_begin, window_end)

    def block_expires(self, samples: StepSamples, row: int, position: int, step: int) -> int | None:
        if self.order.seed is not None:
            return None
        (expires,) = self.windows.block_expires(np.array([position])).tolist()
        return max(step + 1, min(int(expires), self.lanes.steps.count))

    def reads_per_block(self, world_size: int) -> float:
        return reads_per_block(self.order.batch, self.order.lanes, world_size)


def lane_rows(
    lanes: Lanes, step: int, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lane, position in the lane, and whether it is no repeat, of rows of a step.

    A full step takes the next rows of every lane, and so does the last step with "pad"; with
    "short" it takes what the lanes have left, lane after lane.
    """
    if step < lanes.steps.full or lanes.steps.partial == "pad":
        lane = numbers // lanes.rows
        position = numbers + (step - lane) * lanes.rows
        if step < lanes.steps.full:
            return lane, position, np.ones(len(numbers), bool)
        return lane, *repeat_backwards(position, lanes.samples[lane])
    done = lanes.steps.full * lanes.rows
    left = lanes.samples - done
    lane = np.repeat(np.arange(len(left), dtype=np.int64), left)[numbers]
    before = np.cumsum(left) - left
    return lane, done + numbers - before[lane], np.ones(len(numbers), bool)


def plan(
    subset: Subset,
    order: Order,
    ranks: RankSlice = ALONE,
    *,
    lengths: np.ndarray | None = None,
    epoch_length: EpochLength | None = None,
    identity: Mapping[str, Any] | None = None,
) -> Planner:
    """Return a rank's planner of each sample once a pass.

    `lengths` (by ordinal) bring samples of similar length together in a step.
    """
    sequence = BlockSequence(subset, order.seed)
    batcher = LaneBatcher(order, sequence, lengths)
    kind = Kind("window", identity=identity or {})
    return Planner(kind, order, sequence, batcher, ranks, epoch_length)


def build(request: OrderRequest) -> Planner:
    """Return the planner of a request. Raises ConfigError."""
    order = Order.resolve(request.subset, **request.parameters)
    length = EpochLength.resolve(Lanes(order).steps, **request.epoch_length)
    return plan(
        request.subset,
        order,
        request.ranks,
        lengths=request.lengths,
        epoch_length=length,
        identity=request.marks,
    )
