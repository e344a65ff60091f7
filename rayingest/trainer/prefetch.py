"""Turn a source's batches in host memory into tensors: on the CPU, or copied ahead to a device.

Owns the host memory that sources write into (`SlotPool`), the tensors of a batch on the CPU, and
the copies to a device.

Slots. An arena has one lease at a time. Every array cut from it, and every tensor, view or storage
of such an array, refers to one `_Lease` object. When the last of them is gone, the lease ends and
the arena is free again. So a batch that a loader yields belongs to the user for as long as the user
keeps it. There is no call that frees memory, so none can come too early.

The rules of copying ahead. Breaking one of them corrupts batches without an error:

1. A slot is reused only after the event behind its copies has completed. Until then the prefetcher
   holds the host tensors.
2. The consumer's stream waits for that event before it uses the batch.
3. The allocator learns that the consumer's stream uses the tensors that the copy stream allocated.
   Otherwise the next copy would get their memory as soon as Python drops them, while kernels read
   it.
4. `after_copy` functions run on the consumer's stream, after the wait.

Copying runs on the thread of the training loop, inside `next()`. No call waits for the device: each
call queries the events once. Knows nothing of passes and states.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
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
"""One batch as the training loop gets it: a tensor per field, or a list for other types."""

AfterCopy = Mapping[str, Callable[[torch.Tensor], Any]]
"""By field, a function of its tensor on the device, for example from bytes to normalised floats."""

_TENSOR_DTYPES = frozenset(np.dtype(code) for code in "?bhilqBHILQefdFD")
_TORCH_CODES = frozenset("?bhilqBHILefdFD")
"""The type codes that PyTorch takes without a view."""

_ALIGNMENT = 64
_SLACK = 64 * _ALIGNMENT
"""Room for the alignment gaps between 64 arrays: a lease counts the bytes of its arrays alone."""
_SMALLEST = 64 * 1024
_PAGE = 4096
_PEAK_WINDOW = 64
"""The pool keeps as many arenas as were leased at once during this many leases."""
_SPARE = 2
"""Free arenas to keep beyond that peak, so that a rare peak does not allocate each time."""


class Batches(Protocol):
    """Gives batches in order, ready for the training loop."""

    def next(self) -> tuple[Position, Values]:
        """Return the next batch and its position. Raises the error of exactly this batch."""

    def reset(self) -> None:
        """Discard batches fetched ahead, before the source starts elsewhere."""

    def stats(self) -> dict[str, Any]:
        """Return the figures of copying to the device."""

    def close(self) -> None:
        """Free all memory. Idempotent."""


class HostBatches:
    """Gives batches in host memory. The tensors share the memory of the source's arrays.

    Only the source runs ahead.
    """

    def __init__(
        self, source_get: Callable[[], Batch], after_copy: AfterCopy | None = None
    ) -> None:
        self._source_get = source_get
        self._after_copy = after_copy or {}

    def next(self) -> tuple[Position, Values]:
        batch = self._source_get()
        values = {name: host_value(column) for name, column in batch.columns.items()}
        return (batch.epoch, batch.step), _apply(self._after_copy, values)

    def reset(self) -> None:
        pass

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


class DevicePrefetcher:
    """Gives batches on a device, and issues the copies of up to `depth` batches ahead of the loop.

    Args:
        source_get: returns the next batch in host memory; an exception takes the batch's place.
        backend: the device and its copy stream.
        depth: the number of batches to copy ahead; 0 copies each batch when the loop asks for it.
        after_copy: by field, a function that runs on its tensor on the consumer's stream.
        staging: the pool to copy a batch's arrays into first if the batch has no buffer, so that
            the copy to the device need not wait. None copies them from where they are.
        ready: returns whether `source_get` would return without waiting. The prefetcher then runs
            ahead only while it is true, so a finished batch never waits for a later one. None: call
            `source_get` for all of `depth`.
        may_run_ahead: returns whether the batch after the given position may be fetched ahead.
        span: receives the time that issuing each batch's copies took.
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
        # The error of the batch after the last one in `_issued`.
        self._failure: Exception | None = None
        # Rule 1: host tensors whose copies have not completed. One stream completes them in order.
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
        # The batch leaves the queue only now, so an interrupt while running ahead loses no batch.
        issued = self._issued.popleft()
        return issued.position, self._hand_over(issued)

    def reset(self) -> None:
        self._issued.clear()
        self._failure = None

    def stats(self) -> dict[str, Any]:
        """Return `bytes_copied`, and `copy_seconds` spent issuing copies (not running them)."""
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
        """Fetch one batch and issue its copies; keep an error until this batch is due."""
        try:
            self._issued.append(self._copy(self._source_get()))
        except Exception as error:
            self._failure = error

    def _copy(self, batch: Batch) -> _Issued:
        begun = time.perf_counter()
        columns = batch.columns
        if batch.buffer is None and self._staging is not None:
            columns = _stage(columns, self._staging)
        values: Values = {}
        sources: list[torch.Tensor] = []
        try:
            for name, column in columns.items():
                value = host_value(column)
                if isinstance(value, torch.Tensor):
                    sources.append(value)
                    value = self._backend.copy(value)
                values[name] = value
        finally:
            # Rule 1 also holds where a copy cannot be issued: the copies before it still run.
            event = self._backend.record(self._backend.copy_stream)
            self._copying.append((event, sources))
            took = time.perf_counter() - begun
            self._copy_seconds += took
            self._span("copy", took, "loop", (batch.epoch, batch.step))
            self._bytes_copied += sum(source.nbytes for source in sources)
        return _Issued((batch.epoch, batch.step), values, event)

    def _hand_over(self, issued: _Issued) -> Values:
        consumer = self._backend.current_stream()
        self._backend.wait(consumer, issued.event)  # rule 2
        for value in issued.values.values():
            if isinstance(value, torch.Tensor):
                self._backend.record_stream(value, consumer)  # rule 3
        return _apply(self._after_copy, issued.values)  # rule 4

    def _release_copied(self) -> None:
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()

    def _take_failure(self) -> Exception:
        failure, self._failure = self._failure, None
        assert failure is not None
        return failure


class SlotPool:
    """A pool of host arenas: the `BufferPool` that batch sources write into. Thread-safe.

    It keeps at most two arenas more than were leased at once during the last 64 leases. A user who
    keeps many batches makes the pool grow; once they are dropped, it shrinks again.

    Args:
        pin: page-lock the memory, so that copies to a device overlap computation. Needs CUDA.
    """

    def __init__(self, pin: bool = False) -> None:
        self.pin = pin
        self._lock = threading.Lock()
        # A lease can end anywhere, even in a garbage collection while this lock is held, so its end
        # must not take the lock. It comes here, and the next holder of the lock collects the arena.
        # `append` runs no Python code: a signal's handler that ran there would raise its exception
        # inside a finaliser, where Python drops it (Ctrl-C would do nothing).
        self._ended: deque[_End] = deque()
        self._leases: dict[int, _End] = {}  # by id; a weak reference calls back only if it lives
        self._free: list[_Arena] = []  # the longest unused first
        self._nbytes = 0
        self._peaks: deque[int] = deque(maxlen=_PEAK_WINDOW)

    def lease(self, nbytes: int) -> Slot:
        """Lease a slot for arrays of `nbytes` together; allocate if no free arena fits."""
        return Slot(self, self._lease(nbytes + _SLACK))

    @property
    def slots(self) -> int:
        """The number of arenas, leased or free."""
        with self._lock:
            self._collect()
            return len(self._leases) + len(self._free)

    @property
    def leased(self) -> int:
        """The number of arenas whose leases have not ended."""
        with self._lock:
            self._collect()
            return len(self._leases)

    @property
    def nbytes(self) -> int:
        """Bytes of all arenas, leased or free."""
        with self._lock:
            self._collect()
            return self._nbytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes of page-locked memory in this pool: all of it, or 0."""
        return self.nbytes if self.pin else 0

    def _lease(self, nbytes: int) -> np.ndarray:
        """Return an arena's memory, uint8[>= nbytes], leased for as long as a view of it lives."""
        with self._lock:
            self._collect()
            arena = self._take(nbytes) or self._build(nbytes)
            lease = _Lease(arena)
            end = _End(lease, self._ended.append)
            end.arena = arena
            self._leases[id(end)] = end
            self._peaks.append(len(self._leases))
            surplus = len(self._leases) + len(self._free) - max(self._peaks) - _SPARE
            for unused in self._free[: max(surplus, 0)]:
                self._drop(unused)
        return np.asarray(lease)

    def _collect(self) -> None:
        while self._ended:
            end = self._ended.popleft()
            del self._leases[id(end)]
            self._free.append(end.arena)

    def _take(self, nbytes: int) -> _Arena | None:
        """Take the smallest free arena that is large enough.

        If all are too small, drop the smallest, so that outgrown arenas do not pile up; return
        None.
        """
        by_size = sorted(self._free, key=lambda arena: arena.nbytes)
        for arena in by_size:
            if arena.nbytes >= nbytes:
                self._free.remove(arena)
                return arena
        if by_size:
            self._drop(by_size[0])
        return None

    def _build(self, nbytes: int) -> _Arena:
        arena = _Arena(_capacity(nbytes, self.pin), self.pin)
        self._nbytes += arena.nbytes
        return arena

    def _drop(self, arena: _Arena) -> None:
        self._free.remove(arena)
        self._nbytes -= arena.nbytes


class Slot:
    """Memory for the arrays of one batch: the `Buffer` of a lease. For one thread at a time."""

    def __init__(self, pool: SlotPool, memory: np.ndarray) -> None:
        self._pool = pool
        self._memory, self._address = memory, memory.ctypes.data
        self._used = 0

    def array(self, shape: Sequence[int], dtype: np.dtype[Any] | type | str) -> np.ndarray:
        """Return a writable, C-contiguous array at a 64-byte boundary; its contents are undefined.

        An array that does not fit goes into a further arena: a batch larger than announced costs
        memory, and is no error.
        """
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        start = self._used + -(self._address + self._used) % _ALIGNMENT
        if start + nbytes > len(self._memory):
            self._memory = self._pool._lease(nbytes + _SLACK)
            self._address = self._memory.ctypes.data
            start = -self._address % _ALIGNMENT
        self._used = start + nbytes
        return self._memory[start : self._used].view(dtype).reshape(shape)


@dataclass(frozen=True)
class _Issued:
    """A batch whose copies were submitted to the device."""

    position: Position
    values: Values
    event: Event


class _Arena:
    """One piece of host memory, touched once: writing a batch causes no page fault."""

    __slots__ = ("address", "memory", "nbytes")

    def __init__(self, nbytes: int, pin: bool) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pin)
        self.memory.numpy()[::_PAGE] = 0
        self.address = self.memory.data_ptr()
        self.nbytes = nbytes


class _Lease:
    """The object that every array of one lease refers to through `base`; its end frees the arena.

    NumPy shortens chains of views: the base of a view of a view is the first view's base. It skips
    arrays in between, so an ndarray (or a subclass) cannot do this job. It never skips an object
    that is no array: it reads the address from `__array_interface__` and keeps a reference to it.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_arena")

    def __init__(self, arena: _Arena) -> None:
        self._arena = arena  # lives as long as the arrays, also without the pool
        self.__array_interface__ = {
            "version": 3,
            "shape": (arena.nbytes,),
            "typestr": "|u1",
            "data": (arena.address, False),
        }


class _End(weakref.ref["_Lease"]):
    """The weak reference to a lease that ends with it, and its arena."""

    __slots__ = ("arena",)

    arena: _Arena


def host_value(column: Column | torch.Tensor) -> Any:
    """Return a tensor over the array's own memory; return lists and unsupported dtypes unchanged.

    Copies an array that is read-only, of foreign byte order, or with strides that PyTorch refuses.
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
    # NumPy has two equal 64-bit types ("l" and "q"); the view gives the one that PyTorch knows.
    array = column.astype(native, copy=False).view(native.str)
    if not array.flags.writeable or any(
        stride < 0 or stride % array.itemsize for stride in array.strides
    ):
        array = array.copy()
    return torch.from_numpy(array)


def _stage(columns: Columns, pool: BufferPool) -> Columns:
    """Return the same columns with their arrays copied into one buffer of the pool."""
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


def _apply(after_copy: AfterCopy, values: Values) -> Values:
    for name, function in after_copy.items():
        if not isinstance(values.get(name), torch.Tensor):
            tensors = ", ".join(
                key for key, value in values.items() if isinstance(value, torch.Tensor)
            )
            raise ConfigError(
                f"after_copy names {name!r}, which is not a tensor of the batch; "
                f"the tensors are: {tensors}"
            )
        values[name] = function(values[name])
    return values


def _capacity(nbytes: int, pin: bool) -> int:
    """Round up so that batches of similar size share arenas: by 1/8 at most, or to a power of 2.

    PyTorch's pinned allocator rounds to a power of 2 anyway, so a pinned arena uses all of it.
    """
    nbytes = max(nbytes, _SMALLEST)
    power = 1 << (nbytes - 1).bit_length()
    step = power if pin else power // 16
    return -(-nbytes // step) * step
