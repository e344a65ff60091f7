"""What the floors say to each other: where batches come from, and where their bytes are put.

Owns only shapes of conversation. `execute/cluster/` and `execute/local.py` are batch sources;
`trainer/` owns buffers; neither imports the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Column = np.ndarray | list[Any]
"""One field of several samples: an array whose first axis is the sample, or a list (strings, bytes, objects)."""

Columns = dict[str, Column]
"""Fields by name, all of one length."""


def array_bytes(columns: Columns) -> int:
    """Bytes of those fields that are arrays."""
    return sum(column.nbytes for column in columns.values() if isinstance(column, np.ndarray))


ENDLESS = 1 << 62
"""Steps of an epoch of which nobody knows when it ends."""


class Buffer(Protocol):
    """Memory for the arrays of one batch."""

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        """A writable, contiguous array of this shape inside the buffer; its contents are undefined."""


class BufferPool(Protocol):
    """Buffers that are used again once the batch in them has been given up by everyone."""

    def lease(self, nbytes: int) -> Buffer:
        """A free buffer of at least `nbytes`; a new one is made when none is free. Callable from any thread."""


@dataclass(frozen=True)
class Batch:
    """One rank's share of one global step, in host memory.

    `columns` always holds `__index__` (int64). `buffer` is what the arrays live in, None where they own their memory.
    """

    epoch: int
    step: int
    columns: Columns
    buffer: Buffer | None = None


class BatchSource(Protocol):
    """An endless run of batches in order, from any position; epochs follow each other without a gap."""

    def start(self, epoch: int, step: int) -> None:
        """The next `get` gives this step. Callable again at any time: what was under way is dropped."""

    def get(self) -> Batch:
        """The next batch, waiting for it. Raises what went wrong with exactly that step, in its place.

        `EndOfStreamError` where there is none before the next `start`.
        """

    def ready(self) -> bool:
        """Whether `get` would give a batch, or an error, without waiting."""

    def stats(self) -> dict[str, Any]:
        """Counters and gauges by name: seconds, bytes, samples."""

    def close(self) -> None:
        """Stop and give back everything. Idempotent."""
