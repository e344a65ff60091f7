"""Groups of samples, and what a way to make them must say: a function of nothing but their lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Groups:
    """Groups of pieces of samples: group g has pieces `begins[g]` to `begins[g + 1]`, in order.

    A piece is what lies from `begin` to `end` in sample number `sample` of those whose lengths were given. int64 all.
    """

    begins: np.ndarray
    sample: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.begins) - 1

    @classmethod
    def of_whole(cls, group: np.ndarray, sample: np.ndarray, lengths: np.ndarray) -> Groups:
        """Samples that are not cut, each in one group; in a group they are in the order in which they came."""
        in_order = np.lexsort((sample, group))
        ordered, group = sample[in_order], group[in_order]
        begins = np.searchsorted(group, np.arange(group[-1] + 2 if len(group) else 1))
        return cls(begins, ordered, np.zeros_like(ordered), lengths[ordered].astype(np.int64))


class Grouping(Protocol):
    """A way to make groups. Its text names it, in states."""

    @property
    def limit(self) -> int:
        """How much a group holds, in the samples' own measure."""

    @property
    def by_length(self) -> bool:
        """Whether groups come in an order of lengths, and so have to be mixed, however samples were."""

    @property
    def longest(self) -> int | None:
        """The longest sample that a group can hold, None for any."""

    def count(self, lengths: np.ndarray) -> int:
        """How many groups samples of these lengths make, in whatever order they come."""

    def most(self, lengths: np.ndarray) -> int:
        """How many groups they can be split into instead."""

    def groups(self, lengths: np.ndarray, count: int | None = None) -> Groups:
        """The groups of samples of these lengths, in this order; so many, from `count` to `most`, where it is said."""

    def too_long(self, length: int) -> str:
        """What to say of a sample that is longer than any group can hold."""

    def __str__(self) -> str: ...
