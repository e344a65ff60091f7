"""Orders in which samples come as often as their weights say.

Systematic resampling: the samples lie on a line, each as long as its weight; N draws lie on it at equal distances,
behind an offset of the cycle's key. So in a cycle each sample comes as often as is its share of N, rounded up or down,
by chance as its fraction says, and so do all of a stretch of the line. In file order, repeats of a sample side by side,
the draws are then an epoch's sequence as any other: blocks are permuted, all is rotated, and windows are mixed.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.epoch_length import Calendar
from rayingest.plan.order.keys import fold
from rayingest.plan.order.order import Order
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import View

_UNITS = float(1 << 52)
_MOST_DRAWS = 1 << 31
_REPEAT = 1 << 40
"""The r-th repeat of a sample in cycle c has the random numbers of pass c + r * 2**40."""


@dataclass(frozen=True, eq=False)
class Weights:
    """How much each sample of all data weighs (float64, 0 or more, by ordinal).

    Samples of a `stratum` (int64, by ordinal) come together as often as they weigh together, rounded up or down.
    """

    weight: np.ndarray
    stratum: np.ndarray | None = None

    @property
    def mark(self) -> str:
        """16 hex digits of them."""
        digest = hashlib.blake2b(np.ascontiguousarray(self.weight, "<f8").tobytes(), digest_size=8)
        if self.stratum is not None:
            digest.update(np.ascontiguousarray(self.stratum, "<i8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Resampling:
    """`draws` a cycle from a view's samples, of which `line` (int64[samples]) says in which order they lie, and `ends`
    where each of them ends then.

    As a population it has as many samples as there are draws.
    """

    view: View
    line: np.ndarray
    ends: np.ndarray
    draws: int

    @classmethod
    def of(cls, view: View, weights: Weights, draws: int | None) -> Resampling:
        """None: as many draws as samples. Raises ConfigError."""
        there = np.concatenate([np.zeros(0, np.int64), *view.ordinals()])
        own = weights.weight[there]
        total = own.sum()
        if not 0 < total < float("inf") or _UNITS / float(total) == float("inf"):
            raise ConfigError(
                f"the weights of {len(own):,} samples come to {total}: there is nothing to draw by"
            )
        lengths = np.where(own > 0, np.maximum(1, np.rint(own * (_UNITS / total))), 0).astype(
            np.int64
        )
        draws = len(own) if draws is None else draws
        if draws >= _MOST_DRAWS:
            raise ConfigError(
                f"{draws:,} weighted draws are too many: up to {_MOST_DRAWS - 1:,} can be made a cycle"
            )
        stratum = weights.stratum
        line = np.arange(len(own)) if stratum is None else np.argsort(stratum[there], kind="stable")
        return cls(view, line, np.cumsum(lengths[line]), draws)

    @property
    def num_samples(self) -> int:
        return self.draws

    @property
    def total_bytes(self) -> int:
        return int(self.view.total_bytes * self.draws / self.view.num_samples)

    @property
    def nbytes(self) -> np.ndarray:
        return self.view.nbytes

    def times(self, offset: int) -> np.ndarray:
        """int64[samples]: how often each sample comes, in file order; `offset` is less than the line is long.

        Draw d lies at floor((d * length of the line + offset) / draws).
        """
        length, whole, rest = int(self.ends[-1]), *divmod(int(self.ends[-1]), self.draws)
        before = np.floor(self.ends * (self.draws / length) - offset / length).astype(np.int64)
        before = np.clip(before, 0, self.draws)

        def point(draw: np.ndarray) -> np.ndarray:
            return np.asarray(draw * whole + (draw * rest + offset) // self.draws)

        for _ in range(2):  # the quotient may be off by one
            before -= (before > 0) & (point(before - 1) >= self.ends)
            before += (before < self.draws) & (point(before) < self.ends)
        times = np.empty_like(before)
        times[self.line] = np.diff(before, prepend=0)
        return times

    def in_cycle(self, seed: int | None, cycle: int) -> Draws:
        """One cycle's draws."""
        return Draws(self.view, self.times(fold("weights", seed or 0, cycle) % int(self.ends[-1])))


class Draws:
    """The samples of a view, each so many `times`, side by side in file order."""

    def __init__(self, view: View, times: np.ndarray) -> None:
        self._view = view
        self._ends: np.ndarray = np.concatenate([[0], np.cumsum(times)])
        self._first = self._ends[view.first_place]
        self.samples = self._ends[view.first_place + view.samples] - self._first

    @property
    def num_blocks(self) -> int:
        return self._view.num_blocks

    def locate(self, block: np.ndarray, nth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The row of the nth draw of a block, and how many draws of the same sample lie before it; int64 each."""
        draw = self._first[block] + nth
        place = np.searchsorted(self._ends, draw, side="right") - 1
        return self._view.row(block, place - self._view.first_place[block]), draw - self._ends[
            place
        ]


class WeightedPlanner(Planner):
    """One rank's part of an order of weighted draws, which is shuffled."""

    def __init__(
        self,
        resampling: Resampling,
        order: Order,
        rank: int = 0,
        world_size: int = 1,
        uneven: bool = False,
        *,
        calendar: Calendar | None = None,
        lengths: np.ndarray | None = None,
    ) -> None:
        view, ranks = resampling.view, (rank, world_size, uneven)
        super().__init__(
            view.manifest, order, *ranks, view=view, calendar=calendar, lengths=lengths
        )
        self._resampling = resampling
        self._draws: OrderedDict[int, Draws] = OrderedDict()

    def step_samples(self, epoch: int, step: int) -> StepSamples:
        return self._repeated(super().step_samples(epoch, step))

    def run(self, epoch: int, step: int, count: int) -> list[StepSamples]:
        return [self._repeated(samples) for samples in super().run(epoch, step, count)]

    def locate(self, cycle: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        block, nth = self._sequence(cycle).locate(places)
        row, _ = self._population(cycle).locate(block, nth)
        return block, row, self.manifest.first_ordinal[block] + row

    def _population(self, cycle: int) -> Draws:
        """A cycle's draws; two are kept."""
        if cycle not in self._draws:
            self._draws[cycle] = self._resampling.in_cycle(self.order.seed, cycle)
            if len(self._draws) > 2:
                self._draws.popitem(last=False)
        self._draws.move_to_end(cycle)
        return self._draws[cycle]

    def _repeated(self, samples: StepSamples) -> StepSamples:
        """With random numbers for each time that a sample comes."""
        _, repeat = self._population(samples.pass_number).locate(
            *self._sequence(samples.pass_number).locate(samples.position)
        )
        return replace(samples, passes=samples.pass_number + repeat * _REPEAT)
