"""Read blocks of PyTorch iterable datasets: iterate their shards where blocks are read.

Owns how a block is reached: by the iterator that has just returned the block before it, else from
a `state_dict` that the iterable gave when it passed that place, else from the shard's begin. A
state is trusted only if the sample after it is the same as before. Samples travel pickled from one
process of a job to another.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rayingest.errors import DataError
from rayingest.formats.iterables import SAMPLE
from rayingest.plan.order.randomness import fold
from rayingest.transforms.code_mark import code_mark
from rayingest.transforms.functions import failure, name_of
from rayingest.transforms.schema import as_array
from rayingest.transforms.torch.shard_iterator import IteratorState, Shard, ShardIterator

_MAX_ITERATORS, _MAX_STATES = 8, 256
_AT_ONCE = 64

_log = logging.getLogger("rayingest")


class Iterables:
    """The shards of an iterable dataset, `factory(i)` each. One thread of a process iterates at a
    time.
    """

    def __init__(self, factory: Callable[[int], Any], shards: int, seed: int) -> None:
        self.factory, self.shards, self.seed = factory, shards, seed
        self.mark = code_mark(factory)  # before any use: use may fill caches
        self.__setstate__(self.__dict__)

    def __repr__(self) -> str:
        factory = f"{name_of(self.factory)} {self.mark}"
        return f"{type(self).__qualname__}({factory}, {self.seed})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("factory", "shards", "seed", "mark")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()
        self._running: OrderedDict[int, ShardIterator] = OrderedDict()
        self._states: OrderedDict[tuple[int, int], tuple[IteratorState, bytes]] = OrderedDict()
        self._trusts_states = True

    def sizes(self, shard: int, most: int | None) -> np.ndarray:
        """Return the bytes in memory of each sample of a shard: int64, of the first `most` or of
        all.
        """
        run, sizes = ShardIterator(self._shard(shard)), list[int]()
        while not run.ended and (most is None or len(sizes) < most):
            sizes += map(nbytes, run.take(_AT_ONCE if most is None else most - len(sizes)))
        return np.array(sizes, np.int64)

    def take(self, shard: int, begin: int, end: int) -> list[bytes]:
        """Return a shard's samples from `begin` to `end`, pickled; fewer if it ends before.

        Raises DataError for an exception in the iterable.
        """
        with self._lock:
            run = self._nearest(shard, begin)
            while run.at < begin and not run.ended:
                self._advance(run, shard, min(begin - run.at, end - begin))
            taken = (
                []
                if run.ended
                else self._pickle(shard, begin, self._advance(run, shard, end - begin))
            )
            if not run.ended:
                self._running[shard] = run
                while len(self._running) > _MAX_ITERATORS:
                    self._running.popitem(last=False)
            return taken

    def _shard(self, number: int) -> Shard:
        return Shard(
            self.factory,
            number,
            self.shards,
            fold("shard", self.seed, number),
            isinstance(self.factory, Copies),
        )

    def _pickle(self, shard: int, begin: int, samples: list[dict[str, Any]]) -> list[bytes]:
        taken: list[bytes] = []
        for sample in samples:
            try:
                taken.append(pickle_sample(sample))
            except DataError as error:
                name = name_of(self.factory)
                where = {"shard": f"{name}/{shard}", "offset": begin + len(taken)}
                raise failure(f"iterating {name}", error, self.factory, **where) from error
        return taken

    def _advance(self, run: ShardIterator, shard: int, count: int) -> list[dict[str, Any]]:
        """Return the iterator's next samples, and keep its state before them."""
        at = run.at
        state = (
            run.state() if at and self._trusts_states and (shard, at) not in self._states else None
        )
        samples = run.take(count)
        if state is not None and samples:
            self._states[shard, at] = state, _digest(samples[0])
            while len(self._states) > _MAX_STATES:
                self._states.popitem(last=False)
        return samples

    def _nearest(self, shard: int, begin: int) -> ShardIterator:
        """Return the iterator that is at `begin`, or nearest before it."""
        run = self._running.pop(shard, None)
        if run is not None and run.at > begin:
            run = None
        at = max((at for number, at in self._states if number == shard and at <= begin), default=0)
        if at <= (0 if run is None else run.at):
            return run or ShardIterator(self._shard(shard))
        state, digest = self._states[shard, at]
        restored = ShardIterator(self._shard(shard), state, at)
        sample = restored.look_ahead()
        if sample is not None and _digest(sample) == digest:
            return restored
        _log.warning(
            "%s: load_state_dict leads shard %d to other samples than before, so states are not "
            "used: each step back in a shard iterates the shard from its begin",
            name_of(self.factory),
            shard,
        )
        self._trusts_states = False
        self._states.clear()
        return run or ShardIterator(self._shard(shard))


class Copies:
    """A factory of copies of a dataset, which divide its samples by `get_worker_info`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.__qualname__ = type(dataset).__qualname__

    def __call__(self, shard: int) -> Any:
        try:
            # As the dataset came here, and as torch's workers get it.
            return pickle.loads(pickle.dumps(self.dataset))  # noqa: S301
        except (pickle.PicklingError, AttributeError, TypeError):
            # Its class came here by value with it, as those of scripts do.
            return copy.deepcopy(self.dataset)


class Restore:
    """For `Map`: unpickle a sample that `source` has taken."""

    fixed_lengths = True  # as torch's own collation expects, unless the first samples differ

    def __init__(self, source: Iterables) -> None:
        self.source = repr(source)

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({self.source})"

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        # Pickled by `pickle_sample`, in this job.
        restored: dict[str, Any] = pickle.loads(sample[SAMPLE])  # noqa: S301
        return restored


def nbytes(value: Any) -> int:
    """Return about how many bytes a value's data has; equal values give equal numbers anywhere."""
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, (list, tuple, Mapping)):
        return sum(map(nbytes, value.values() if isinstance(value, Mapping) else value))
    return int(getattr(value, "nbytes", 8))


def pickle_sample(sample: Mapping[str, Any]) -> bytes:
    """Pickle a sample to send it to another process of the job. DataError names a field that
    fails.
    """
    arrays = {name: _array(value) for name, value in sample.items()}
    try:
        return pickle.dumps(arrays, pickle.HIGHEST_PROTOCOL)
    except Exception:  # a class may raise any exception
        for name, value in arrays.items():
            try:
                pickle.dumps(value)
            except Exception as error:
                raise DataError(
                    f"field {name!r} is a {type(value).__name__}, which cannot be pickled, so "
                    f"it cannot be sent to the decoders: {error}; yield the data that it is made "
                    "from, and make it in .map"
                ) from error
        raise


def _array(value: Any) -> Any:
    """Return a tensor as an array, whose pickle is smaller and faster; other values as they are."""
    try:
        return as_array(value) if hasattr(value, "detach") else value
    except TypeError:  # a dtype that numpy lacks
        return value


def _digest(sample: dict[str, Any]) -> bytes:
    return hashlib.blake2b(pickle_sample(sample), digest_size=16).digest()
