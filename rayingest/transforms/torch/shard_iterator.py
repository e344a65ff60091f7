"""Iterate one shard of an iterable dataset as if in a process of its own.

Owns what the dataset's code sees while it runs (the global random states, and whether it is a
worker of torch's DataLoader), and its `state_dict`, used as torchdata's StatefulDataLoader uses it:
the iterator's if it has one, else the iterable's.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rayingest.errors import ConfigError
from rayingest.transforms.functions import failure, is_interrupt, name_of
from rayingest.transforms.global_random import GlobalRandomState
from rayingest.transforms.torch.items import item_fields
from rayingest.transforms.torch.worker_info import Worker, worker_info


@dataclass(frozen=True)
class Shard:
    """One shard of `count`: the iterable `factory(number)`, with a seed of its own.

    `divides`: the iterable sees itself as worker `number` of `count`, and gives that worker's part.
    """

    factory: Callable[[int], Any]
    number: int
    count: int
    seed: int
    divides: bool = False


@dataclass(frozen=True)
class IteratorState:
    """A `state_dict` of an iterator or iterable, and the random states at that time."""

    state: Any
    of_iterator: bool
    random: GlobalRandomState


class ShardIterator:
    """A shard's samples in order, from its begin or from a state after `at` of them.

    An exception in the iterable becomes a DataError that names shard and sample.
    """

    def __init__(self, shard: Shard, state: IteratorState | None = None, at: int = 0) -> None:
        self.at, self.ended = at, False
        self._shard, self._random = shard, GlobalRandomState(shard.seed)
        self._iterable: Any = None
        self._looked_ahead = False
        with self._run_alone():
            self._iterable = iterable = shard.factory(shard.number)
            if not hasattr(iterable, "__iter__"):
                raise ConfigError(
                    f"{self._name} returned a {type(iterable).__name__} for shard {shard.number}, "
                    "which is not iterable"
                )
            if state is not None and not state.of_iterator:
                iterable.load_state_dict(copy.deepcopy(state.state))
            self._first = self._iterator = iter(iterable)
            if state is not None and state.of_iterator:
                self._first.load_state_dict(copy.deepcopy(state.state))
        if state is not None:
            self._random = state.random.copy()

    def take(self, count: int) -> list[dict[str, Any]]:
        """Return the next samples, by field; fewer if the shard has `ended`."""
        samples: list[dict[str, Any]] = []
        with self._run_alone():
            for item in itertools.islice(self._iterator, count):
                samples.append(item_fields(item))
                self.at += 1
        self.ended = len(samples) < count
        self._looked_ahead = self._looked_ahead and not samples
        return samples

    def look_ahead(self) -> dict[str, Any] | None:
        """Return the next sample, which `take` returns again; None at the end."""
        with self._run_alone():
            coming = list(itertools.islice(self._iterator, 1))
            self._iterator = itertools.chain(coming, self._iterator)
            self._looked_ahead = True
            return item_fields(coming[0]) if coming else None

    def state(self) -> IteratorState | None:
        """Return the state before the next sample; None if the iterable has no `state_dict`."""
        of_iterator = _is_stateful(self._first)
        if self._looked_ahead or not (of_iterator or _is_stateful(self._iterable)):
            return None
        with self._run_alone():
            state = copy.deepcopy((self._first if of_iterator else self._iterable).state_dict())
        return IteratorState(state, of_iterator, self._random.copy())

    @property
    def _name(self) -> str:
        return name_of(self._shard.factory)

    @contextmanager
    def _run_alone(self) -> Iterator[None]:
        with self._random.resume(), _as_worker(self._shard, self._iterable):
            try:
                yield
            except BaseException as error:  # some libraries raise classes that would end a worker
                if isinstance(error, ConfigError) or is_interrupt(error):
                    raise
                where = {"shard": f"{self._name}/{self._shard.number}", "offset": self.at}
                raise failure(
                    f"iterating {self._name}", error, self._shard.factory, **where
                ) from error


def _is_stateful(thing: Any) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


@contextmanager
def _as_worker(shard: Shard, iterable: Any) -> Iterator[None]:
    """Make `get_worker_info()` return this shard's worker, if the iterable divides itself by it."""
    # For every shard: an import of torch later on would change which random states exist.
    import torch  # noqa: F401

    if not shard.divides:
        yield
        return
    with worker_info(Worker(shard.number, shard.count), shard.seed, iterable):
        yield
