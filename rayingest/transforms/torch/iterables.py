"""Iterables of samples as PyTorch has them: who iterates their shards where blocks are read.

Owns how a block is reached: by the iterator that has just given the one before it, else by a `state_dict` of the
iterable's from when it was passed, else from the shard's begin. A state is only believed if the sample after it is the
one that came before. Samples travel pickled, from one process of a job to another.
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
from rayingest.plan.order.keys import fold
from rayingest.transforms.code_mark import code_mark
from rayingest.transforms.functions import failure, name_of
from rayingest.transforms.schema import as_array
from rayingest.transforms.torch.iteration import Iteration, Place, Shard

_RUNNING, _PLACES = 8, 256
_AT_ONCE = 64

_log = logging.getLogger("rayingest")


class Iterables:
    """Shards as iterables: `factory(i)` for each. In a process, one thread iterates at a time."""

    def __init__(self, factory: Callable[[int], Any], shards: int, seed: int) -> None:
        self.factory, self.shards, self.seed = factory, shards, seed
        self.__setstate__(self.__dict__)

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({name_of(self.factory)} {code_mark(self.factory)}, {self.seed})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("factory", "shards", "seed")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()
        self._running: OrderedDict[int, Iteration] = OrderedDict()
        self._places: OrderedDict[tuple[int, int], tuple[Place, bytes]] = OrderedDict()
        self._believes = True

    def sizes(self, shard: int, most: int | None) -> np.ndarray:
        """int64: bytes in memory of each of a shard's samples, of the first `most` or of all."""
        run, sizes = Iteration(self._shard(shard)), list[int]()
        while not run.ended and (most is None or len(sizes) < most):
            sizes += map(nbytes, run.give(_AT_ONCE if most is None else most - len(sizes)))
        return np.array(sizes, np.int64)

    def take(self, shard: int, begin: int, end: int) -> list[bytes]:
        """A shard's samples from `begin` to `end`, pickled; fewer where it has ended. DataError for what is raised."""
        with self._lock:
            run = self._nearest(shard, begin)
            while run.at < begin and not run.ended:
                self._go_on(run, shard, min(begin - run.at, end - begin))
            taken = (
                []
                if run.ended
                else self._pickled(shard, begin, self._go_on(run, shard, end - begin))
            )
            if not run.ended:
                self._running[shard] = run
                while len(self._running) > _RUNNING:
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

    def _pickled(self, shard: int, begin: int, samples: list[dict[str, Any]]) -> list[bytes]:
        taken: list[bytes] = []
        for sample in samples:
            try:
                taken.append(pickled(sample))
            except DataError as error:
                what = name_of(self.factory)
                where = {"shard": f"{what}/{shard}", "offset": begin + len(taken)}
                raise failure(f"iterating {what}", error, self.factory, **where) from error
        return taken

    def _go_on(self, run: Iteration, shard: int, count: int) -> list[dict[str, Any]]:
        """The run's next samples; where it stood before them is kept."""
        at = run.at
        place = run.place() if at and self._believes and (shard, at) not in self._places else None
        given = run.give(count)
        if place is not None and given:
            self._places[shard, at] = place, _digest(given[0])
            while len(self._places) > _PLACES:
                self._places.popitem(last=False)
        return given

    def _nearest(self, shard: int, begin: int) -> Iteration:
        """An iteration that is at `begin`, or not far before it."""
        run = self._running.pop(shard, None)
        if run is not None and run.at > begin:
            run = None
        at = max((at for number, at in self._places if number == shard and at <= begin), default=0)
        if at <= (0 if run is None else run.at):
            return run or Iteration(self._shard(shard))
        place, digest = self._places[shard, at]
        restored = Iteration(self._shard(shard), place, at)
        sample = restored.look_ahead()
        if sample is not None and _digest(sample) == digest:
            return restored
        _log.warning(
            "%s: after load_state_dict shard %d goes on with other samples than before; states are not used, and to go "
            "back it is iterated from its begin",
            name_of(self.factory),
            shard,
        )
        self._believes = False
        self._places.clear()
        return run or Iteration(self._shard(shard))


class Copies:
    """A factory that gives a data set's own copies, which divide it among them by `get_worker_info`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.__qualname__ = type(dataset).__qualname__

    def __call__(self, shard: int) -> Any:
        try:
            return pickle.loads(pickle.dumps(self.dataset))  # noqa: S301 - as it came here, and torch's workers have it
        except (
            pickle.PicklingError,
            AttributeError,
            TypeError,
        ):  # its class came here with it, as those of scripts do
            return copy.deepcopy(self.dataset)


class Restore:
    """For `Map`: the fields of a sample that was taken; `source` is who took it."""

    fixed_lengths = True  # as torch's own collation has it: 1-D arrays of one field have one length

    def __init__(self, source: Iterables) -> None:
        self.source = repr(source)

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({self.source})"

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        restored: dict[str, Any] = pickle.loads(sample[SAMPLE])  # noqa: S301 - by `pickled`, in this job
        return restored


def nbytes(value: Any) -> int:
    """Bytes of a value's data, near enough, and the same wherever and whenever it is asked."""
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, (list, tuple, Mapping)):
        return sum(map(nbytes, value.values() if isinstance(value, Mapping) else value))
    return int(getattr(value, "nbytes", 8))


def pickled(sample: Mapping[str, Any]) -> bytes:
    """A sample as it travels from one process of a job to another. DataError names a field that cannot."""
    arrays = {name: _array(value) for name, value in sample.items()}
    try:
        return pickle.dumps(arrays, pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever a class raises that is not to be pickled
        for name, value in arrays.items():
            try:
                pickle.dumps(value)
            except Exception as error:
                raise DataError(
                    f"field {name!r} is a {type(value).__name__} that cannot be pickled, as what is iterated must be "
                    f"to get to the decoders: {error}; give what it is made from, and make it in .map"
                ) from error
        raise


def _array(value: Any) -> Any:
    """A tensor as the array that it is, whose pickle is smaller and quicker."""
    try:
        return as_array(value) if hasattr(value, "detach") else value
    except TypeError:  # none that numpy can have
        return value


def _digest(sample: dict[str, Any]) -> bytes:
    return hashlib.blake2b(pickled(sample), digest_size=16).digest()
