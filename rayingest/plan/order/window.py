"""Kind "window": each sample once a pass, shuffled in windows or in file order.

Owns the lanes, their windows, and the batcher that takes rows from lanes, which the kinds
"weighted" and "sampler" use too:

- `Lanes`: where the lanes of a sequence and the windows of a lane begin and end.
- `Windows`: permutes the samples of each window, by keys of (seed, pass, lane, window). Lengths,
  where given, bring samples of similar length together in a step.
- `LaneBatcher`: in step s, positions [s b, (s + 1) b) of every lane, and at the tail what the lanes
  have left.

Asking for steps in order is cheap, because the permutation of a lane's window is kept while it
lasts; any other step gives the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rayingest.plan.order.kinds import OrderRequest
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import (
    ALONE,
    EpochLength,
    Kind,
    Planner,
    RankSlice,
    Rows,
    Steps,
    reads_per_block,
    repeat_backwards,
)
from rayingest.plan.order.randomness import MAX_SORTED, fold, permutation, permute
from rayingest.plan.order.sequence import BlockSequence, LaneSequence
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import Subset

_PIECE = 16384
"""Of a window too large to keep whole, at most this many offsets are permuted at once."""
_STAGGER = 2_654_435_769
"""2**32 over the golden ratio: multiples of it, modulo 2**32, spread evenly."""


class Lanes:
    """The lanes of an order, and the windows that each of them is cut into.

    Lane l owns positions [floor(l N / L), floor((l + 1) N / L)) of a pass's sequence. A window
    lasts `window_steps` steps; the first one of a lane is shorter by a part of that, unless one
    window covers the lane, so that lanes do not change windows together. What is left of a lane
    and makes less than a step joins the window before it.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.rows = order.batch // order.lanes
        """Samples that each lane gives to a step."""
        self.steps = Steps(order.samples, order.batch, order.partial)

    @cached_property
    def begin(self) -> np.ndarray:
        """int64[lanes + 1]: where each lane begins in the sequence; the last entry is its end."""
        order = self.order
        # Python integers: the product may be more than 2**63.
        bounds = np.arange(order.lanes + 1, dtype=object) * order.samples // order.lanes
        return bounds.astype(np.int64)

    @cached_property
    def samples(self) -> np.ndarray:
        """int64[lanes]: the samples of each lane."""
        return np.diff(self.begin)

    @cached_property
    def first_window_cut(self) -> np.ndarray:
        """int64[lanes]: steps by which each lane's first window is shorter."""
        order = self.order
        turn = np.arange(order.lanes, dtype=object) * _STAGGER % (1 << 32)
        cut = (turn * order.window_steps // (1 << 32)).astype(np.int64)
        return np.where(order.window_steps * self.rows >= self.samples, 0, cut)

    def windows(
        self, lane: np.ndarray, step: np.ndarray | int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return number, begin and end of the windows that these steps of these lanes lie in.

        Begin and end are positions in the lane. All int64.
        """
        length, rows = self.order.window_steps, self.rows
        samples, cut = self.samples[lane], self.first_window_cut[lane]
        number = (step + cut) // length
        begin = np.maximum(0, number * length - cut) * rows
        covered = length * rows >= samples
        joins = ~covered & (number > 0) & (samples - begin < rows)
        number = np.where(covered, 0, number - joins)
        begin = np.maximum(0, number * length - cut) * rows
        end = ((number + 1) * length - cut) * rows
        return number, begin, np.where(covered | (samples - end < rows), samples, end)


class _Placed(NamedTuple):
    """Rows of lanes after their windows are permuted; int64 arrays with one entry a row.

    `expires` is the first step of the pass that takes nothing of the row's window, or in file
    order of its block. The other names are those of `StepSamples`.
    """

    position: np.ndarray
    expires: np.ndarray
    window_begin: np.ndarray
    window_end: np.ndarray


class _Kept(NamedTuple):
    """A part of a window's permutation: entry i is where offset `begin` + i goes."""

    window: tuple[int, int]
    begin: int
    permuted: np.ndarray


class Windows:
    """The windows of an order in lanes over a sequence.

    `lengths` (by ordinal), where given, bring samples of similar length together in a step.
    """

    def __init__(
        self, lanes: Lanes, sequence: LaneSequence, lengths: np.ndarray | None = None
    ) -> None:
        self.lanes, self._sequence, self._lengths = lanes, sequence, lengths
        self._kept: dict[int, _Kept] = {}

    def place(
        self, pass_number: int, lane: np.ndarray, position: np.ndarray, step: np.ndarray
    ) -> _Placed:
        """Place rows given by lane and position in the lane; rows of a lane and step are together.

        `step` is the step of the pass whose window each row is taken from.
        """
        order, lanes = self.lanes.order, self.lanes
        if order.seed is None:
            zero, end = np.broadcast_to(np.array([[0], [order.samples]]), (2, len(lane)))
            return _Placed(position, self.block_expires(position), zero, end)
        starts, counts = runs(lane, step)
        lane = lane[starts]
        number, begin, end = lanes.windows(lane, step[starts])
        again, _ = runs(lane, number)  # a window lasts for several steps
        lane, number, begin, end, starts = (
            array[again] for array in (lane, number, begin, end, starts)
        )
        counts = np.add.reduceat(counts, again)
        lane_begin, samples = lanes.begin[lane], lanes.samples[lane]
        offset = position - np.repeat(begin, counts)
        mixed = self._permute(
            pass_number, (lane, number, begin, end - begin), offset, starts, counts
        )
        placed = np.repeat(lane_begin + begin, counts) + mixed
        expires = np.where(end >= samples, lanes.steps.count, -(-end // lanes.rows))
        # A window at a lane's end that is shorter than others covers a part of its neighbour: the
        # replacements of a bad sample come from it, and one unreadable block could take all of it.
        whole = order.window_steps * lanes.rows
        begin = np.maximum(0, np.minimum(begin, end - whole))
        end = np.minimum(samples, np.maximum(end, begin + whole))
        columns = (expires, lane_begin + begin, lane_begin + end)
        return _Placed(placed, *(np.repeat(column, counts) for column in columns))

    def block_expires(self, position: np.ndarray) -> np.ndarray:
        """Return, in file order, the first step of the pass after each position's block; int64."""
        return -(-self._sequence.block_end(position) // self.lanes.rows)

    def _permute(
        self,
        pass_number: int,
        windows: tuple[np.ndarray, ...],
        offset: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
    ) -> np.ndarray:
        """Return where each window's permutation sends its offsets; one run of offsets a window.

        `windows`: lane, number, begin in the lane, and size of each.
        """
        mixed = np.empty(len(offset), np.int64)
        lowest, highest = np.minimum.reduceat(offset, starts), np.maximum.reduceat(offset, starts)
        columns = (array.tolist() for array in (*windows, lowest, highest, starts, counts))
        for lane, number, begin, size, low, high, start, count in zip(*columns, strict=True):
            kept = self._kept.get(lane)
            if (
                kept is None
                or kept.window != (pass_number, number)
                or low < kept.begin
                or high >= kept.begin + len(kept.permuted)
            ):
                kept = self._permutation(pass_number, lane, number, begin, size, low, high)
                self._kept[lane] = kept
            run = slice(start, start + count)
            mixed[run] = kept.permuted[offset[run] - kept.begin]
        return mixed

    def _permutation(
        self, pass_number: int, lane: int, number: int, first: int, size: int, low: int, high: int
    ) -> _Kept:
        """Permute a window, of which offsets `low` to `high` are wanted.

        A window that is too large to keep whole is permuted from `low` on, as far as pays.
        """
        order, window = self.lanes.order, (pass_number, number)
        key = fold("window", order.seed or 0, pass_number, lane, number)
        if self._lengths is not None:
            return _Kept(window, 0, self._bucketed(pass_number, lane, first, size, key))
        if size <= MAX_SORTED:
            return _Kept(window, 0, permutation(size, key).astype(np.uint16))
        ahead = _PIECE * lane // order.lanes  # lanes come to the end of their pieces in turn
        end = min(size, ((high + ahead) // _PIECE + 1) * _PIECE - ahead)
        # The smallest type that holds them: caches.
        permuted = permute(np.arange(low, end), size, key).astype(np.min_scalar_type(size))
        return _Kept(window, low, permuted)

    def _bucketed(self, pass_number: int, lane: int, first: int, size: int, key: int) -> np.ndarray:
        """Permute a window, then cut it into its steps by length."""
        assert self._lengths is not None
        mixed, lanes = permutation(size, key), self.lanes
        ordinal = self._sequence.locate(pass_number, lanes.begin[lane] + first + mixed).ordinal
        turn = band_turns(
            first // lanes.rows,
            size // lanes.rows,
            lanes.order.window_steps,
            lanes.order.seed or 0,
            pass_number,
        )
        return np.asarray(mixed[sort_into_bands(self._lengths[ordinal], lanes.rows, turn)])


def band_turns(
    first: int, steps: int, window_steps: int, seed: int, pass_number: int
) -> np.ndarray:
    """Return a number for each step from `first` on, distinct in any `window_steps` steps in a row.

    It is the same for all lanes, so that a step's lanes give samples of about the same length,
    though they begin windows at different steps. int64[steps].
    """
    turn = permutation(window_steps, fold("buckets", seed, pass_number))
    return np.asarray(turn[(first + np.arange(steps)) % window_steps])


def sort_into_bands(lengths: np.ndarray, rows: int, turn: np.ndarray) -> np.ndarray:
    """Return the samples of these lengths in the order of their steps, `rows` a step; int64[n].

    `turn` has one number a step; the step with the least has the shortest samples. In a step,
    samples stay in the order in which they came. Those after the last whole step stay at the end.
    """
    full = len(turn) * rows
    bands = np.sort(np.argsort(lengths[:full], kind="stable").reshape(len(turn), rows), axis=1)
    rank = np.argsort(np.argsort(turn, kind="stable"), kind="stable")
    return np.concatenate([bands[rank].ravel(), np.arange(full, len(lengths))])


class LaneBatcher:
    """Equally many rows of a step from every lane; windows of each lane are permuted."""

    most_steps = 1 << 30

    def __init__(
        self, order: Order, sequence: LaneSequence, lengths: np.ndarray | None = None
    ) -> None:
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


def runs(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each run of rows that are equal in all columns begins, and its length; int64."""
    changed = np.zeros(max(0, len(columns[0]) - 1), bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    begins = np.flatnonzero(changed)
    starts = np.zeros(min(1, len(columns[0])) + len(begins), np.int64)
    np.add(begins, 1, out=starts[1:])
    counts = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1])
    counts[-1:] = len(columns[0]) - starts[-1:]
    return starts, counts


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
