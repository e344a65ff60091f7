"""Kinds "packed" and "budgeted": samples put together by length, in rows or batches.

Owns the pass as a row of bins. The pass's sequence of samples is cut into windows of about equal
size; those of a window are permuted by key and packed, as a function of their lengths; bins that
come sorted by length are permuted by another key. Rows that are cut from permuted samples are not:
the pieces of a sample stay together, so that it is decoded for one step as a rule. Nothing passes
from one window to the next, so any step can be had without those before it; only the number of bins
before a window must be known, which is counted once a pass. How many steps a pass has depends on
which samples meet in its windows, and so differs from pass to pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.bins import Bins, Packer
from rayingest.plan.order.kinds import OrderRequest
from rayingest.plan.order.packing import Packing
from rayingest.plan.order.parameters import Order, default_window
from rayingest.plan.order.planner import (
    ALONE,
    Kind,
    Planner,
    RankSlice,
    Rows,
    Steps,
    reads_per_block,
    repeat_backwards,
)
from rayingest.plan.order.randomness import fold, permutation
from rayingest.plan.order.sequence import BlockSequence, LastUsed, Sequence
from rayingest.plan.order.step_samples import Layout, StepSamples
from rayingest.plan.order.subset import Subset
from rayingest.plan.order.token_budget import Budget


@dataclass(frozen=True, eq=False)
class _Window:
    """The bins of a window: bin `turn[i]` is number `first + i` of the pass's.

    `position` to `expires` are of the window's samples; `expires` is the first step of the pass
    that needs nothing of the sample's block for this window.
    """

    begin: int
    end: int
    first: int
    turn: np.ndarray
    bins: Bins
    position: np.ndarray
    block: np.ndarray
    ordinal: np.ndarray
    length: np.ndarray
    expires: np.ndarray

    def pieces(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all pieces of these bins of the pass, and how many each bin has."""
        chosen = self.turn[numbers - self.first]
        begins = self.bins.begins[chosen]
        counts = self.bins.begins[chosen + 1] - begins
        first = np.repeat(begins - (np.cumsum(counts) - counts), counts)
        return np.arange(counts.sum()) + first, counts


@dataclass(frozen=True)
class _Pieces:
    """Pieces of samples: the step's row that each is in, its sample, and the part of that it is."""

    row: np.ndarray
    block: np.ndarray
    ordinal: np.ndarray
    length: np.ndarray
    position: np.ndarray
    expires: np.ndarray
    window_begin: np.ndarray
    window_end: np.ndarray
    begin: np.ndarray
    end: np.ndarray


class BinBatcher:
    """Steps of `batch` bins: packed rows over all ranks, or a batch of limited size for each rank.

    `lengths` are by ordinal.
    """

    most_steps = 1

    def __init__(
        self, order: Order, packer: Packer, lengths: np.ndarray, sequence: Sequence
    ) -> None:
        assert order.window is not None
        self.order, self.packer = order, packer
        self._lengths, self._sequence = lengths, sequence
        count = -(-order.samples // order.window)
        # Python integers: the product may be more than 2**63.
        self._window_begins = np.arange(count + 1, dtype=object) * order.samples // count
        self._firsts: LastUsed[int, np.ndarray] = LastUsed(self._count_bins)
        # A step may take bins of two windows.
        self._windows: LastUsed[tuple[int, int], _Window] = LastUsed(self._pack)

    def steps(self, pass_number: int) -> Steps:
        return Steps(self.bins_of(pass_number), self.order.batch, self.order.partial)

    def bins_of(self, pass_number: int) -> int:
        """Return how many bins a pass has."""
        return int(self._first_bins(pass_number)[-1])

    def rows(self, pass_number: int, step: int, count: int, numbers: np.ndarray) -> Rows:
        wanted, valid = repeat_backwards(
            step * self.order.batch + numbers, self.bins_of(pass_number)
        )
        parts = [self._take(step, *part) for part in self._by_window(pass_number, wanted)]
        pieces = _Pieces(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        if isinstance(self.packer, Packing):
            return self._packed(pieces, valid)
        return Rows(
            pieces.position,
            valid[pieces.row],
            _latest(pieces.block, pieces.expires),
            pieces.window_begin,
            pieces.window_end,
            size=1,
        )

    def block_expires(self, samples: StepSamples, row: int, position: int, step: int) -> int | None:
        return None

    def reads_per_block(self, world_size: int) -> float:
        return reads_per_block(self.order.batch, 1, world_size)

    def _packed(self, pieces: _Pieces, valid: np.ndarray) -> Rows:
        """List each sample once, with a layout that says where its pieces are."""
        _, which, sample = np.unique(pieces.ordinal, return_index=True, return_inverse=True)
        in_order = np.argsort(pieces.row, kind="stable")
        where = pieces.row, sample, pieces.begin, pieces.end
        layout = Layout(
            self.packer.limit, len(valid), valid, *(column[in_order] for column in where)
        )
        return Rows(
            pieces.position[which],
            np.ones(len(which), bool),
            _latest(pieces.block[which], pieces.expires[which]),
            pieces.window_begin[which],
            pieces.window_end[which],
            count=len(valid),
            length=pieces.length[which],
            layout=layout,
            size=len(valid),
        )

    def _by_window(
        self, pass_number: int, numbers: np.ndarray
    ) -> Iterator[tuple[_Window, np.ndarray, np.ndarray]]:
        """Yield these bins by the windows that they are in, and the place of each among them."""
        rows = np.arange(len(numbers))
        window = np.searchsorted(self._first_bins(pass_number), numbers, side="right") - 1
        for number in np.unique(window).tolist():
            own = window == number
            yield self._windows[pass_number, number], numbers[own], rows[own]

    def _take(
        self, step: int, window: _Window, numbers: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return the columns of `_Pieces` of every piece of these bins."""
        pieces, counts = window.pieces(numbers)
        sample = window.bins.sample[pieces]
        columns = (window.block, window.ordinal, window.length, window.position)
        # A row of padding may repeat a block that is past.
        expires = np.maximum(window.expires[sample], step + 1)
        begin, end = np.broadcast_to(np.array([[window.begin], [window.end]]), (2, len(pieces)))
        return (
            np.repeat(rows, counts),
            *(column[sample] for column in columns),
            expires,
            begin,
            end,
            window.bins.begin[pieces],
            window.bins.end[pieces],
        )

    def _first_bins(self, pass_number: int) -> np.ndarray:
        """Return how many bins are before each window of a pass, and in all of it."""
        return self._firsts[0 if self.order.seed is None else pass_number]

    def _count_bins(self, pass_number: int) -> np.ndarray:
        """int64[windows + 1]."""
        counts = []
        for begin, end in zip(self._window_begins[:-1], self._window_begins[1:], strict=True):
            located = self._sequence.locate(pass_number, np.arange(begin, end))
            lengths = self._lengths[located.ordinal]
            counts.append(self.packer.count(lengths))
        # The last window makes the ranks' numbers of steps equal, where bins can be split.
        counts[-1] = min(counts[-1] + -sum(counts) % self.order.batch, self.packer.most(lengths))
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    def _pack(self, which: tuple[int, int]) -> _Window:
        """Permute and pack a window, given by pass and number."""
        pass_number, number = which
        seed, batch = self.order.seed, self.order.batch
        begin, end = self._window_begins[number : number + 2]
        first, last = self._first_bins(pass_number)[number : number + 2].tolist()
        position, turn = np.arange(begin, end, dtype=np.int64), np.arange(last - first)
        if seed is not None:
            key = fold("window", seed, pass_number, 0, number)
            position = begin + permutation(end - begin, key)
        if seed is not None and self.packer.sorted_by_length:
            turn = permutation(last - first, fold("groups", seed, pass_number, number))
        block, _, ordinal, _ = self._sequence.locate(pass_number, position)
        length = self._lengths[ordinal].astype(np.int64)
        bins = self.packer.bins(length, last - first)
        step = np.empty(len(bins), np.int64)
        step[turn] = (first + np.arange(len(turn))) // batch
        last_step = np.zeros(end - begin, np.int64)
        np.maximum.at(last_step, bins.sample, np.repeat(step, np.diff(bins.begins)))
        expires = np.minimum(_latest(block, last_step) + 1, self.steps(pass_number).count)
        return _Window(begin, end, first, turn, bins, position, block, ordinal, length, expires)


def resolve(
    subset: Subset,
    lengths: np.ndarray,
    packer: Packer,
    *,
    batch: int,
    partial: str,
    seed: int | None = None,
    window: int | None = None,
    lanes: int | None = None,
) -> Order:
    """Return the order of bins of samples of these lengths, by ordinal. Raises ConfigError."""
    if lanes not in (None, 1):
        raise ConfigError(
            f"lanes={lanes} has no meaning here: packed and budgeted orders have one lane; "
            "leave lanes out"
        )
    total = 0
    for ordinals in subset.ordinals():
        some = lengths[ordinals]
        total += int(some.sum(dtype=np.int64))
        if packer.longest is not None and some.max() > packer.longest:
            raise _too_long(ordinals, some, packer, packer.longest)
    if not total:
        raise ConfigError(
            "all samples have length 0: a batch would be empty; check the field of the lengths"
        )
    samples_per_step = max(1, round(subset.num_samples * batch * packer.limit / total))
    if window is None:
        window = default_window(subset, samples_per_step)
    window = max(1, min(window, subset.num_samples))
    steps = -(-window // samples_per_step)
    return Order(subset.num_samples, batch, partial, seed, 1, steps, window)


def plan(
    subset: Subset,
    order: Order,
    packer: Packer,
    lengths: np.ndarray,
    ranks: RankSlice = ALONE,
    *,
    identity: Mapping[str, Any] | None = None,
) -> Planner:
    """Return a rank's planner of bins. Raises ConfigError where a pass has no step."""
    sequence = BlockSequence(subset, order.seed)
    batcher = BinBatcher(order, packer, lengths, sequence)
    bins = batcher.bins_of(0)
    if not batcher.steps(0).count:
        raise ConfigError(
            f"{bins} {packer.row} are less than one global batch of {order.batch}: with "
            "partial='drop' no step is left; make the batch smaller, or pass partial='pad' or "
            "'short'"
        )
    total = sum(int(lengths[own].sum(dtype=np.int64)) for own in subset.ordinals())
    kind = Kind(
        "packed" if isinstance(packer, Packing) else "budgeted",
        identity={"bins": f"{packer}, windows of {order.window}", **(identity or {})},
        words=f", {packer}",
        row=f"{packer.row} each, {total / (bins * packer.limit):.1%} filled",
        varies=True,
        no_skip="a replacement would not be as long as the sample that it replaces; "
        "leave bad samples out with .filter",
    )
    return Planner(kind, order, sequence, batcher, ranks)


def build(request: OrderRequest) -> Planner:
    """Return the planner of a request with a `packing`, or with `max_tokens`.

    Raises ConfigError.
    """
    assert request.lengths is not None
    parameters, options = dict(request.parameters), request.options
    packer: Packer
    if "packing" in options:
        packer = options["packing"]
    else:
        packer = Budget(options["max_tokens"], request.ranks.world_size, options["multiple_of"])
        parameters["batch"] = request.ranks.world_size
    order = resolve(request.subset, request.lengths, packer, **parameters)
    return plan(
        request.subset, order, packer, request.lengths, request.ranks, identity=request.marks
    )


def _too_long(
    ordinals: np.ndarray, lengths: np.ndarray, packer: Packer, longest: int
) -> ConfigError:
    over = np.flatnonzero(lengths > longest)
    others = f" ({len(over) - 1:,} more samples near it are too long)" if len(over) > 1 else ""
    return ConfigError(
        f"sample {ordinals[over[0]]} {packer.too_long(int(lengths[over[0]]))}{others}"
    )


def _latest(key: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return for each entry the largest `step` of all entries with the same key; int64."""
    _, which = np.unique(key, return_inverse=True)
    largest = np.zeros(which.max() + 1, np.int64)
    np.maximum.at(largest, which, step)
    return np.asarray(largest[which])
