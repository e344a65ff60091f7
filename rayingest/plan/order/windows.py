"""Permute the samples of each lane's windows, by keys of (seed, pass, lane, window).

Owns the way from a row of a lane to a position in the pass's sequence, and buckets: inside a
window, samples of similar length in the same step. Asking for steps in order is cheap, because the
permutation of a lane's window is kept while it lasts; any other step gives the same answer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rayingest.plan.order.arrays import runs
from rayingest.plan.order.keys import MAX_SORTED, fold, permutation, permute
from rayingest.plan.order.order import Lanes
from rayingest.plan.order.sequence import Sequence

_PIECE = 16384
"""Of a window too large to keep whole, at most this many offsets are permuted at once."""


class Placed(NamedTuple):
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

    def __init__(self, lanes: Lanes, sequence: Sequence, lengths: np.ndarray | None = None) -> None:
        self.lanes, self._sequence, self._lengths = lanes, sequence, lengths
        self._kept: dict[int, _Kept] = {}

    def place(
        self, pass_number: int, lane: np.ndarray, position: np.ndarray, step: np.ndarray
    ) -> Placed:
        """Place rows given by lane and position in the lane; rows of a lane and step are together.

        `step` is the step of the pass whose window each row is taken from.
        """
        order, lanes = self.lanes.order, self.lanes
        if order.seed is None:
            zero, end = np.broadcast_to(np.array([[0], [order.samples]]), (2, len(lane)))
            return Placed(position, self.block_expires(position), zero, end)
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
        return Placed(placed, *(np.repeat(column, counts) for column in columns))

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
