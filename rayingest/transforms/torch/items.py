"""Get the samples of a PyTorch map-style dataset, `dataset[i]`, where samples are decoded.

Owns how an item's parts become fields, and the random numbers inside the dataset: the global states
of Python, numpy and torch are seeded for each sample, and restored after it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from rayingest.errors import ConfigError
from rayingest.formats.protocol import NUMBER
from rayingest.plan.order.randomness import fold
from rayingest.transforms.code_mark import code_mark
from rayingest.transforms.global_random import global_seed, state_mark
from rayingest.transforms.torch.worker_info import own_worker, worker_info

ITEM = "item"
"""The field of an item that is not split into fields."""


class _Items:
    """A dataset in a process that gets its items; shared by the threads of that process.

    A number n stands for the item of index n modulo the length: repeats of an item have numbers of
    their own. `worker_init_fn(number)` is called once in each process, with its number among the
    workers. `whole`: items are not split into fields. torch's `get_worker_info()` names the worker
    and the dataset; its seed is the item's own, so that no item depends on its worker.
    """

    fixed_lengths = True  # as torch's own collation expects, unless the first samples differ

    makes_items = True
    """A sample begins here, so no call can come before it: a statistic checks the items instead."""

    def __init__(
        self, dataset: Any, worker_init_fn: Callable[[int], object] | None, whole: bool
    ) -> None:
        self.dataset, self.worker_init_fn, self.whole = dataset, worker_init_fn, whole
        self.samples = len(dataset)
        self.__qualname__ = f"{type(dataset).__qualname__}[...]"
        self.mark = code_mark([dataset, worker_init_fn])  # before any use: use may fill caches
        self.__setstate__(self.__dict__)

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({type(self.dataset).__qualname__} {self.mark})"

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in {"_lock", "_ready"}
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._ready = threading.RLock(), False

    def _draw(self, number: int, key: int, get: Callable[[int], Any]) -> Any:
        again, index = divmod(number, self.samples)
        seed = fold("item", key, again)
        with global_seed(seed), self._as_worker(seed):
            return get(index)

    def _as_worker(self, seed: int) -> AbstractContextManager[None]:
        """Let torch's `get_worker_info()` name this dataset; do nothing where torch is unused."""
        if "torch" not in sys.modules:
            return nullcontext()
        return worker_info(own_worker(), seed, self.dataset)

    def _set_up(self) -> None:
        if not self._ready:
            if self.worker_init_fn is not None:
                seed = fold("item", own_worker().number)
                with global_seed(seed), worker_info(own_worker(), seed, self.dataset):
                    self.worker_init_fn(own_worker().number)
            self._ready = True


class Fetch(_Items):
    """For `Map`: replace a number by `dataset[i]`."""

    def __call__(self, sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        with self._lock:
            self._set_up()
            item = self._draw(
                sample[NUMBER], rng.bit_generator.random_raw(), self.dataset.__getitem__
            )
        return {ITEM: detach(item)} if self.whole else item_fields(item)


class FetchTogether(_Items):
    """For `MapBatches`: replace numbers by the items of the dataset's `__getitems__`, whole.

    If the dataset draws random numbers, its items are fetched one by one: a sample may not depend
    on the samples that are fetched with it.
    """

    _draws = False

    def __call__(
        self, columns: Mapping[str, Any], rng: list[np.random.Generator]
    ) -> dict[str, list[Any]]:
        numbers, keys = columns[NUMBER], [one.bit_generator.random_raw() for one in rng]
        with self._lock:
            self._set_up()
            if not self._draws:
                with global_seed(keys[0]), self._as_worker(keys[0]):
                    before = state_mark()
                    items = self._get([number % self.samples for number in numbers])
                    self._draws = state_mark() != before
            if self._draws:
                items = [
                    self._draw(n, key, lambda i: self._get([i])[0])
                    for n, key in zip(numbers, keys, strict=True)
                ]
        return {ITEM: [detach(item) for item in items]}

    def _get(self, indices: list[int]) -> list[Any]:
        items = list(self.dataset.__getitems__(indices))
        if len(items) != len(indices):
            raise ConfigError(
                f"__getitems__ of {self.__qualname__} returned {len(items)} items for "
                f"{len(indices)} indices"
            )
        return items


class Unpack:
    """For `Map`: split an item that was fetched whole into its fields."""

    fixed_lengths = True

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return item_fields(sample[ITEM])

    def __repr__(self) -> str:
        return "Unpack()"


class Collate:
    """Turn a torch `collate_fn` of items into a collate function of samples.

    The parts of its result become columns.
    """

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self.collate_fn = collate_fn
        self.__qualname__ = (
            f"by collate_fn {getattr(collate_fn, '__qualname__', type(collate_fn).__qualname__)}"
        )
        self.mark = code_mark(collate_fn)

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({self.__qualname__} {self.mark})"

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return item_fields(self.collate_fn([sample[ITEM] for sample in samples]))


def item_fields(item: Any) -> dict[str, Any]:
    """Return an item's parts by name.

    A mapping's have their keys as names, a tuple's or list's their places ("0", "1"); any other
    item is "0". Mappings and tuples inside are split too ("1.boxes"); lists inside are values.
    Gradients are left behind.
    """
    if isinstance(item, (Mapping, tuple, list)):
        return dict(_parts("", dict(enumerate(item)) if isinstance(item, list) else item))
    return {"0": item}


def _parts(above: str, item: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(item, (Mapping, tuple)):
        for name, part in item.items() if isinstance(item, Mapping) else enumerate(item):
            yield from _parts(f"{above}.{name}" if above else str(name), part)
    else:
        yield above, detach(item)


_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})


def detach(value: Any) -> Any:
    """Return the value with every tensor in its lists, tuples and dicts cut from its gradients."""
    if hasattr(value, "detach"):
        return value.detach() if getattr(value, "requires_grad", False) else value
    if isinstance(value, (list, tuple)):
        if _PLAIN.issuperset(map(type, value)):
            return value
        parts = [detach(part) for part in value]
        if all(part is before for part, before in zip(parts, value, strict=True)):
            return value
        return parts if isinstance(value, list) else getattr(type(value), "_make", tuple)(parts)
    if isinstance(value, dict):
        parts_by_name = {name: detach(part) for name, part in value.items()}
        same = all(parts_by_name[name] is part for name, part in value.items())
        return value if same else parts_by_name
    return value
