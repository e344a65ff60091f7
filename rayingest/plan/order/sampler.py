"""An order that somebody else gives: the indices that a sampler draws, epoch after epoch.

Owns how a sampler, any iterable of indices or of batches of them, becomes a function of the epoch (where a calendar has
epochs of another length: of the cycle): epoch e is what its e-th iteration gives, begun with the sampler as it was. One
with `set_epoch` is told the epoch instead; one with `num_replicas` and `rank` is asked as each of them, which gives the
global batches that all of them together take. A sampler is never iterated itself, only copies of it. Knows no torch.
"""

from __future__ import annotations

import copy
import hashlib
import reprlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.batching import Share, bounds, share
from rayingest.plan.order.epoch_length import Calendar
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.order import Order
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.runs import runs
from rayingest.plan.order.step_samples import StepSamples


@dataclass(frozen=True, eq=False)
class Sampling:
    """A sampler as it is before its first iteration. `in_batches`: it gives lists of indices, one a global step.

    `shared` are objects that copies of it need not have of their own, such as the data.
    """

    sampler: Iterable[Any]
    in_batches: bool = False
    shared: tuple[Any, ...] = ()


@dataclass(frozen=True)
class ListedOrder(Order):
    """The order of `batches` steps whose sizes are the sampler's; `batch` is the largest."""

    batches: int = 0

    @property
    def steps(self) -> int:
        return self.batches


@dataclass(frozen=True, eq=False)
class DrawnEpoch:
    """One epoch's samples in order: `index` in the data, and `number`, which is another each time an index comes again
    (by the data's length). `begins`: where each step begins and the last ends, where the sampler says so. All int64.
    """

    index: np.ndarray
    number: np.ndarray
    begins: np.ndarray | None = None

    def locate(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Block, of which there is one, and row of it."""
        number: np.ndarray = self.number[places]
        return np.zeros_like(number), number


class Draws:
    """The epochs of a sampler over `samples` samples, `batch` of them a step (None: as the sampler has it)."""

    def __init__(self, sampling: Sampling, samples: int, batch: int | None) -> None:
        self._sampling, self._samples, self._batch = sampling, samples, batch
        part = _replicated(sampling.sampler)
        self._replicas = 1 if part is None else int(part.num_replicas)
        if batch is not None and batch % self._replicas:
            raise ConfigError(
                f"batch({batch}) does not divide over the sampler's num_replicas={self._replicas}"
            )
        self._running: list[Any] = []
        self._next = 0
        self._length: int | None = None
        self._kept: OrderedDict[int, DrawnEpoch] = OrderedDict()

    def epoch(self, number: int) -> DrawnEpoch:
        """What this epoch is; two are kept. Raises ConfigError for indices that are not of the data."""
        if number not in self._kept:
            self._kept[number] = self._joined(
                [self._checked(one) for one in self._drawn(number)], number
            )
            if len(self._kept) > 2:
                self._kept.popitem(last=False)
        self._kept.move_to_end(number)
        return self._kept[number]

    def mark(self) -> str:
        """16 hex digits of the first epoch: what tells one sampler, or its seed, from another."""
        first = self.epoch(0)
        digest = hashlib.blake2b(first.index.astype("<i8").tobytes(), digest_size=8)
        if first.begins is not None:
            digest.update(first.begins.astype("<i8").tobytes())
        return digest.hexdigest()

    def order(self, partial: str) -> Order:
        """The order's parameters. Raises ConfigError where an epoch is less than a batch."""
        first = self.epoch(0)
        samples = len(first.index)
        if first.begins is not None:
            return ListedOrder(
                samples,
                int(np.diff(first.begins).max()),
                "short",
                None,
                1,
                1,
                len(first.begins) - 1,
            )
        assert self._batch is not None
        if partial == "drop" and 0 < samples < self._batch:
            raise ConfigError(
                f"the sampler gives {samples} samples, less than one global batch of {self._batch}"
            )
        if not samples:
            raise ConfigError("the sampler gives nothing")
        return Order(samples, self._batch, partial, None, 1, 1)

    def _drawn(self, epoch: int) -> list[list[Any]]:
        """What each replica's iteration gives."""
        if hasattr(_inner(self._sampling.sampler), "set_epoch"):
            copies = self._copies()
            for one in copies:
                _inner(one).set_epoch(epoch)
            return [list(one) for one in copies]
        if not self._running or epoch < self._next:
            self._running, self._next = self._copies(), 0
        while True:
            drawn = [list(one) for one in self._running]
            self._next += 1
            if self._next > epoch:
                return drawn

    def _copies(self) -> list[Any]:
        copies = []
        for rank in range(self._replicas):
            one = copy.deepcopy(
                self._sampling.sampler, {id(kept): kept for kept in self._sampling.shared}
            )
            part = _replicated(one)
            if part is not None:
                part.rank = rank
            copies.append(one)
        return copies

    def _checked(self, drawn: list[Any]) -> list[np.ndarray]:
        """The steps of one replica; all of them as one where the sampler does not tell."""
        if self._sampling.in_batches:
            rule = "batch_sampler: it must give lists of indices, at least one in each"
            return [self._indices(step, "batch_sampler", rule) for step in drawn]
        return [
            self._indices(drawn, "sampler", "sampler: it must give indices")
            if drawn
            else np.zeros(0, np.int64)
        ]

    def _indices(self, drawn: Any, what: str, rule: str) -> np.ndarray:
        try:
            found = np.asarray(drawn)
        except (TypeError, ValueError):
            found = np.zeros(0)
        if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
            raise ConfigError(f"{rule}, not such as {reprlib.repr(drawn)}")
        if not (found.min() >= 0 and found.max() < self._samples):
            raise ConfigError(
                f"{what}: it gives {found.min()} to {found.max()}; the data has 0 to {self._samples - 1}"
            )
        return found.astype(np.int64)

    def _joined(self, replicas: list[list[np.ndarray]], epoch: int) -> DrawnEpoch:
        lengths = [len(steps) if self._sampling.in_batches else len(steps[0]) for steps in replicas]
        if len(set(lengths)) > 1:
            raise ConfigError(
                f"the sampler's replicas give different numbers of samples or batches: {lengths}"
            )
        if self._length is None:
            self._length = lengths[0]
        elif self._length != lengths[0]:
            raise ConfigError(
                f"the sampler gives {lengths[0]} samples or batches in epoch {epoch}, and gave {self._length} in "
                "another: all epochs must have one length"
            )
        begins = None
        if self._sampling.in_batches:
            steps = [np.concatenate(parts) for parts in zip(*replicas, strict=True)]
            begins = np.cumsum([0, *map(len, steps)])
            index = np.concatenate(steps or [np.zeros(0, np.int64)])
        else:
            index = self._interleaved(np.stack([steps[0] for steps in replicas]))
        return DrawnEpoch(index, index + self._samples * _repeats(index), begins)

    def _interleaved(self, replicas: np.ndarray) -> np.ndarray:
        """[replicas, n] to the sequence of which every global batch is a piece: a slice of each replica's."""
        assert self._batch is not None
        each = self._batch // self._replicas
        whole = replicas.shape[1] // each * each
        full = replicas[:, :whole].reshape(self._replicas, -1, each).swapaxes(0, 1)
        return np.concatenate([full.ravel(), replicas[:, whole:].ravel()])


class DrawnPlanner(Planner):
    """One rank's view of a sampler's order; of data that are one block, which is needed until the end."""

    def __init__(
        self,
        manifest: Manifest,
        order: Order,
        draws: Draws,
        rank: int,
        world_size: int,
        uneven: bool,
        *,
        calendar: Calendar | None = None,
    ) -> None:
        super().__init__(manifest, order, rank, world_size, uneven, calendar=calendar)
        self._draws = draws

    @property
    def fingerprint(self) -> str:
        return f"{self.manifest.fingerprint}-{self._draws.mark()}"

    def run(self, epoch: int, step: int, count: int) -> list[StepSamples]:
        return [self.step_samples(epoch, step)]

    def locate(self, cycle: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        drawn = self._draws.epoch(cycle)
        return *drawn.locate(places), drawn.index[places]

    def last_use(self, block: np.ndarray, epoch: int, step: int) -> np.ndarray:
        cycle, _ = self.calendar.locate(epoch, step)
        return np.full(len(block), self.calendar.step_in(epoch, cycle, self.order.steps))

    def _share(self, cycle: int, step: int) -> Share:
        begins = self._draws.epoch(cycle).begins
        if begins is None:
            return share(self.order, step, self.rank, self.world_size)
        first, last = begins[step : step + 2].tolist()
        begin, end = bounds(last - first, self.rank, self.world_size)
        position = np.arange(first + begin, first + end, dtype=np.int64)
        return Share(np.zeros_like(position), position, np.ones(len(position), bool))


def chain(sampler: Any) -> Iterator[Any]:
    """A sampler and the one it takes its indices from, as a batch sampler does."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def _replicated(sampler: Any) -> Any:
    found = (
        part for part in chain(sampler) if hasattr(part, "num_replicas") and hasattr(part, "rank")
    )
    return next(found, None)


def _inner(sampler: Any) -> Any:
    """The part that is told the epoch, or the sampler itself."""
    return next((part for part in chain(sampler) if hasattr(part, "set_epoch")), sampler)


def _repeats(index: np.ndarray) -> np.ndarray:
    """How often each index came before."""
    by_index = np.argsort(index, kind="stable")
    ordered = index[by_index]
    starts, counts = runs(ordered)
    result = np.empty_like(index)
    result[by_index] = np.arange(len(index)) - np.repeat(starts, counts)
    return result
