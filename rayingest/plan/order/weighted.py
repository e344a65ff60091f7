"""Kind "weighted": samples come as often as their weights say.

Systematic resampling: the samples lie on a line, each as long as its weight; N draws lie on it at
equal distances, behind an offset of the pass's key. So in a pass each sample comes as often as is
its share of N, rounded up or down, by chance as its fraction says, and so do all samples of a
stretch of the line. In file order, repeats of a sample side by side, the draws are then a sequence
as any other: blocks are permuted, all is rotated, and windows are permuted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.kinds import OrderRequest
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import ALONE, EpochLength, Kind, Planner, RankSlice
from rayingest.plan.order.randomness import fold
from rayingest.plan.order.sequence import LastUsed, Located, PassSequence
from rayingest.plan.order.subset import Subset
from rayingest.plan.order.window import LaneBatcher, Lanes

_UNITS = float(1 << 52)
_MOST_DRAWS = 1 << 31


@dataclass(frozen=True, eq=False)
class Weights:
    """The weight of each sample of the data: float64, 0 or more, by ordinal.

    Samples of one `stratum` (int64, by ordinal) come together as often as they weigh together,
    rounded up or down.
    """

    weight: np.ndarray
    stratum: np.ndarray | None = None

    @property
    def mark(self) -> str:
        """16 hex digits of the weights, for states."""
        digest = hashlib.blake2b(np.ascontiguousarray(self.weight, "<f8").tobytes(), digest_size=8)
        if self.stratum is not None:
            digest.update(np.ascontiguousarray(self.stratum, "<i8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Resampling:
    """`draws` a pass from the samples of a subset.

    `line` (int64[samples]) is the order in which the samples lie on the line, `ends` where each of
    them ends there. As a population this has as many samples as there are draws.
    """

    subset: Subset
    line: np.ndarray
    ends: np.ndarray
    draws: int

    @classmethod
    def of(cls, subset: Subset, weights: Weights, draws: int | None) -> Resampling:
        """Lay the samples on the line; `draws` None: as many as samples. Raises ConfigError."""
        there = np.concatenate([np.zeros(0, np.int64), *subset.ordinals()])
        own = weights.weight[there]
        total = own.sum()
        if not 0 < total < float("inf") or _UNITS / float(total) == float("inf"):
            raise ConfigError(
                f"the weights of {len(own):,} samples sum to {total}: "
                "give at least one sample a weight above 0, and finite weights"
            )
        lengths = np.where(own > 0, np.maximum(1, np.rint(own * (_UNITS / total))), 0).astype(
            np.int64
        )
        draws = len(own) if draws is None else draws
        if draws >= _MOST_DRAWS:
            raise ConfigError(
                f"{draws:,} weighted draws per pass are too many: give at most {_MOST_DRAWS - 1:,}"
            )
        stratum = weights.stratum
        line = np.arange(len(own)) if stratum is None else np.argsort(stratum[there], kind="stable")
        return cls(subset, line, np.cumsum(lengths[line]), draws)

    @property
    def num_samples(self) -> int:
        return self.draws

    @property
    def total_bytes(self) -> int:
        return int(self.subset.total_bytes * self.draws / self.subset.num_samples)

    @property
    def nbytes(self) -> np.ndarray:
        return self.subset.nbytes

    def times(self, offset: int) -> np.ndarray:
        """Return how often each sample comes, in file order; int64[samples].

        `offset` is less than the length of the line. Draw d lies at floor((d * length + offset) /
        draws).
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

    def draw(self, seed: int | None, pass_number: int) -> Resampled:
        """Return the draws of one pass."""
        offset = fold("weights", seed or 0, pass_number) % int(self.ends[-1])
        return Resampled(self.subset, self.times(offset))


class Resampled:
    """The samples of a subset, each repeated `times`, side by side in file order."""

    def __init__(self, subset: Subset, times: np.ndarray) -> None:
        self._subset = subset
        self._ends: np.ndarray = np.concatenate([[0], np.cumsum(times)])
        self._first = self._ends[subset.first_position]
        self.samples = self._ends[subset.first_position + subset.samples] - self._first
        """int64[blocks]: the draws of each block."""

    def locate(self, block: np.ndarray, nth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the row of the nth draw of a block, and how many draws of its sample are before.

        int64 each.
        """
        draw = self._first[block] + nth
        position = np.searchsorted(self._ends, draw, side="right") - 1
        row = self._subset.row(block, position - self._subset.first_position[block])
        return row, draw - self._ends[position]


class ResampledSequence:
    """The sequences of all passes over weighted draws, which are shuffled."""

    def __init__(self, resampling: Resampling, seed: int | None) -> None:
        self.subset, self.manifest = resampling.subset, resampling.subset.manifest
        self._passes: LastUsed[int, tuple[Resampled, PassSequence]] = LastUsed(
            lambda number: _pass(resampling, seed, number)
        )

    @property
    def subsets(self) -> tuple[Subset, ...]:
        return (self.subset,)

    def locate(self, passes: int | np.ndarray, positions: np.ndarray) -> Located:
        assert isinstance(passes, int), "a mixture has no weighted sources"
        resampled, sequence = self._passes[passes]
        block, nth = sequence.locate(positions)
        row, repeat = resampled.locate(block, nth)
        return Located(block, row, self.manifest.first_ordinal[block] + row, repeat)

    def block_end(self, positions: np.ndarray) -> np.ndarray:
        raise NotImplementedError("weighted draws have no file order")


def _pass(resampling: Resampling, seed: int | None, number: int) -> tuple[Resampled, PassSequence]:
    resampled = resampling.draw(seed, number)
    return resampled, PassSequence(resampled.samples, seed, number)


def plan(
    resampling: Resampling,
    order: Order,
    ranks: RankSlice = ALONE,
    *,
    lengths: np.ndarray | None = None,
    epoch_length: EpochLength | None = None,
    identity: Mapping[str, Any] | None = None,
) -> Planner:
    """Return a rank's planner of weighted draws in lanes and windows."""
    sequence = ResampledSequence(resampling, order.seed)
    batcher = LaneBatcher(order, sequence, lengths)
    kind = Kind("weighted", identity=identity or {})
    return Planner(kind, order, sequence, batcher, ranks, epoch_length)


def build(request: OrderRequest) -> Planner:
    """Return the planner of a request with `weights` and `draws`. Raises ConfigError."""
    if request.parameters.get("seed") is None:
        raise ConfigError(
            "weighted(...) without .shuffle(): repeats of a sample would follow each other; "
            "call .shuffle()"
        )
    resampling = Resampling.of(request.subset, request.options["weights"], request.options["draws"])
    order = Order.resolve(resampling, **request.parameters)
    length = EpochLength.resolve(Lanes(order).steps, **request.epoch_length)
    return plan(
        resampling,
        order,
        request.ranks,
        lengths=request.lengths,
        epoch_length=length,
        identity=request.marks,
    )
