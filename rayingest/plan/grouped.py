"""Orders whose rows are groups of samples, put together by length: packed rows.

Owns the cycle as a row of groups. The cycle's sequence of samples is cut into windows of about equal size; those of a
window are permuted by key and grouped, as a function of their lengths, and the groups are permuted by another key.
Nothing passes from one window to the next, so any step can be had without those before it; only how many groups there
are before a window must be known, which is counted once a cycle. How many steps a cycle has depends on which samples
meet in its windows, and so differs from cycle to cycle: steps are asked for by epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.batching import bounds
from rayingest.plan.keys import fold, permutation
from rayingest.plan.layout import Layout
from rayingest.plan.manifest import Manifest
from rayingest.plan.order import Order, default_window
from rayingest.plan.packing import Groups, Packing
from rayingest.plan.planner import Picks, Planner
from rayingest.plan.view import View

_KEPT = 2
"""Windows and cycles: a step may take groups of two windows, and reading runs ahead across a cycle's end."""

T = TypeVar("T")


@dataclass(frozen=True)
class GroupedOrder(Order):
    """An order of groups: `batch` of them a step; windows are of up to `window` samples.

    `window_steps` is how many steps a window makes on the average, `total_length` that of all samples. `steps`,
    `full_steps` and `tail` mean nothing here.
    """

    window: int
    packing: Packing
    total_length: int

    def __str__(self) -> str:
        return f"{self.packing}, windows of {self.window}"

    @property
    def window_samples(self) -> int:
        return self.window

    @classmethod
    def over(
        cls,
        view: View,
        lengths: np.ndarray,
        packing: Packing,
        *,
        batch: int,
        partial: str,
        seed: int | None = None,
        window: int | None = None,
        lanes: int | None = None,
    ) -> GroupedOrder:
        """The order over a view's samples of these lengths, by ordinal. Raises ConfigError."""
        if lanes not in (None, 1):
            raise ConfigError(f"lanes={lanes}: packed rows come from one lane; leave it out")
        total = 0
        for ordinals in view.ordinals():
            some = lengths[ordinals]
            total += int(some.sum(dtype=np.int64))
            if not packing.cut and some.max() > packing.length:
                raise _too_long(ordinals, some, packing.length)
        if not total:
            raise ConfigError("all samples have length 0: there is nothing to pack")
        step_samples = max(1, round(view.num_samples * batch * packing.length / total))
        if window is None:
            window = default_window(view, step_samples)
        window = max(1, min(window, view.num_samples))
        steps = -(-window // step_samples)
        return cls(view.num_samples, batch, partial, seed, 1, steps, window, packing, total)


def _too_long(ordinals: np.ndarray, lengths: np.ndarray, longest: int) -> ConfigError:
    places = np.flatnonzero(lengths > longest)
    others = f", and {len(places) - 1:,} more around it are" if len(places) > 1 else ""
    return ConfigError(
        f"sample {ordinals[places[0]]} is {lengths[places[0]]:,} long, more than a packed row of {longest:,}{others}: "
        "cut samples (cut=True), shorten them in .map, leave them out with .filter, or take a longer row"
    )


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
        return np.arange(counts.sum()) + np.repeat(begins - (np.cumsum(counts) - counts), counts), counts


class GroupedPlanner(Planner):
    """One rank's part of an order of groups: rows [r B / W, (r + 1) B / W) of every step's B packed rows."""

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
                f"{self.groups_in(0)} packed rows are less than one global batch of {order.batch}: nothing would be "
                "left; make the batch smaller, or take partial='pad' or 'short'"
            )

    def steps_in(self, epoch: int) -> int:
        groups = self.groups_in(epoch)
        return groups // self.order.batch + (self.order.partial != "drop" and groups % self.order.batch > 0)

    def groups_in(self, cycle: int) -> int:
        """How many packed rows a cycle has."""
        return int(self._first_groups(cycle)[-1])

    def filled(self, cycle: int) -> float:
        """Which part of a cycle's packed rows is filled, 0 to 1."""
        return self.order.total_length / (self.groups_in(cycle) * self.order.packing.length)

    def run(self, epoch: int, step: int, count: int) -> list[Picks]:
        return [self.picks(epoch, step)]

    def picks(self, epoch: int, step: int) -> Picks:
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
        row, place, block, in_block, ordinal, length, until, window_begin, window_end, begin_, end_ = (
            np.concatenate(columns) for columns in zip(*parts, strict=True)
        )
        _, which, sample = np.unique(ordinal, return_index=True, return_inverse=True)
        pieces = np.argsort(row, kind="stable") if len(numbers) else np.zeros(0, np.int64)
        layout = Layout(
            self.order.packing.length,
            len(numbers),
            valid,
            *(column[pieces] for column in (row, sample, begin_, end_)),
        )
        return Picks(
            epoch,
            step,
            epoch,
            len(numbers),
            block[which],
            in_block[which],
            ordinal[which],
            np.ones(len(which), bool),
            _latest(block[which], until[which]),
            place[which],
            window_begin[which],
            window_end[which],
            length[which],
            layout,
        )

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
        columns = (window.place, window.block, window.row, window.ordinal, window.length)
        # A row of padding may repeat a block that is past.
        until = np.maximum(window.until[sample], step + 1)
        begin, end = np.broadcast_to(np.array([[window.begin], [window.end]]), (2, len(pieces)))
        parts = window.groups.begin[pieces], window.groups.end[pieces]
        return np.repeat(rows, counts), *(column[sample] for column in columns), until, begin, end, *parts

    def _first_groups(self, cycle: int) -> np.ndarray:
        """int64[windows + 1]: how many groups there are before each window of a cycle, and in all of it."""

        def counted() -> np.ndarray:
            windows = zip(self._window_begins[:-1], self._window_begins[1:], strict=True)
            count = self.order.packing.count
            counts = [count(self._of[self.locate(cycle, np.arange(begin, end))[2]]) for begin, end in windows]
            return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

        return _kept(self._firsts, 0 if self.order.seed is None else cycle, counted)

    def _window(self, cycle: int, number: int) -> _Window:
        def made() -> _Window:
            begin, end = self._window_begins[number : number + 2]
            first, last = self._first_groups(cycle)[number : number + 2].tolist()
            place, turn = np.arange(begin, end, dtype=np.int64), np.arange(last - first)
            if self.order.seed is not None:
                place = begin + permutation(end - begin, fold("window", self.order.seed, cycle, 0, number))
                turn = permutation(last - first, fold("groups", self.order.seed, cycle, number))
            block, row, ordinal = self.locate(cycle, place)
            length = self._of[ordinal].astype(np.int64)
            groups = self.order.packing.groups(length)
            step = np.empty(len(groups), np.int64)
            step[turn] = (first + np.arange(len(turn))) // self.order.batch
            last_step = np.zeros(end - begin, np.int64)
            np.maximum.at(last_step, groups.sample, np.repeat(step, np.diff(groups.begins)))
            until = np.minimum(_latest(block, last_step) + 1, self.steps_in(cycle))
            return _Window(begin, end, first, turn, groups, place, block, row, ordinal, length, until)

        return _kept(self._windows, (cycle, number), made)


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
