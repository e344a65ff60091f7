"""Lease host memory for batches: reused arenas, optionally pinned, returned by dropping the arrays.

An arena has one lease at a time. Every array cut from it, and every tensor, view or storage of such
an array, refers to one `_Lease` object. When the last of them is gone, the lease ends and the arena
is free again. So a batch that a loader yields belongs to the user for as long as the user keeps it,
and a copy to a device keeps its source alive by holding the host tensors until the copy's event has
completed. There is no call that frees memory, so none can come too early.

Knows nothing of batches and devices.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

_ALIGNMENT = 64
_SLACK = 64 * _ALIGNMENT
"""Room for the alignment gaps between 64 arrays: a lease counts the bytes of its arrays alone."""
_SMALLEST = 64 * 1024
_PAGE = 4096
_PEAK_WINDOW = 64
"""The pool keeps as many arenas as were leased at once during this many leases."""
_SPARE = 2
"""Free arenas to keep beyond that peak, so that a rare peak does not allocate each time."""


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
        # must not take the lock. It leaves the arena here, and the next holder of the lock collects
        # it.
        self._returned: deque[_Arena] = deque()
        self._free: list[_Arena] = []  # the longest unused first
        self._leased = 0
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
            return self._leased + len(self._free)

    @property
    def leased(self) -> int:
        """The number of arenas whose leases have not ended."""
        with self._lock:
            self._collect()
            return self._leased

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
            self._leased += 1
            self._peaks.append(self._leased)
            surplus = self._leased + len(self._free) - max(self._peaks) - _SPARE
            for unused in self._free[: max(surplus, 0)]:
                self._drop(unused)
        return np.asarray(_Lease(arena, self._returned))

    def _collect(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
            self._leased -= 1

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
    that
    is no array: it reads the address from `__array_interface__` and keeps a reference to the
    object.
    """

    __slots__ = ("__array_interface__", "_arena", "_returned")

    def __init__(self, arena: _Arena, returned: deque[_Arena]) -> None:
        self._arena, self._returned = arena, returned
        self.__array_interface__ = {
            "version": 3,
            "shape": (arena.nbytes,),
            "typestr": "|u1",
            "data": (arena.address, False),
        }

    def __del__(self) -> None:
        self._returned.append(self._arena)


def _capacity(nbytes: int, pin: bool) -> int:
    """Round up so that batches of similar size share arenas: by 1/8 at most, or to a power of 2.

    PyTorch's pinned allocator rounds to a power of 2 anyway, so a pinned arena uses all of it.
    """
    nbytes = max(nbytes, _SMALLEST)
    power = 1 << (nbytes - 1).bit_length()
    step = power if pin else power // 16
    return -(-nbytes // step) * step
