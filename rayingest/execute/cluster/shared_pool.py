"""Lease a pool to a loader: its own, the user's, or the one that the process's loaders share.

Owns when a pool ends that no user closes: with the last loader that has a lease of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rayingest.execute.cluster.pool import Pool

SHARED_WORKERS = 2
"""Decoders of the pool that loaders share by default."""

# Garbage collection may end a lease while the same thread takes one.
_lock = threading.RLock()


@dataclass(frozen=True)
class Lease:
    """A loader's use of a pool; `end` is called once, when the loader closes."""

    pool: Pool
    end: Callable[[], None] = lambda: None


class _SharedPool:
    """A pool with the number of loaders that use it; `current` is the process's, if any."""

    current: ClassVar[_SharedPool | None] = None

    def __init__(self, start_timeout: float) -> None:
        self.pool, self.loaders = Pool(SHARED_WORKERS, start_timeout=start_timeout), 0

    def release(self) -> None:
        """Close the pool if the last loader has released it."""
        with _lock:
            self.loaders -= 1
            last = not self.loaders
        if last:
            self.pool.close()


def lease_shared_pool(start_timeout: float) -> Lease:
    """Return a lease of the process's shared pool, or of a new one if there is none to use."""
    with _lock:
        shared = _SharedPool.current
        if shared is None or not shared.loaders or not shared.pool.is_usable:
            shared = _SharedPool.current = _SharedPool(start_timeout)
        shared.loaders += 1
        return Lease(shared.pool, shared.release)
