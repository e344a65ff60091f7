"""The planner: for any epoch and step, a rank's samples. A pure function with a small cache in front of it.

Owns the walk from rows to lanes, windows, the epoch's sequence and blocks. Asking for steps in order is cheap
(a window's permutation is kept while it lasts); asking for any other step gives the same answer.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from rayingest.plan.order.batching import Share, check_ranks, share
from rayingest.plan.order.buckets import by_length, turns
from rayingest.plan.order.epoch_length import Calendar
from rayingest.plan.order.keys import MAX_SORTED, fold, permutation, permute
from rayingest.plan.order.manifest import Counts, Manifest
from rayingest.plan.order.order import Order
from rayingest.plan.order.runs import runs
from rayingest.plan.order.sequence import EpochSequence
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import View

_PIECE = 16384
"""Of a window too large to keep whole, up to this many offsets are permuted at once: numpy costs most per call."""


class Planner:
    """One rank's part of the order, over all samples or a `view`; epochs are the `calendar`'s, or once through.

    `lengths`, where given (by ordinal), bring samples of similar length together in a step; an order in windows only.
    """

    def __init__(
        self,
        manifest: Manifest,
        order: Order,
        rank: int = 0,
        world_size: int = 1,
        uneven: bool = False,
        *,
        view: View | None = None,
        calendar: Calendar | None = None,
        lengths: np.ndarray | None = None,
    ) -> None:
        check_ranks(order.batch, rank, world_size, uneven)
        self.manifest, self.order, self.rank, self.world_size = manifest, order, rank, world_size
        self.view = View.whole(manifest) if view is None else view
        self.calendar = Calendar(order.steps, order.steps) if calendar is None else calendar
        self._lengths = lengths
        self._cycles: OrderedDict[int, EpochSequence] = OrderedDict()
        self._pieces: dict[int, tuple[tuple[int, int], int, np.ndarray]] = {}

    @property
    def views(self) -> tuple[View, ...]:
        """The samples there are, of each source."""
        return (self.view,)

    @property
    def num_samples(self) -> int:
        """How many samples there are, of all sources."""
        return sum(view.num_samples for view in self.views)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the first epoch; of all others too, where they do not depend on which samples meet."""
        return self.steps_in(0)

    def steps_in(self, epoch: int) -> int:
        """Steps of an epoch, the same on every rank."""
        return self.calendar.epoch_steps

    @property
    def fingerprint(self) -> str:
        """What a position is one in, as far as the order's parameters do not say."""
        return self.manifest.fingerprint

    def step_samples(self, epoch: int, step: int) -> StepSamples:
        """The samples of this step; raises IndexError where the epoch has no such step."""
        if not 0 <= step < self.calendar.epoch_steps:
            raise IndexError(f"step {step} of an epoch of {self.calendar.epoch_steps} steps")
        cycle, at = self.calendar.locate(epoch, step)
        mine = self._share(cycle, at)
        rows = len(mine)
        if not rows:
            mine = Share(
                np.zeros(1, np.int64), np.full(1, at * self.order.lane_batch), np.ones(1, bool)
            )
            mine = Share(
                mine.lane, np.minimum(mine.position, self.order.lane_samples[0] - 1), mine.valid
            )
        # A lane's window is that of the first of its rows, which matters in a last step alone.
        starts, counts = runs(mine.lane)
        first = np.minimum.reduceat(mine.position, starts) // self.order.lane_batch
        asked = np.repeat(first, counts)
        place, until, window_begin, window_end = self._places(
            cycle, mine.lane, mine.position, asked
        )
        block, row, ordinal = self.locate(cycle, place)
        if self.order.seed is None:
            until = self.last_use(block, epoch, step)
        else:
            until = self.calendar.step_in(epoch, cycle, 0) + until
        where = block, row, ordinal
        return StepSamples(
            epoch, step, cycle, rows, *where, mine.valid, until, place, window_begin, window_end
        )

    def locate(self, cycle: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Block, row in the block and ordinal of the samples at these places of a cycle's sequence; int64 each."""
        block, nth = self._sequence(cycle).locate(places)
        row = self.view.row(block, nth)
        return block, row, self.manifest.first_ordinal[block] + row

    def replacement(self, samples: StepSamples, row: int, place: int) -> tuple[int, int, int, int]:
        """The sample at a place of the window of a row's sample: block, row in the block, ordinal, and `until`."""
        block, row_in_block, ordinal = self.locate(samples.pass_number, np.array([place]))
        until = (
            samples.expires[row]
            if self.order.seed is not None
            else self.last_use(block, samples.epoch, samples.step)[0]
        )
        return int(block[0]), int(row_in_block[0]), int(ordinal[0]), int(until)

    def last_use(self, block: np.ndarray, epoch: int, step: int) -> np.ndarray:
        """In file order, the first later step of the cycle at which nothing of these blocks is left to take."""
        cycle, at = self.calendar.locate(epoch, step)
        last_place = self.view.first_place[block] + self.view.samples[block] - 1
        # A row of padding may repeat a block that is past.
        until = np.clip(last_place // self.order.batch + 1, at + 1, self.order.steps)
        return np.asarray(self.calendar.step_in(epoch, cycle, 0) + until)

    def _share(self, cycle: int, step: int) -> Share:
        """This rank's rows of a step of a cycle."""
        return share(self.order, step, self.rank, self.world_size)

    def run(self, epoch: int, step: int, count: int) -> list[StepSamples]:
        """The samples of this step and of those behind it, as `samples` gives them: of `count` steps, or of fewer.

        Many small steps take hardly longer than one.
        """
        cycle, at = self.calendar.locate(epoch, step)
        count = min(count, self.calendar.epoch_steps - step, self.order.full_steps - at)
        if count < 2 or self.order.seed is None:
            return [self.step_samples(epoch, step)]
        one, steps = self._share(cycle, at), np.arange(count)
        rows = len(one)
        if not rows:
            return [self.step_samples(epoch, step)]
        lane, step_of = np.tile(one.lane, count), np.repeat(steps, rows)
        by_lane = np.argsort(lane, kind="stable")
        position = np.tile(one.position, count) + step_of * self.order.lane_batch
        found = self._places(cycle, lane[by_lane], position[by_lane], at + step_of[by_lane])
        place, until, window_begin, window_end = (np.empty_like(array) for array in found)
        for array, ordered in zip((place, until, window_begin, window_end), found, strict=True):
            array[by_lane] = ordered
        where = self.locate(cycle, place)
        until += self.calendar.step_in(epoch, cycle, 0)
        made = []
        for number in steps.tolist():
            own = slice(number * rows, (number + 1) * rows)
            block, row, ordinal = (array[own] for array in where)
            window = window_begin[own], window_end[own]
            at_step = epoch, step + number, cycle
            made.append(
                StepSamples(
                    *at_step, rows, block, row, ordinal, one.valid, until[own], place[own], *window
                )
            )
        return made

    def _places(
        self, cycle: int, lane: np.ndarray, position: np.ndarray, step: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Of rows by lane and step: places in the cycle's sequence, after each window's permutation, and each window's
        `until`, begin and end. `step` is that of the cycle in which the window is asked for.
        """
        order = self.order
        if order.seed is None:
            zero, end = np.broadcast_to(np.array([[0], [order.samples]]), (2, len(lane)))
            return position, position, zero, end
        starts, counts = runs(lane, step)
        lane = lane[starts]
        number, begin, end = order.windows(lane, step[starts])
        again, _ = runs(lane, number)  # a window lasts for steps
        lane, number, begin, end, starts = (
            array[again] for array in (lane, number, begin, end, starts)
        )
        counts = np.add.reduceat(counts, again)
        lane_begin, samples = order.lane_begin[lane], order.lane_samples[lane]
        offset = position - np.repeat(begin, counts)
        mixed = self._mix(cycle, lane, number, begin, end - begin, offset, starts, counts)
        place = np.repeat(lane_begin + begin, counts) + mixed
        until = np.where(end >= samples, order.steps, -(-end // order.lane_batch))
        whole = order.window_steps * order.lane_batch
        begin = np.maximum(0, np.minimum(begin, end - whole))
        end = np.minimum(samples, np.maximum(end, begin + whole))
        return place, *(
            np.repeat(array, counts) for array in (until, lane_begin + begin, lane_begin + end)
        )

    def _mix(
        self,
        cycle: int,
        lane: np.ndarray,
        number: np.ndarray,
        first: np.ndarray,
        size: np.ndarray,
        offset: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
    ) -> np.ndarray:
        """Where each window's permutation sends the offsets; one run of offsets a window."""
        mixed = np.empty(len(offset), np.int64)
        lowest, highest = np.minimum.reduceat(offset, starts), np.maximum.reduceat(offset, starts)
        columns = (
            array.tolist() for array in (lane, number, first, size, lowest, highest, starts, counts)
        )
        for *window, start, count in zip(*columns, strict=True):
            begin, piece = self._piece(cycle, *window)
            run = slice(start, start + count)
            mixed[run] = piece[offset[run] - begin]
        return mixed

    def _piece(
        self, cycle: int, lane: int, number: int, first: int, size: int, low: int, high: int
    ) -> tuple[int, np.ndarray]:
        """A window's permutation from some offset on, `low` to `high` in it; kept while the lane's steps are in it.

        The window begins at position `first` of the lane.
        """
        kept = self._pieces.get(lane)
        if (
            kept is None
            or kept[0] != (cycle, number)
            or low < kept[1]
            or high >= kept[1] + len(kept[2])
        ):
            key = fold("window", self.order.seed or 0, cycle, lane, number)
            if self._lengths is not None:
                kept = (
                    (cycle, number),
                    0,
                    self._bucketed(cycle, lane, first, permutation(size, key)),
                )
            elif size <= MAX_SORTED:
                kept = (cycle, number), 0, permutation(size, key).astype(np.uint16)
            else:
                ahead = (
                    _PIECE * lane // self.order.lanes
                )  # lanes come to the end of their pieces in turn
                end = min(size, ((high + ahead) // _PIECE + 1) * _PIECE - ahead)
                piece = permute(np.arange(low, end), size, key).astype(
                    np.min_scalar_type(size)
                )  # small: caches
                kept = (cycle, number), low, piece
            self._pieces[lane] = kept
        return kept[1], kept[2]

    def _bucketed(self, cycle: int, lane: int, first: int, mixed: np.ndarray) -> np.ndarray:
        """A window's permutation with samples of similar length in the same steps."""
        assert self._lengths is not None
        order = self.order
        *_, ordinal = self.locate(cycle, order.lane_begin[lane] + first + mixed)
        at, steps = first // order.lane_batch, len(mixed) // order.lane_batch
        turn = turns(at, steps, order.window_steps, order.seed or 0, cycle)
        return np.asarray(mixed[by_length(self._lengths[ordinal], order.lane_batch, turn)])

    def _population(self, cycle: int) -> Counts:
        """Of whose blocks a cycle's sequence is, and how many samples each has in it."""
        return self.view

    def _sequence(self, cycle: int) -> EpochSequence:
        """This cycle's sequence; two are kept, as reading runs ahead across its end."""
        if cycle not in self._cycles:
            self._cycles[cycle] = EpochSequence(self._population(cycle), self.order, cycle)
            if len(self._cycles) > 2:
                self._cycles.popitem(last=False)
        self._cycles.move_to_end(cycle)
        return self._cycles[cycle]
