"""Define the types that executors and trainers share: batches, buffers, sources of batches.

Owns interfaces and no behaviour. `execute/cluster/` and `execute/local.py` are batch sources,
`trainer/` owns buffers, and neither imports the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Column = np.ndarray | list[Any]
"""One field of several samples: an array with the samples on its first axis, or a list (strings,
bytes, objects)."""

Columns = dict[str, Column]
"""Columns by field name, all of the same length."""


def array_bytes(columns: Columns) -> int:
    """Return the bytes of the columns that are arrays."""
    return sum(column.nbytes for column in columns.values() if isinstance(column, np.ndarray))


ENDLESS = 1 << 62
"""The number of steps of an epoch whose end is unknown."""


class Buffer(Protocol):
    """Memory for the arrays of one batch."""

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        """Return a writable, contiguous array inside the buffer; its contents are undefined."""


class BufferPool(Protocol):
    """Buffers that are used again when no reference to their batch is left."""

    def lease(self, nbytes: int) -> Buffer:
        """Return a free buffer of at least `nbytes` bytes, or a new one if none is free.

        Callable from any thread.
        """


@dataclass(frozen=True)
class Batch:
    """One rank's share of one global step, in host memory.

    `columns` always has `__index__` (int64). `buffer` holds the arrays; None if they own their
    memory.
    """

    epoch: int
    step: int
    columns: Columns
    buffer: Buffer | None = None


class BatchSource(Protocol):
    """Gives batches in order, from any position and without end: epoch follows epoch."""

    def start(self, epoch: int, step: int) -> None:
        """Make this step the next one that `get` returns.

        Callable again at any time: the work in progress is dropped.
        """

    def get(self) -> Batch:
        """Wait for the next batch and return it.

        If a step failed, raises its error in its place. Raises `EndOfStreamError` if no batch is
        left before the next `start`.
        """

    def ready(self) -> bool:
        """Return whether `get` would return a batch, or raise an error, without waiting."""

    def stats(self) -> dict[str, Any]:
        """Return counters and gauges by name: seconds, bytes, samples."""

    def close(self) -> None:
        """Stop, and release all resources. Idempotent."""
