"""Orders of groups of samples, put together by length: packed rows, and batches of limited size.

Owns the cycle as a row of groups. The cycle's sequence of samples is cut into windows of about equal size; those of a
window are permuted by key and grouped, as a function of their lengths; groups that come sorted by that are permuted by
another key. Rows that are cut from permuted samples are not: pieces of a sample stay together, so that it is decoded
for one step as a rule. Nothing passes from one window to the next, so any step can be had without those before it;
only how many groups there are before a window must be known, which is counted once a cycle. How many steps a cycle has
depends on which samples meet in its windows, and so differs from cycle to cycle: steps are asked for by epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.batching import bounds
from rayingest.plan.order.bins import Groups
from rayingest.plan.order.keys import fold, permutation
from rayingest.plan.order.layout import Layout
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.packed_order import GroupedOrder
from rayingest.plan.order.packing import Packing
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import View

_KEPT = 2
"""Windows and cycles: a step may take groups of two windows, and reading runs ahead across a cycle's end."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class _Window:
    """A window's groups: group `turn[i]` is number `first + i` of the cycle's.

    `place`, `block`, `row`, `ordinal` and `length` are of the window's samples, `until` of their blocks: the first step
    of the cycle that needs nothing of them for this window.
    """

    begin: int
    end: int
    first: int
    turn: np.ndarray
    groups: Groups
    place: np.ndarray
    block: np.ndarray
    row: np.ndarray
    ordinal: np.ndarray
    length: np.ndarray
    until: np.ndarray

    def pieces(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All pieces of these groups, by their numbers in the cycle, and how many each group has."""
        chosen = self.turn[numbers - self.first]
        begins = self.groups.begins[chosen]
        counts = self.groups.begins[chosen + 1] - begins
        return np.arange(counts.sum()) + np.repeat(
            begins - (np.cumsum(counts) - counts), counts
        ), counts


class GroupedPlanner(Planner):
    """One rank's part of an order of groups: rows [r B / W, (r + 1) B / W) of every step's B packed rows.

    Or one of the W batches of limited size that each step has.
    """

    order: GroupedOrder

    def __init__(
        self,
        manifest: Manifest,
        order: GroupedOrder,
        lengths: np.ndarray,
        rank: int = 0,
        world_size: int = 1,
        uneven: bool = False,
        *,
        view: View | None = None,
    ) -> None:
        super().__init__(manifest, order, rank, world_size, uneven, view=view)
        self._of: np.ndarray = lengths
        count = -(-order.samples // order.window)
        self._window_begins = np.arange(count + 1, dtype=object) * order.samples // count
        self._firsts: OrderedDict[int, np.ndarray] = OrderedDict()
        self._windows: OrderedDict[tuple[int, int], _Window] = OrderedDict()
        if not self.steps_in(0):
            raise ConfigError(
                f"{self.groups_in(0)} {self.what} are less than one global batch of {order.batch}: nothing would be "
                "left; make the batch smaller, or take partial='pad' or 'short'"
            )

    @property
    def what(self) -> str:
        """What the groups are."""
        return "packed rows" if isinstance(self.order.grouping, Packing) else "batches for a rank"

    def steps_in(self, epoch: int) -> int:
        groups = self.groups_in(epoch)
        return groups // self.order.batch + (
            self.order.partial != "drop" and groups % self.order.batch > 0
        )

    def groups_in(self, cycle: int) -> int:
        """How many packed rows, or batches for a rank, a cycle has."""
        return int(self._first_groups(cycle)[-1])

    def filled(self, cycle: int) -> float:
        """Which part of what a cycle's groups may hold is filled, 0 to 1."""
        return self.order.total_length / (self.groups_in(cycle) * self.order.grouping.limit)

    def run(self, epoch: int, step: int, count: int) -> list[StepSamples]:
        return [self.step_samples(epoch, step)]

    def step_samples(self, epoch: int, step: int) -> StepSamples:
        steps, groups = self.steps_in(epoch), self.groups_in(epoch)
        if not 0 <= step < steps:
            raise IndexError(f"step {step} of an epoch of {steps} steps")
        first, batch = step * self.order.batch, self.order.batch
        there = batch if self.order.partial == "pad" else min(batch, groups - first)
        begin, end = bounds(there, self.rank, self.world_size)
        wanted = np.arange(first + begin, first + end, dtype=np.int64)
        valid = wanted < groups
        # As rows of one lane are repeated: the last ones, backwards.
        numbers = np.where(valid, wanted, groups - 1 - (wanted - groups) % groups)
        # Where a rank has no row, one is still named, whose fields give the empty batch its columns.
        parts = [self._part(epoch, step, *some) for some in self._by_window(epoch, numbers, first)]
        pieces = _Pieces(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        if isinstance(self.order.grouping, Packing):
            return self._packed(epoch, step, pieces, valid, self.order.grouping.limit)
        taken = valid[pieces.row] if len(numbers) else np.ones(len(pieces.row), bool)
        return _step_samples(
            epoch, step, len(pieces.row) if len(numbers) else 0, pieces, taken, size=1
        )

    def _packed(
        self, epoch: int, step: int, pieces: _Pieces, valid: np.ndarray, limit: int
    ) -> StepSamples:
        """Each sample once, and a layout that says where its pieces are."""
        _, which, sample = np.unique(pieces.ordinal, return_index=True, return_inverse=True)
        in_order = np.argsort(pieces.row, kind="stable") if len(valid) else np.zeros(0, np.int64)
        where = pieces.row, sample, pieces.begin, pieces.end
        layout = Layout(limit, len(valid), valid, *(column[in_order] for column in where))
        once = _Pieces(*(column[which] for column in vars(pieces).values()))
        samples = _step_samples(
            epoch, step, len(valid), once, np.ones(len(which), bool), size=max(1, len(valid))
        )
        return replace(samples, length=once.length, layout=layout)

    def _by_window(
        self, cycle: int, numbers: np.ndarray, otherwise: int
    ) -> Iterator[tuple[_Window, np.ndarray, np.ndarray]]:
        """These groups by the windows that they are in, and each one's place among them; for none, another one."""
        rows = np.arange(len(numbers))
        if not len(numbers):
            rows, numbers = np.zeros(1, np.int64), np.array([otherwise])
        window = np.searchsorted(self._first_groups(cycle), numbers, side="right") - 1
        for number in np.unique(window).tolist():
            mine = window == number
            yield self._window(cycle, number), numbers[mine], rows[mine]

    def _part(
        self, cycle: int, step: int, window: _Window, numbers: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Of every piece of these groups: its group's row, where its sample lies, and what part of it it is."""
        pieces, counts = window.pieces(numbers)
        sample = window.groups.sample[pieces]
        columns = (window.block, window.row, window.ordinal, window.length, window.place)
        # A row of padding may repeat a block that is past.
        until = np.maximum(window.until[sample], step + 1)
        bounds_ = np.broadcast_to(np.array([[window.begin], [window.end]]), (2, len(pieces)))
        parts = window.groups.begin[pieces], window.groups.end[pieces]
        return (
            np.repeat(rows, counts),
            *(column[sample] for column in columns),
            until,
            *bounds_,
            *parts,
        )

    def _first_groups(self, cycle: int) -> np.ndarray:
        """int64[windows + 1]: how many groups there are before each window of a cycle, and in all of it."""

        def counted() -> np.ndarray:
            windows = zip(self._window_begins[:-1], self._window_begins[1:], strict=True)
            grouping, counts = self.order.grouping, []
            for begin, end in windows:
                lengths = self._of[self.locate(cycle, np.arange(begin, end))[2]]
                counts.append(grouping.count(lengths))
            # The last window makes the ranks' numbers of steps equal, where groups can be split.
            counts[-1] = min(counts[-1] + -sum(counts) % self.order.batch, grouping.most(lengths))
            return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

        return _kept(self._firsts, 0 if self.order.seed is None else cycle, counted)

    def _window(self, cycle: int, number: int) -> _Window:
        def made() -> _Window:
            begin, end = self._window_begins[number : number + 2]
            first, last = self._first_groups(cycle)[number : number + 2].tolist()
            place, turn = np.arange(begin, end, dtype=np.int64), np.arange(last - first)
            if self.order.seed is not None:
                place = begin + permutation(
                    end - begin, fold("window", self.order.seed, cycle, 0, number)
                )
            if self.order.seed is not None and self.order.grouping.by_length:
                turn = permutation(last - first, fold("groups", self.order.seed, cycle, number))
            block, row, ordinal = self.locate(cycle, place)
            length = self._of[ordinal].astype(np.int64)
            groups = self.order.grouping.groups(length, last - first)
            step = np.empty(len(groups), np.int64)
            step[turn] = (first + np.arange(len(turn))) // self.order.batch
            last_step = np.zeros(end - begin, np.int64)
            np.maximum.at(last_step, groups.sample, np.repeat(step, np.diff(groups.begins)))
            until = np.minimum(_latest(block, last_step) + 1, self.steps_in(cycle))
            return _Window(
                begin, end, first, turn, groups, place, block, row, ordinal, length, until
            )

        return _kept(self._windows, (cycle, number), made)


@dataclass(frozen=True)
class _Pieces:
    """Pieces of samples, with the rank's group that each is in (`row`); the rest is of its sample."""

    row: np.ndarray
    block: np.ndarray
    in_block: np.ndarray
    ordinal: np.ndarray
    length: np.ndarray
    place: np.ndarray
    until: np.ndarray
    window_begin: np.ndarray
    window_end: np.ndarray
    begin: np.ndarray
    end: np.ndarray


def _step_samples(
    epoch: int, step: int, rows: int, pieces: _Pieces, valid: np.ndarray, size: int
) -> StepSamples:
    until = _latest(pieces.block, pieces.until)
    window = pieces.window_begin, pieces.window_end
    where = pieces.block, pieces.in_block, pieces.ordinal
    return StepSamples(
        epoch, step, epoch, rows, *where, valid, until, pieces.place, *window, size=size
    )


def _latest(block: np.ndarray, step: np.ndarray) -> np.ndarray:
    """For each sample, the latest of the steps of all samples in its block; int64."""
    _, which = np.unique(block, return_inverse=True)
    latest = np.zeros(which.max() + 1, np.int64)
    np.maximum.at(latest, which, step)
    return np.asarray(latest[which])


K = TypeVar("K")


def _kept(kept: OrderedDict[K, T], key: K, make: Callable[[], T]) -> T:
    """What is kept for a key, or made now; those asked for last are kept."""
    if key not in kept:
        kept[key] = make()
        if len(kept) > _KEPT:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return kept[key]
