"""The planner: for any epoch and step, a rank's samples. A pure function with a small cache in front of it.

Owns the walk from rows to lanes, windows, the epoch's sequence and blocks. Asking for steps in order is cheap
(a window's permutation is kept while it lasts); asking for any other step gives the same answer.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from rayingest.plan.batching import Share, check_ranks, share
from rayingest.plan.epoch import EpochSequence
from rayingest.plan.keys import MAX_SORTED, fold, permutation, permute
from rayingest.plan.manifest import Manifest
from rayingest.plan.order import Order

_PIECE = 16384
"""Of a window too large to keep whole, up to this many offsets are permuted at once: numpy costs most per call."""


@dataclass(frozen=True)
class Picks:
    """A rank's samples of one step, in row order; arrays of one length.

    `rows` is the number of rows of the batch. Where a rank has none (a short last batch), the arrays still name one
    sample, whose fields give the empty batch its columns. `until` is the first step of the epoch at which nothing of
    the sample's window is left to take.
    """

    epoch: int
    step: int
    rows: int
    block: np.ndarray
    row: np.ndarray
    ordinal: np.ndarray
    valid: np.ndarray
    until: np.ndarray


class Planner:
    """One rank's view of the order."""

    def __init__(
        self, manifest: Manifest, order: Order, rank: int = 0, world_size: int = 1, uneven: bool = False
    ) -> None:
        check_ranks(order.batch, rank, world_size, uneven)
        self.manifest, self.order, self.rank, self.world_size = manifest, order, rank, world_size
        self._epochs: OrderedDict[int, EpochSequence] = OrderedDict()
        self._pieces: dict[int, tuple[tuple[int, int], int, np.ndarray]] = {}

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch."""
        return self.order.steps

    def picks(self, epoch: int, step: int) -> Picks:
        """The samples of this step; raises IndexError where the epoch has no such step."""
        if not 0 <= step < self.steps_per_epoch:
            raise IndexError(f"step {step} of an epoch of {self.steps_per_epoch} steps")
        mine = share(self.order, step, self.rank, self.world_size)
        rows = len(mine)
        if not rows:
            mine = Share(np.zeros(1, np.int64), np.full(1, step * self.order.lane_batch), np.ones(1, bool))
            mine = Share(mine.lane, np.minimum(mine.position, self.order.lane_samples[0] - 1), mine.valid)
        place, until = self._places(epoch, mine)
        sequence = self._sequence(epoch)
        block, row = sequence.locate(place)
        if self.order.seed is None:
            last_place = place - row + self.manifest.samples[block] - 1
            # A row of padding may repeat a block that is past.
            until = np.clip(last_place // self.order.batch + 1, step + 1, self.steps_per_epoch)
        return Picks(epoch, step, rows, block, row, self.manifest.first_ordinal[block] + row, mine.valid, until)

    def _places(self, epoch: int, mine: Share) -> tuple[np.ndarray, np.ndarray]:
        """Places in the epoch's sequence, after each window's permutation, and each window's `until`."""
        order = self.order
        if order.seed is None:
            return mine.position, mine.position
        starts = np.flatnonzero(np.r_[True, mine.lane[1:] != mine.lane[:-1]])
        lane = mine.lane[starts]
        lowest = np.minimum.reduceat(mine.position, starts)
        number, begin, end = order.windows(lane, lowest // order.lane_batch)
        counts = np.diff(np.r_[starts, len(mine)])
        offset = mine.position - np.repeat(begin, counts)
        mixed = self._mix(epoch, lane, number, end - begin, offset, starts, counts)
        place = np.repeat(order.lane_begin[lane] + begin, counts) + mixed
        until = np.where(end >= order.lane_samples[lane], order.steps, -(-end // order.lane_batch))
        return place, np.repeat(until, counts)

    def _mix(
        self,
        epoch: int,
        lane: np.ndarray,
        number: np.ndarray,
        size: np.ndarray,
        offset: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
    ) -> np.ndarray:
        """Where each window's permutation sends the offsets; one run of offsets a lane."""
        mixed = np.empty(len(offset), np.int64)
        lowest, highest = np.minimum.reduceat(offset, starts), np.maximum.reduceat(offset, starts)
        columns = (array.tolist() for array in (lane, number, size, lowest, highest, starts, counts))
        for *window, start, count in zip(*columns, strict=True):
            begin, piece = self._piece(epoch, *window)
            run = slice(start, start + count)
            mixed[run] = piece[offset[run] - begin]
        return mixed

    def _piece(self, epoch: int, lane: int, number: int, size: int, low: int, high: int) -> tuple[int, np.ndarray]:
        """A window's permutation from some offset on, `low` to `high` in it; kept while the lane's steps are in it."""
        kept = self._pieces.get(lane)
        if kept is None or kept[0] != (epoch, number) or low < kept[1] or high >= kept[1] + len(kept[2]):
            key = fold("window", self.order.seed or 0, epoch, lane, number)
            if size <= MAX_SORTED:
                kept = (epoch, number), 0, permutation(size, key).astype(np.uint16)
            else:
                ahead = _PIECE * lane // self.order.lanes  # lanes come to the end of their pieces in turn
                end = min(size, ((high + ahead) // _PIECE + 1) * _PIECE - ahead)
                kept = (epoch, number), low, permute(np.arange(low, end), size, key)
            self._pieces[lane] = kept
        return kept[1], kept[2]

    def _sequence(self, epoch: int) -> EpochSequence:
        """This epoch's sequence; two are kept, as reading runs ahead across an epoch's end."""
        if epoch not in self._epochs:
            self._epochs[epoch] = EpochSequence(self.manifest, self.order, epoch)
            if len(self._epochs) > 2:
                self._epochs.popitem(last=False)
        self._epochs.move_to_end(epoch)
        return self._epochs[epoch]
