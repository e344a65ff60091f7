"""Kind "mixed": the mixture says which source each row is from, each source which of its samples.

Owns batches and epochs as pieces of the mixture's endless sequence of rows, a source's samples one
after the other, pass after pass, and where in a batch a source's samples of a step lie: on the rows
that are the source's, which are spread over the batch, in the order of their lanes. So each rank
has about its share of every source, and reads about its share of every source's lanes, whatever the
number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any, NamedTuple

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.interleave import NEVER
from rayingest.plan.order.kinds import OrderRequest
from rayingest.plan.order.manifest import JoinedManifest
from rayingest.plan.order.mixture import Mixture
from rayingest.plan.order.parameters import Order, default_lanes, default_window
from rayingest.plan.order.planner import (
    ALONE,
    Kind,
    Planner,
    RankSlice,
    Rows,
    Steps,
    repeat_backwards,
)
from rayingest.plan.order.sequence import BlockSequence, JoinedSequence
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import Subset
from rayingest.plan.order.window import Lanes, Windows

_RUN_ROWS = 1 << 16
"""Rows of global batches that are planned together."""


class Draws(NamedTuple):
    """Draws of a source; int64 arrays of one length.

    `passes`: the pass over the source that each is in. `position` to `window_end` are as in
    `StepSamples`. `expires`: the first draw from which on nothing of the sample's window is taken.
    """

    passes: np.ndarray
    position: np.ndarray
    window_begin: np.ndarray
    window_end: np.ndarray
    expires: np.ndarray


class RepeatedSource:
    """A source's samples one after the other, pass after pass.

    The order is that of kind "window" with steps of one sample from each lane, the last of them
    short: draw k is sample k mod N of pass floor(k / N). Lanes come in the order of their
    bit-reversed numbers, so that any few draws in a row are from lanes all over the data.
    """

    def __init__(self, subset: Subset, order: Order) -> None:
        self.subset, self.order = subset, order
        self.sequence = BlockSequence(subset, order.seed)
        lanes = Lanes(order)
        self._full = lanes.steps.full
        self._windows = Windows(lanes, self.sequence)
        in_order = _bit_reversed(order.lanes)
        longer = in_order[lanes.samples[in_order] > self._full]
        self._lanes = np.concatenate([in_order, longer])

    def lanes(self, draws: np.ndarray) -> np.ndarray:
        """Return the lane that each draw is from; int64."""
        order = self.order
        index = draws % order.samples
        past = index - self._full * order.batch
        return np.asarray(self._lanes[np.where(past < 0, index % order.batch, order.batch + past)])

    def draw(self, draws: np.ndarray) -> Draws:
        """Return the positions of these draws."""
        passes, index = np.divmod(draws, self.order.samples)
        found = np.empty((4, len(draws)), np.int64)
        for number in np.unique(passes).tolist():
            own = np.flatnonzero(passes == number)
            found[:, own] = self._draw(number, index[own])
        return Draws(passes, *found)

    def block_end(self, pass_number: int, position: int) -> int:
        """Return, in file order, the first draw after the block of a position of a pass."""
        (end,) = self.sequence.block_end(np.array([position])).tolist()
        return int(pass_number * self.order.samples + end)

    def _draw(self, pass_number: int, index: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return position, window and `expires` of these draws of a pass."""
        order = self.order
        lane, step = self.lanes(index), index // order.batch
        by_lane = np.lexsort((step, lane))
        steps = step[by_lane]
        placed = np.empty((4, len(index)), np.int64)
        placed[:, by_lane] = self._windows.place(pass_number, lane[by_lane], steps, steps)
        position, expires, begin, end = placed
        expires = np.minimum(expires * order.batch, order.samples)
        return position, begin, end, pass_number * order.samples + expires


class MixedBatcher:
    """Steps of `batch` rows of a mixture; pass p is rows [p N, (p + 1) N) of it.

    `last_change` is the row from which on the weights stay the same.
    """

    def __init__(
        self,
        mixture: Mixture,
        sources: Several[RepeatedSource],
        order: Order,
        first: np.ndarray,
        last_change: int,
    ) -> None:
        self.mixture, self.sources, self.order = mixture, sources, order
        self._first, self._last_change = first, last_change
        self._steps = Steps(order.samples, order.batch, order.partial)
        self.most_steps = max(1, _RUN_ROWS // order.batch)

    def steps(self, pass_number: int) -> Steps:
        return self._steps

    def rows(self, pass_number: int, step: int, count: int, numbers: np.ndarray) -> Rows:
        order = self.order
        each = order.batch if step < self._steps.full else self._steps.tail
        wanted, valid = repeat_backwards(numbers, each)
        begin = pass_number * order.samples + step * order.batch
        source, draws = self._arrange(begin, each, count)
        rows = (np.arange(count)[:, None] * each + wanted).ravel()
        source, draws = source[rows], draws[rows]
        found = np.empty((5, len(source)), np.int64)
        for number in np.unique(source).tolist():
            own = np.flatnonzero(source == number)
            found[:, own] = self.sources[number].draw(draws[own])
        passes, position, window_begin, window_end, last = found
        expires = self._first_step_after(source, last, pass_number)
        # A row of padding may repeat a sample whose window is past.
        expires = np.maximum(expires, np.repeat(np.arange(count), len(numbers)) + step + 1)
        first = self._first[source]
        return Rows(
            position + first,
            np.tile(valid, count),
            expires,
            window_begin + first,
            window_end + first,
            passes=passes,
            source=source,
        )

    def block_expires(self, samples: StepSamples, row: int, position: int, step: int) -> int | None:
        assert samples.source is not None
        assert samples.passes is not None
        number = int(samples.source[row])
        source = self.sources[number]
        if source.order.seed is not None:
            return None
        end = source.block_end(int(samples.passes[row]), position - int(self._first[number]))
        after = self._first_step_after(np.array([number]), np.array([end]), samples.pass_number)
        return max(step + 1, int(after[0]))

    def reads_per_block(self, world_size: int) -> float:
        """Return about how often a block is read in each pass over its source."""
        sizes = [source.order.samples for source in self.sources]
        reads = (
            min(world_size, 1 + (world_size - 1) / source.order.lanes) for source in self.sources
        )
        return sum(each * size for each, size in zip(reads, sizes, strict=True)) / sum(sizes)

    def _arrange(self, begin: int, each: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return source and draw of each row of `count` steps of `each` rows, from row `begin` on.

        A source's draws of a step are sorted by lane, so that a rank reads few lanes.
        """
        source, draws = self.mixture.at(begin, begin + count * each)
        step = np.arange(count * each) // each
        for number in np.unique(source).tolist():
            if self.sources[number].order.lanes > 1:
                rows = np.flatnonzero(source == number)
                own = draws[rows]
                draws[rows] = own[np.lexsort((self.sources[number].lanes(own), step[rows]))]
        return source, draws

    def _first_step_after(
        self, source: np.ndarray, end: np.ndarray, pass_number: int
    ) -> np.ndarray:
        """Return the first step that takes none of each source's draws before `end`; int64.

        Steps are counted from the begin of a pass.
        """
        order, row = self.order, np.empty(len(source), np.int64)
        for number in np.unique(source).tolist():
            rows = np.flatnonzero(source == number)
            ends, which = np.unique(end[rows], return_inverse=True)
            last = self.mixture.row(number, ends - 1)
            # A draw that never comes is after one that comes before the last change.
            row[rows] = np.where(last < NEVER, last, self._last_change)[which]
        later, inside = np.divmod(row, order.samples)
        return (later - pass_number) * self._steps.count + inside // order.batch + 1


def source_order(
    subset: Subset,
    *,
    samples_per_step: float,
    share: float,
    seed: int | None,
    window: int | None = None,
    lanes: int | None = None,
) -> Order:
    """Return the order of a source with about this many samples a step. Raises ConfigError.

    `share` (0 to 1): the source's part of the rows, and of the memory for windows.
    """
    rows = max(1, round(samples_per_step))
    if window is None:
        window = default_window(subset, rows, share)
    if seed is None:
        lanes = 1
    elif lanes is None:
        lanes = default_lanes(subset, 1 << (rows.bit_length() - 1), window, share)
    return Order.resolve(
        subset, batch=lanes, partial="short", seed=seed, window=window, lanes=lanes
    )


def resolve(
    mixture: Mixture,
    sources: Several[Order],
    shares: Several[float],
    *,
    batch: int,
    partial: str,
    seed: int | None,
) -> Order:
    """Return the order of a mixture of sources with these orders. Raises ConfigError.

    `shares`: the part of the rows that each source has at most. `lanes` are those of all sources.
    """
    rows = mixture.rows
    if partial == "drop" and rows < batch:
        raise ConfigError(
            f"a pass over the mixture has {rows} samples, less than one global batch of {batch}: "
            "make the batch smaller, or the pass longer, as with until='all' or until=1_000_000"
        )
    windows = (
        order.window_samples / (share * batch)
        for order, share in zip(sources, shares, strict=True)
        if order.seed is not None and share
    )
    shuffled = any(order.seed is not None for order in sources)
    steps = max(1, round(max(windows, default=1.0)))
    kept = rows // batch * batch if partial == "drop" else rows
    key = (seed or 0) if shuffled else None
    return Order(kept, batch, partial, key, sum(order.lanes for order in sources), steps)


def plan(
    manifest: JoinedManifest,
    mixture: Mixture,
    sources: Several[RepeatedSource],
    order: Order,
    ranks: RankSlice = ALONE,
    *,
    words: str = "",
    last_change: int = 0,
    marks: dict[str, Any] | None = None,
) -> Planner:
    """Return a rank's planner of a mixture of sources over the parts of a manifest.

    `words` say in a state which mixture it is.
    """
    sequence = JoinedSequence(manifest, tuple(source.sequence for source in sources))
    batcher = MixedBatcher(mixture, sources, order, sequence.first, last_change)
    kind = Kind(
        "mixed",
        identity={"mixture": words, **(marks or {})},
        words=f" of {len(sources)} sources: {words}",
    )
    return Planner(kind, order, sequence, batcher, ranks)


def build(request: OrderRequest) -> Planner:
    """Return the planner of a request with a mixture and its sources. Raises ConfigError."""
    options, manifest = request.options, request.subset.manifest
    assert isinstance(manifest, JoinedManifest)
    sources = [RepeatedSource(*source) for source in options["sources"]]
    orders = [source.order for source in sources]
    order = resolve(options["mixture"], orders, options["shares"], **request.parameters)
    return plan(
        manifest,
        options["mixture"],
        sources,
        order,
        request.ranks,
        words=options["words"],
        last_change=options["last_change"],
        marks=dict(request.marks),
    )


def _bit_reversed(count: int) -> np.ndarray:
    """Return the numbers below `count` in the order of their bits, read backwards; int64."""
    bits = max(1, (count - 1).bit_length())
    reversed_ = [int(f"{number:0{bits}b}"[::-1], 2) for number in range(count)]
    return np.argsort(reversed_)
