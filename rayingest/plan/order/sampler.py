"""Kind "sampler": the indices that somebody else's sampler gives, epoch after epoch.

Owns how a sampler, any iterable of indices or of batches of them, becomes a function of the pass:
pass p is what its p-th iteration gives, begun with the sampler as it was. A sampler with
`set_epoch` gets the number of the pass instead. One with `num_replicas` and `rank` is iterated as
each of its replicas, and their batches together are the global batches. The sampler itself is never
iterated, only copies of it. Knows no torch.
"""

from __future__ import annotations

import copy
import hashlib
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.kinds import OrderRequest
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import (
    Batcher,
    EpochLength,
    Kind,
    Planner,
    Rows,
    Steps,
    reads_per_block,
)
from rayingest.plan.order.sequence import LastUsed, Located
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import Subset
from rayingest.plan.order.window import LaneBatcher, runs


@dataclass(frozen=True, eq=False)
class Sampling:
    """A sampler as it is before its first iteration.

    `in_batches`: it gives lists of indices, one a global step. `shared`: objects that copies of the
    sampler share, such as the data.
    """

    sampler: Iterable[Any]
    in_batches: bool = False
    shared: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class SamplerPass:
    """One pass of a sampler; int64 arrays.

    `index`: the indices in order. `number`: the index, plus the length of the data for each earlier
    place of the same index, so that all differ. `begins`: where each step begins and the last ends,
    if the sampler gives batches.
    """

    index: np.ndarray
    number: np.ndarray
    begins: np.ndarray | None = None


class SamplerPasses:
    """The passes of a sampler over `samples` samples, in steps of `batch` or its own batches.

    The two passes used last are kept. Raises ConfigError for indices outside the data.
    """

    def __init__(self, sampling: Sampling, samples: int, batch: int | None) -> None:
        self._sampling, self._samples, self._batch = sampling, samples, batch
        part = _replicated(sampling.sampler)
        self._replicas = 1 if part is None else int(part.num_replicas)
        if batch is not None and batch % self._replicas:
            raise ConfigError(
                f"batch({batch}) does not divide over the sampler's num_replicas={self._replicas}: "
                "make the batch a multiple of it"
            )
        self._running: list[Any] = []
        self._next = 0
        self._length: int | None = None
        self._passes: LastUsed[int, SamplerPass] = LastUsed(self._make)

    def __getitem__(self, number: int) -> SamplerPass:
        """Return a pass. Raises ConfigError for indices outside the data."""
        return self._passes[number]

    def mark(self) -> str:
        """Return 16 hex digits of the first pass: another sampler, or another seed, has others."""
        first = self[0]
        digest = hashlib.blake2b(first.index.astype("<i8").tobytes(), digest_size=8)
        if first.begins is not None:
            digest.update(first.begins.astype("<i8").tobytes())
        return digest.hexdigest()

    def order(self, partial: str) -> Order:
        """Return the order's parameters. Raises ConfigError where a pass is less than a batch."""
        first = self[0]
        samples = len(first.index)
        if first.begins is not None:
            return Order(samples, int(np.diff(first.begins).max()), "short", None, 1, 1)
        assert self._batch is not None
        if partial == "drop" and 0 < samples < self._batch:
            raise ConfigError(
                f"the sampler gives {samples} samples, less than one global batch of {self._batch}:"
                " make the batch smaller, or pass partial='pad' or 'short'"
            )
        if not samples:
            raise ConfigError(
                "the sampler gives no indices: it must give at least one in each epoch"
            )
        return Order(samples, self._batch, partial, None, 1, 1)

    def _make(self, number: int) -> SamplerPass:
        return self._join([self._check(one) for one in self._iterate(number)], number)

    def _iterate(self, number: int) -> list[list[Any]]:
        """Return all that the iteration of each replica gives."""
        if hasattr(_epoch_setter(self._sampling.sampler), "set_epoch"):
            copies = self._copies()
            for one in copies:
                _epoch_setter(one).set_epoch(number)
            return [list(one) for one in copies]
        if not self._running or number < self._next:
            self._running, self._next = self._copies(), 0
        while True:
            drawn = [list(one) for one in self._running]
            self._next += 1
            if self._next > number:
                return drawn

    def _copies(self) -> list[Any]:
        """Return a copy of the sampler as each of its replicas."""
        copies = []
        for rank in range(self._replicas):
            shared = {id(one): one for one in self._sampling.shared}
            one = copy.deepcopy(self._sampling.sampler, shared)
            part = _replicated(one)
            if part is not None:
                part.rank = rank
            copies.append(one)
        return copies

    def _check(self, drawn: list[Any]) -> list[np.ndarray]:
        """Return the steps of one replica; one for all of it where the sampler gives indices."""
        if self._sampling.in_batches:
            rule = "batch_sampler: it must give lists of indices, at least one in each"
            return [self._indices(step, "batch_sampler", rule) for step in drawn]
        if not drawn:
            return [np.zeros(0, np.int64)]
        return [self._indices(drawn, "sampler", "sampler: it must give indices")]

    def _indices(self, drawn: Any, name: str, rule: str) -> np.ndarray:
        try:
            found = np.asarray(drawn)
        except (TypeError, ValueError):
            found = np.zeros(0)
        if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
            raise ConfigError(f"{rule}, not {reprlib.repr(drawn)}")
        if not (found.min() >= 0 and found.max() < self._samples):
            raise ConfigError(
                f"{name}: it gives indices from {found.min()} to {found.max()}; "
                f"the data has indices from 0 to {self._samples - 1}"
            )
        return found.astype(np.int64)

    def _join(self, replicas: list[list[np.ndarray]], number: int) -> SamplerPass:
        """Join the replicas' parts of a pass; all must be of one length, and as long as ever."""
        lengths = [len(steps) if self._sampling.in_batches else len(steps[0]) for steps in replicas]
        if len(set(lengths)) > 1:
            raise ConfigError(
                f"the sampler's replicas give different numbers of samples or batches: {lengths}"
            )
        if self._length is None:
            self._length = lengths[0]
        elif self._length != lengths[0]:
            raise ConfigError(
                f"the sampler's length changes: {lengths[0]} samples or batches in epoch {number}, "
                f"{self._length} in another; make all epochs equally long"
            )
        begins = None
        if self._sampling.in_batches:
            steps = [np.concatenate(parts) for parts in zip(*replicas, strict=True)]
            begins = np.cumsum([0, *map(len, steps)])
            index = np.concatenate(steps or [np.zeros(0, np.int64)])
        else:
            index = self._interleave(np.stack([steps[0] for steps in replicas]))
        return SamplerPass(index, index + self._samples * _repeats(index), begins)

    def _interleave(self, replicas: np.ndarray) -> np.ndarray:
        """Return the sequence whose pieces are the global batches: a slice of each replica's.

        `replicas`: int64[replicas, n].
        """
        assert self._batch is not None
        each = self._batch // self._replicas
        whole = replicas.shape[1] // each * each
        full = replicas[:, :whole].reshape(self._replicas, -1, each).swapaxes(0, 1)
        return np.concatenate([full.ravel(), replicas[:, whole:].ravel()])


class SamplerSequence:
    """The sequence of a sampler's passes, over data of one block that is needed until the end."""

    def __init__(self, subset: Subset, passes: SamplerPasses) -> None:
        self.manifest, self.subsets, self._passes = subset.manifest, (subset,), passes

    def locate(self, passes: int | np.ndarray, positions: np.ndarray) -> Located:
        assert isinstance(passes, int), "a mixture has no sources with samplers"
        drawn = self._passes[passes]
        row = drawn.number[positions]
        return Located(np.zeros_like(row), row, drawn.index[positions])

    def block_end(self, positions: np.ndarray) -> np.ndarray:
        return np.full(len(positions), len(self._passes[0].index))


@dataclass(frozen=True, eq=False)
class ListedSteps(Steps):
    """Steps of any size, one after the other: `begins` has where each begins and the last ends."""

    begins: np.ndarray

    @property
    def full(self) -> int:
        return len(self.begins) - 1

    @property
    def tail(self) -> int:
        return 0

    def rows_of(self, step: int) -> int:
        return int(self.begins[step + 1] - self.begins[step])


class ListBatcher:
    """The steps that a batch sampler gives."""

    most_steps = 1

    def __init__(self, order: Order, passes: SamplerPasses) -> None:
        self._order, self._passes = order, passes

    def steps(self, pass_number: int) -> ListedSteps:
        order, begins = self._order, self._passes[pass_number].begins
        assert begins is not None
        return ListedSteps(order.samples, order.batch, order.partial, begins)

    def rows(self, pass_number: int, step: int, count: int, numbers: np.ndarray) -> Rows:
        steps = self.steps(pass_number)
        expires, begin, end = (
            np.full(len(numbers), value) for value in (steps.count, 0, self._order.samples)
        )
        return Rows(steps.begins[step] + numbers, np.ones(len(numbers), bool), expires, begin, end)

    def block_expires(self, samples: StepSamples, row: int, position: int, step: int) -> int | None:
        return None

    def reads_per_block(self, world_size: int) -> float:
        return reads_per_block(self._order.batch, 1, world_size)


def build(request: OrderRequest) -> Planner:
    """Return the planner of a request with a `sampling`. Raises ConfigError."""
    sampling: Sampling = request.options["sampling"]
    batch = None if sampling.in_batches else request.parameters["batch"]
    passes = SamplerPasses(sampling, request.subset.manifest.num_samples, batch)
    order = passes.order(request.parameters["partial"])
    sequence = SamplerSequence(request.subset, passes)
    batcher: Batcher
    batcher = ListBatcher(order, passes) if sampling.in_batches else LaneBatcher(order, sequence)
    length = EpochLength.resolve(batcher.steps(0), **request.epoch_length)
    kind = Kind("sampler", identity={**request.marks, "sampler": passes.mark()})
    return Planner(kind, order, sequence, batcher, request.ranks, length)


def chain(sampler: Any) -> Iterator[Any]:
    """Yield a sampler and the one it takes its indices from, as a batch sampler does."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def _replicated(sampler: Any) -> Any:
    """Return the part that is one of several replicas, or None."""
    found = (
        part for part in chain(sampler) if hasattr(part, "num_replicas") and hasattr(part, "rank")
    )
    return next(found, None)


def _epoch_setter(sampler: Any) -> Any:
    """Return the part with `set_epoch`, or the sampler itself."""
    return next((part for part in chain(sampler) if hasattr(part, "set_epoch")), sampler)


def _repeats(index: np.ndarray) -> np.ndarray:
    """Return how often each index came before; int64."""
    by_index = np.argsort(index, kind="stable")
    ordered = index[by_index]
    starts, counts = runs(ordered)
    result = np.empty_like(index)
    result[by_index] = np.arange(len(index)) - np.repeat(starts, counts)
    return result
