"""Host memory for batches: reused arenas, pinned where that is wanted, given back by nothing but being dropped.

An arena is let to one tenant at a time. Every array cut from it, and every tensor, view or storage made of those
arrays, leads back to one `_Tenancy` object; when the last of them is gone the tenancy dies and the arena may be let
again. So what a loader yields is the user's for as long as they keep it, and a copy to a device keeps its source by
holding the host tensors until the copy's event has completed. There is no call that frees, hence none to get wrong.

Refuses to know what a batch is, or which device it is for.
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
_SLACK = (
    64 * _ALIGNMENT
)  # a lease is asked for in bytes of arrays: room for the gaps between 64 of them
_SMALLEST = 64 * 1024
_PAGE = 4096
_PEAK_WINDOW = 64
_SPARE = 2  # arenas kept beyond that peak, so that one reached only now and then is not paid for each time


class SlotPool:
    """A pool of host arenas, the `BufferPool` that batch sources write into. All of it may be called from any thread.

    It holds hardly more arenas than were out at once at the most during the last 64 leases: a user who keeps many
    batches makes it grow, and once they are dropped it shrinks again.

    Args:
        pin: page-lock the memory, so that copies to a device run beside the computation. Needs CUDA.
    """

    def __init__(self, pin: bool = False) -> None:
        self.pin = pin
        self._lock = threading.Lock()
        # Tenancies can die anywhere, in the middle of a garbage collection inside our own lock too, so giving back
        # must not take a lock: the arena is left here, and fetched by whoever holds the lock next.
        self._returned: deque[_Arena] = deque()
        self._free: list[_Arena] = []  # longest unused first
        self._out = 0
        self._nbytes = 0
        self._peaks: deque[int] = deque(maxlen=_PEAK_WINDOW)

    def lease(self, nbytes: int) -> Slot:
        """A slot with room for arrays of `nbytes` together; new memory is made when no free arena is large enough."""
        return Slot(self, self._let(nbytes + _SLACK))

    @property
    def slots(self) -> int:
        """Arenas there are, in use or free."""
        with self._lock:
            self._collect()
            return self._out + len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes of all arenas, in use or free."""
        with self._lock:
            self._collect()
            return self._nbytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes of page-locked memory in this pool: all of it, or none."""
        return self.nbytes if self.pin else 0

    def _let(self, nbytes: int) -> np.ndarray:
        """uint8[>= nbytes], an arena's whole memory, let for as long as anything made of it is alive."""
        with self._lock:
            self._collect()
            arena = self._take(nbytes) or self._build(nbytes)
            self._out += 1
            self._peaks.append(self._out)
            surplus = self._out + len(self._free) - max(self._peaks) - _SPARE
            for unused in self._free[: max(surplus, 0)]:
                self._drop(unused)
        return np.asarray(_Tenancy(arena, self._returned))

    def _collect(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
            self._out -= 1

    def _take(self, nbytes: int) -> _Arena | None:
        """The smallest free arena that is large enough; where all are too small, one of them goes to make room."""
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
    """Room for the arrays of one batch, the `Buffer` of a lease. For one thread at a time."""

    def __init__(self, pool: SlotPool, memory: np.ndarray) -> None:
        self._pool = pool
        self._memory, self._address = memory, memory.ctypes.data
        self._used = 0

    def array(self, shape: Sequence[int], dtype: np.dtype[Any] | type | str) -> np.ndarray:
        """A writable, C-contiguous array at a 64-byte boundary; its contents are undefined.

        One that does not fit in what is left goes into a further arena, so that a batch larger than announced costs
        memory and nothing else.
        """
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        start = self._used + -(self._address + self._used) % _ALIGNMENT
        if start + nbytes > len(self._memory):
            self._memory = self._pool._let(nbytes + _SLACK)
            self._address = self._memory.ctypes.data
            start = -self._address % _ALIGNMENT
        self._used = start + nbytes
        return self._memory[start : self._used].view(dtype).reshape(shape)


class _Arena:
    """One piece of host memory, touched once so that its pages are there before a batch is written."""

    __slots__ = ("address", "memory", "nbytes")

    def __init__(self, nbytes: int, pin: bool) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pin)
        self.memory.numpy()[::_PAGE] = 0
        self.address = self.memory.data_ptr()
        self.nbytes = nbytes


class _Tenancy:
    """What everything made of one lease leads back to, through `base`.

    NumPy shortens chains of views: a view of a view takes the first one's base for its own, passing over arrays in
    between, and so over an ndarray (or subclass) that should be watched. It never passes over an object that is no
    array, which is what this is: NumPy reads the memory's address from `__array_interface__` and keeps the object.
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
    """Rounded up, so that batches of nearly one size share arenas: at most an eighth more, or the next power of two.

    PyTorch's pinned allocator takes a power of two in any case; what it takes we use.
    """
    nbytes = max(nbytes, _SMALLEST)
    power = 1 << (nbytes - 1).bit_length()
    step = power if pin else power // 16
    return -(-nbytes // step) * step
