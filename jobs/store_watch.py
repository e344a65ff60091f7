"""Record the use of a node's object store while something runs, as Ray reports it."""

from __future__ import annotations

import threading
from typing import Any

import ray
from ray._private import internal_api

LOOK_SECONDS = 0.02


class StoreWatch:
    """The peak use of the store beyond its use at the start; its spilled and fallback bytes.

    Ray has no public call for this: `ray._private.internal_api` may change with its version.
    """

    def __init__(self) -> None:
        self.peak = self.spilled = self.fallback = 0
        self._end = threading.Event()
        self._before = self._look().object_store_bytes_used
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> StoreWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> Any:
        node = next(node for node in ray.nodes() if node["Alive"])
        stats = internal_api.node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], False)
        return stats.store_stats

    def _run(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            stats = self._look()
            self.peak = max(self.peak, stats.object_store_bytes_used - self._before)
            self.spilled = max(self.spilled, stats.spilled_bytes_total)
            self.fallback = max(self.fallback, stats.object_store_bytes_fallback)
