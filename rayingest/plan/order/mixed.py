"""Orders of mixtures: the mixture says whose sample each row is, each source which of its samples that is.

Owns batches and epochs as pieces of the mixture's endless row, and where in a batch a source's samples of a step lie:
on the rows that are the source's, which are spread over the batch, in the order of their lanes. So each rank has about
its share of every source, and reads about its share of every source's lanes, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.batching import bounds
from rayingest.plan.order.interleave import NEVER
from rayingest.plan.order.manifest import JoinedManifest
from rayingest.plan.order.mixture import Mixture
from rayingest.plan.order.order import Order
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.repeated import Draws, Succession
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import View

_RUN_ROWS = 1 << 16
"""Of global batches that are planned together."""


@dataclass(frozen=True)
class MixedOrder(Order):
    """The order of a mixture: `samples` are the rows of an epoch. `words` say what else it is made of.

    `lanes` are those of all sources together. `last_change` is the row from which on the weights are the same for ever.
    """

    mixture: Mixture = field(repr=False)
    words: str
    last_change: int = 0

    def __str__(self) -> str:
        return self.words

    @classmethod
    def over(
        cls,
        mixture: Mixture,
        sources: Sequence[Order],
        shares: Sequence[float],
        words: str,
        *,
        batch: int,
        partial: str,
        seed: int | None,
        last_change: int = 0,
    ) -> MixedOrder:
        """The order of a mixture of sources with these orders, and `shares` of the rows at most. Raises ConfigError."""
        rows = mixture.rows
        if partial == "drop" and rows < batch:
            raise ConfigError(
                f"the mixture is once through with {rows} samples, less than one global batch of {batch}: make the "
                "batch smaller, or let it go on, as with until='all' or until=1_000_000"
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
        return cls(
            kept,
            batch,
            partial,
            key,
            sum(order.lanes for order in sources),
            steps,
            mixture,
            words,
            last_change,
        )


class MixedPlanner(Planner):
    """One rank's part of a mixture's order: rows [r B / W, (r + 1) B / W) of every step's B, as ever.

    `sources` are over the manifest's parts. Epoch e is rows [e N, (e + 1) N) of the mixture.
    """

    order: MixedOrder
    manifest: JoinedManifest

    def __init__(
        self,
        manifest: JoinedManifest,
        order: MixedOrder,
        sources: Sequence[Succession],
        rank: int = 0,
        world_size: int = 1,
        uneven: bool = False,
    ) -> None:
        super().__init__(manifest, order, rank, world_size, uneven)
        self.sources = sources

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(source.view for source in self.sources)

    def step_samples(self, epoch: int, step: int) -> StepSamples:
        if not 0 <= step < self.calendar.epoch_steps:
            raise IndexError(f"step {step} of an epoch of {self.calendar.epoch_steps} steps")
        return self.run(epoch, step, 1)[0]

    def run(self, epoch: int, step: int, count: int) -> list[StepSamples]:
        order = self.order
        is_full = step < order.full_steps
        count = max(1, min(count, order.full_steps - step, _RUN_ROWS // order.batch))
        there = order.batch if is_full else order.tail
        begin, end = bounds(
            order.batch if order.partial == "pad" else there, self.rank, self.world_size
        )
        # Where a rank has no row, one is still named, whose fields give the empty batch its columns.
        wanted = np.arange(begin, end) if begin < end else np.zeros(1, np.int64)
        valid = wanted < there
        wanted = np.where(valid, wanted, there - 1 - (wanted - there) % there)
        source, draws = self._arranged(epoch * order.samples + step * order.batch, there, count)
        rows = (np.arange(count)[:, None] * there + wanted).ravel()
        source = source[rows]
        found = self._found(source, draws[rows])
        until = self._steps_behind(source, found.end, epoch)
        made = []
        for number in range(count):
            own = slice(number * len(wanted), (number + 1) * len(wanted))
            at = epoch, step + number, epoch, end - begin
            where = found.block[own], found.row[own], found.ordinal[own]
            window = found.place[own], found.window_begin[own], found.window_end[own]
            later = np.maximum(until[own], step + number + 1)  # rows of padding
            made.append(
                StepSamples(
                    *at, *where, valid, later, *window, source=source[own], passes=found.cycle[own]
                )
            )
        return made

    def replacement(self, samples: StepSamples, row: int, place: int) -> tuple[int, int, int, int]:
        assert samples.source is not None
        assert samples.passes is not None
        number, cycle = int(samples.source[row]), int(samples.passes[row])
        source = self.sources[number]
        block, row_in_block, ordinal = source.locate(cycle, np.array([place]))
        until = int(samples.expires[row])
        if source.order.seed is None:
            last = (
                cycle * source.order.samples
                + source.view.first_place[block]
                + source.view.samples[block]
            )
            until = max(
                samples.step + 1,
                int(self._steps_behind(np.array([number]), last, samples.epoch)[0]),
            )
        return (
            self.manifest.first_block[number] + int(block[0]),
            int(row_in_block[0]),
            int(ordinal[0]),
            until,
        )

    def _arranged(self, begin: int, there: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Source and draw of each row of `count` steps of so many rows each, one step behind the other."""
        source, draws = self.order.mixture.at(begin, begin + count * there)
        step = np.arange(count * there) // there
        for number in np.unique(source).tolist():
            if self.sources[number].order.lanes > 1:
                rows = np.flatnonzero(source == number)
                own = draws[rows]
                draws[rows] = own[np.lexsort((self.sources[number].lanes(own), step[rows]))]
        return source, draws

    def _found(self, source: np.ndarray, draws: np.ndarray) -> Draws:
        """The samples of these draws of these sources; blocks are numbered as in the joined manifest."""
        found = np.empty((8, len(source)), np.int64)
        for number in np.unique(source).tolist():
            rows = np.flatnonzero(source == number)
            drawn = self.sources[number].draw(draws[rows])
            found[:, rows] = list(vars(drawn).values())
            found[1, rows] += self.manifest.first_block[number]
        return Draws(*found)

    def _steps_behind(self, source: np.ndarray, end: np.ndarray, epoch: int) -> np.ndarray:
        """int64: the first step, counted in the epoch, that takes none of each source's draws before `end`."""
        order, row = self.order, np.empty(len(source), np.int64)
        for number in np.unique(source).tolist():
            rows = np.flatnonzero(source == number)
            ends, which = np.unique(end[rows], return_inverse=True)
            last = order.mixture.row(number, ends - 1)
            # A draw that never comes is behind one that comes before the last change.
            row[rows] = np.where(last < NEVER, last, order.last_change)[which]
        later, inside = np.divmod(row, order.samples)
        return (later - epoch) * order.steps + inside // order.batch + 1
