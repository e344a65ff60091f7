"""Helpers of the planners: runs of equal entries in arrays, and a cache of the values used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LastUsed(Generic[K, V]):
    """Values by key. An absent value is made on demand; the `size` values used last are kept."""

    def __init__(self, make: Callable[[K], V], size: int = 2) -> None:
        self._make, self._size = make, size
        self._values: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        """Return the value of a key."""
        values = self._values
        if key not in values:
            values[key] = self._make(key)
            if len(values) > self._size:
                values.popitem(last=False)
        values.move_to_end(key)
        return values[key]


def runs(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each run of rows that are equal in all columns begins, and its length; int64."""
    changed = np.zeros(max(0, len(columns[0]) - 1), bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    begins = np.flatnonzero(changed)
    starts = np.zeros(min(1, len(columns[0])) + len(begins), np.int64)
    np.add(begins, 1, out=starts[1:])
    counts = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1])
    counts[-1:] = len(columns[0]) - starts[-1:]
    return starts, counts


def latest(key: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return for each entry the largest `step` of all entries with the same key; int64."""
    _, which = np.unique(key, return_inverse=True)
    largest = np.zeros(which.max() + 1, np.int64)
    np.maximum.at(largest, which, step)
    return np.asarray(largest[which])
