"""One shard of a data set that is iterated, running: as if in a process of its own.

Owns what code of others sees while it runs (the global random states, and whether it is a worker of torch's
DataLoader), and the iterable's own `state_dict`, as torchdata's StatefulDataLoader uses it: that of the iterator, else
of the iterable.
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
from rayingest.transforms.torch.items import fields
from rayingest.transforms.torch.random_state import Seeded


@dataclass(frozen=True)
class Shard:
    """Whose iterables these are, and which of them: `factory(number)`, one of `count`. `seed` is the shard's own.

    `divides`: the iterable is to see itself as worker `number` of `count`, and to give that worker's part.
    """

    factory: Callable[[int], Any]
    number: int
    count: int
    seed: int
    divides: bool = False


@dataclass(frozen=True)
class Place:
    """Where an iterable stood, in its own words, and where its random states did."""

    state: Any
    of_iterator: bool
    random: Seeded


class Iteration:
    """A shard's samples one after the other, from its begin or from a place after `at` of them.

    Whatever the iterable raises becomes a DataError that names shard and sample.
    """

    def __init__(self, shard: Shard, place: Place | None = None, at: int = 0) -> None:
        self.at, self.ended = at, False
        self._shard, self._random = shard, Seeded(shard.seed)
        self._made: Any = None
        self._looked_ahead = False
        with self._inside():
            self._made = made = shard.factory(shard.number)
            if not hasattr(made, "__iter__"):
                raise ConfigError(
                    f"{self._what} gave a {type(made).__name__} for shard {shard.number}: no iterable"
                )
            if place is not None and not place.of_iterator:
                made.load_state_dict(copy.deepcopy(place.state))
            self._own = self._iterator = iter(made)
            if place is not None and place.of_iterator:
                self._own.load_state_dict(copy.deepcopy(place.state))
        if place is not None:
            self._random = place.random.copy()

    def give(self, count: int) -> list[dict[str, Any]]:
        """The next samples, by field; fewer where the shard has `ended`."""
        given: list[dict[str, Any]] = []
        with self._inside():
            for item in itertools.islice(self._iterator, count):
                given.append(fields(item))
                self.at += 1
        self.ended = len(given) < count
        self._looked_ahead = self._looked_ahead and not given
        return given

    def look_ahead(self) -> dict[str, Any] | None:
        """The next sample, which is given all the same; None at the end."""
        with self._inside():
            coming = list(itertools.islice(self._iterator, 1))
            self._iterator = itertools.chain(coming, self._iterator)
            self._looked_ahead = True
            return fields(coming[0]) if coming else None

    def place(self) -> Place | None:
        """Where it stands; None where the iterable does not say."""
        of_iterator = _is_stateful(self._own)
        if self._looked_ahead or not (of_iterator or _is_stateful(self._made)):
            return None
        with self._inside():
            state = copy.deepcopy((self._own if of_iterator else self._made).state_dict())
        return Place(state, of_iterator, self._random.copy())

    @property
    def _what(self) -> str:
        return name_of(self._shard.factory)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with self._random.stretch(), _as_worker(self._shard, self._made):
            try:
                yield
            except BaseException as error:  # whatever it is: many a kind would end a worker
                if isinstance(error, ConfigError) or is_interrupt(error):
                    raise
                where = {"shard": f"{self._what}/{self._shard.number}", "offset": self.at}
                raise failure(
                    f"iterating {self._what}", error, self._shard.factory, **where
                ) from error


def _is_stateful(thing: Any) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


@contextmanager
def _as_worker(shard: Shard, made: Any) -> Iterator[None]:
    """Inside, `get_worker_info()` says which worker this is, if the iterable is to divide itself by that."""
    from torch.utils.data._utils import (
        worker,  # for all of them: who imports torch later on has other random states
    )

    if not shard.divides:
        yield
        return
    before = worker._worker_info
    worker._worker_info = worker.WorkerInfo(
        id=shard.number, num_workers=shard.count, seed=shard.seed, dataset=made
    )
    try:
        yield
    finally:
        worker._worker_info = before
