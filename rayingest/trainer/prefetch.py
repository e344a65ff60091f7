"""From a source's batches in host memory to the training loop's tensors: on the CPU, or copied ahead to a device.

The rules of copying ahead, each of which fails in silence when it is broken:

1. A slot is used again only after the event recorded behind its copies has completed. The prefetcher holds the host
   tensors until then.
2. The consumer's stream waits on that event before anything of the batch is used on it.
3. Tensors allocated on the copy stream are made known to the allocator as used by the consumer's stream, or their
   memory would go to the next copy as soon as Python drops them, kernels still reading it.
4. What is done to a tensor after its copy runs on the consumer's stream, after the wait.

Nothing here waits for the device: events are asked, at the next call again. Refuses to know about epochs and states.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from rayingest.errors import ConfigError
from rayingest.plan.figures.metrics import Span, no_span
from rayingest.plan.protocols import Batch, BufferPool, Column, Columns
from rayingest.trainer.device import Backend, Event

Position = tuple[int, int]
"""Epoch and step."""

Values = dict[str, Any]
"""One batch as the training loop sees it: tensors, and lists of what is no tensor."""

AfterCopy = Mapping[str, Callable[[torch.Tensor], Any]]
"""By field, what to do with its tensor once it is on the device, such as bytes to normalised floats."""

_TENSOR_DTYPES = frozenset(np.dtype(code) for code in "?bhilqBHILQefdFD")
_TORCH_CODES = frozenset("?bhilqBHILefdFD")
"""Those that PyTorch takes as they are."""


class Batches(Protocol):
    """Batches in order, ready for the training loop."""

    def next(self) -> tuple[Position, Values]:
        """The next batch and which it is. Raises what went wrong with exactly that one."""

    def reset(self) -> None:
        """Forget what was fetched ahead: the source is about to start elsewhere."""

    def stats(self) -> dict[str, Any]:
        """Figures of copying to the device."""

    def close(self) -> None:
        """Give back all memory. Idempotent."""


class HostBatches:
    """Batches in host memory. The tensors are the source's arrays, not copies; running ahead is left to the source."""

    def __init__(
        self, source_get: Callable[[], Batch], after_copy: AfterCopy | None = None
    ) -> None:
        self._source_get = source_get
        self._after_copy = after_copy or {}

    def next(self) -> tuple[Position, Values]:
        batch = self._source_get()
        values = {name: host_value(column) for name, column in batch.columns.items()}
        return (batch.epoch, batch.step), _transformed(values, self._after_copy)

    def reset(self) -> None:
        pass

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


class DevicePrefetcher:
    """Batches on a device, with the copies of up to `depth` further ones issued before they are asked for.

    Args:
        source_get: the next batch in host memory; an exception stands for that batch.
        backend: the device, and its copy stream.
        depth: copies issued beyond the batch handed out; 0 copies each when it is asked for.
        after_copy: by field, what runs on its tensor on the consumer's stream.
        staging: where the arrays of a batch without a buffer are copied first, so that the copy to the device need not
            wait; None leaves them where they are.
        ready: whether `source_get` would answer without waiting. Running ahead goes only as far as it says, so that a
            batch at hand never waits for a later one; without it, `source_get` is called for all of `depth`.
        may_run_ahead: whether the batch after the given one may be fetched before it is asked for.
        span: is told how long issuing each batch's copies took.
    """

    def __init__(
        self,
        source_get: Callable[[], Batch],
        backend: Backend,
        depth: int = 2,
        after_copy: AfterCopy | None = None,
        *,
        staging: BufferPool | None = None,
        ready: Callable[[], bool] | None = None,
        may_run_ahead: Callable[[Position], bool] | None = None,
        span: Span = no_span,
    ) -> None:
        self._span = span
        self._source_get = source_get
        self._backend = backend
        self._depth = depth
        self._after_copy = after_copy or {}
        self._staging = staging
        self._ready = ready
        self._may_run_ahead = may_run_ahead
        self._issued: deque[_Issued] = deque()
        self._failure: Exception | None = None  # of the batch after the last one in `_issued`
        # Host tensors with a copy under way, in the order of the copies; one stream completes them in that order.
        self._copying: deque[tuple[Event, list[torch.Tensor]]] = deque()
        self._copy_seconds, self._bytes_copied = 0.0, 0

    def next(self) -> tuple[Position, Values]:
        self._release_copied()
        if not self._issued and self._failure is None:
            self._issue()
        while len(self._issued) <= self._depth and self._may_issue():
            self._issue()
        if not self._issued:
            raise self._take_failure()
        # The batch leaves the queue only now: an interrupt while running ahead has lost nothing.
        issued = self._issued.popleft()
        return issued.position, self._hand_over(issued)

    def reset(self) -> None:
        self._issued.clear()
        self._failure = None

    def stats(self) -> dict[str, Any]:
        """`bytes_copied`, and `copy_seconds` that issuing the copies took: the device does them in its own time."""
        return {"copy_seconds": self._copy_seconds, "bytes_copied": self._bytes_copied}

    def close(self) -> None:
        self.reset()
        while self._copying:
            self._copying[0][0].synchronize()
            self._copying.popleft()

    def _may_issue(self) -> bool:
        if self._failure is not None:
            return False
        if self._may_run_ahead is not None and not self._may_run_ahead(self._issued[-1].position):
            return False
        return self._ready is None or self._ready()

    def _issue(self) -> None:
        """Fetch one batch and issue its copies; what goes wrong is kept for the moment when this batch is asked for."""
        try:
            self._issued.append(self._copy(self._source_get()))
        except Exception as error:
            self._failure = error

    def _copy(self, batch: Batch) -> _Issued:
        begun = time.perf_counter()
        columns = batch.columns
        if batch.buffer is None and self._staging is not None:
            columns = _staged(columns, self._staging)
        values: Values = {}
        sources: list[torch.Tensor] = []
        try:
            for name, column in columns.items():
                value = host_value(column)
                if isinstance(value, torch.Tensor):
                    sources.append(value)
                    value = self._backend.copy(value)
                values[name] = value
        finally:  # a copy that cannot be issued leaves those before it under way
            event = self._backend.record(self._backend.copy_stream)
            self._copying.append((event, sources))
            took = time.perf_counter() - begun
            self._copy_seconds += took
            self._span("copy", took, "loop", (batch.epoch, batch.step))
            self._bytes_copied += sum(source.nbytes for source in sources)
        return _Issued((batch.epoch, batch.step), values, event)

    def _hand_over(self, issued: _Issued) -> Values:
        consumer = self._backend.current_stream()
        self._backend.wait(consumer, issued.event)
        for value in issued.values.values():
            if isinstance(value, torch.Tensor):
                self._backend.record_stream(value, consumer)
        return _transformed(issued.values, self._after_copy)

    def _release_copied(self) -> None:
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()

    def _take_failure(self) -> Exception:
        failure, self._failure = self._failure, None
        assert failure is not None
        return failure


@dataclass(frozen=True)
class _Issued:
    """A batch whose copies the device has been given."""

    position: Position
    values: Values
    event: Event


def host_value(column: Column | torch.Tensor) -> Any:
    """A tensor over the array's own memory; lists and arrays that PyTorch has no type for stay what they are.

    A read-only array, one of foreign byte order or with strides that PyTorch refuses is copied.
    """
    if not isinstance(column, np.ndarray):
        return column
    flags = column.flags
    if (
        column.dtype.char in _TORCH_CODES
        and column.dtype.isnative
        and flags.writeable
        and flags.c_contiguous
    ):
        return torch.from_numpy(column)
    native = column.dtype.newbyteorder("=")
    if native not in _TENSOR_DTYPES:
        return column
    # The view gives one of NumPy's two equal 64-bit types the one that PyTorch knows.
    array = column.astype(native, copy=False).view(native.str)
    if not array.flags.writeable or any(
        stride < 0 or stride % array.itemsize for stride in array.strides
    ):
        array = array.copy()
    return torch.from_numpy(array)


def _staged(columns: Columns, pool: BufferPool) -> Columns:
    """The same columns with their arrays copied into one buffer of the pool."""
    arrays = {
        name: column
        for name, column in columns.items()
        if isinstance(column, np.ndarray) and column.dtype.newbyteorder("=") in _TENSOR_DTYPES
    }
    buffer = pool.lease(sum(array.nbytes for array in arrays.values()))
    staged = dict(columns)
    for name, array in arrays.items():
        place = buffer.array(array.shape, array.dtype.newbyteorder("="))
        np.copyto(place, array)
        staged[name] = place
    return staged


def _transformed(values: Values, after_copy: AfterCopy) -> Values:
    for name, function in after_copy.items():
        if not isinstance(values.get(name), torch.Tensor):
            tensors = ", ".join(
                key for key, value in values.items() if isinstance(value, torch.Tensor)
            )
            raise ConfigError(
                f"after_copy names {name!r}, which is no tensor of the batch; those are: {tensors}"
            )
        values[name] = function(values[name])
    return values
