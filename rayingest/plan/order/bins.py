"""Bins of samples, and the protocol of a packer: a function of nothing but the samples' lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Bins:
    """Bins of pieces of samples: bin b has pieces `begins[b]` to `begins[b + 1]`, in order.

    A piece is the part from `begin` to `end` of sample number `sample` of those whose lengths were
    given. All int64.
    """

    begins: np.ndarray
    sample: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.begins) - 1

    @classmethod
    def of_whole(cls, bin_of: np.ndarray, sample: np.ndarray, lengths: np.ndarray) -> Bins:
        """Return bins of whole samples; those of a bin are in ascending order."""
        in_order = np.lexsort((sample, bin_of))
        ordered, bin_of = sample[in_order], bin_of[in_order]
        begins = np.searchsorted(bin_of, np.arange(bin_of[-1] + 2 if len(bin_of) else 1))
        return cls(begins, ordered, np.zeros_like(ordered), lengths[ordered].astype(np.int64))


class Packer(Protocol):
    """A way to put samples into bins. Its text names it in states."""

    @property
    def row(self) -> str:
        """What a bin is, in the plural."""

    @property
    def limit(self) -> int:
        """The capacity of a bin, in the samples' own measure."""

    @property
    def sorted_by_length(self) -> bool:
        """Whether bins come in an order of lengths, so that they have to be permuted."""

    @property
    def longest(self) -> int | None:
        """The longest sample that a bin can hold, None for any."""

    def count(self, lengths: np.ndarray) -> int:
        """Return how many bins samples of these lengths make, in whatever order they come."""

    def most(self, lengths: np.ndarray) -> int:
        """Return how many bins they can be split into instead."""

    def bins(self, lengths: np.ndarray, count: int | None = None) -> Bins:
        """Return the bins of samples of these lengths, in this order.

        `count`: how many, from what `count` returns to what `most` returns; None: the least.
        """

    def too_long(self, length: int) -> str:
        """Return what to say of a sample that is longer than any bin can hold."""

    def __str__(self) -> str: ...
