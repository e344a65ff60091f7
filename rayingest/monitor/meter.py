"""Measure what a loader uses: CPU time and memory of this process and of its pool's workers.

Owns the sums. While the training loop runs, the meter sends requests to the workers and does not
wait for the results; `read` waits.
"""

from __future__ import annotations

import time
from typing import Any

import ray

from rayingest.execute.cluster.node_info import Usage, own_usage
from rayingest.execute.cluster.pool import Pool

_LOOK_SECONDS = 1.0
_RESULT_SECONDS = 5.0


class Meter:
    """Measures from its construction until `read`; `pool` is None for a loader without workers."""

    def __init__(self, pool: Pool | None) -> None:
        self._actors = [] if pool is None else [handle.actor for handle in pool.actors]
        self._requests = [self._request()]
        self._own = [own_usage()]
        self._looked = time.monotonic()
        if self._actors:
            # The first figures are the zero of the measurement: no later work may be in them.
            ray.wait(self._requests[0], num_returns=len(self._actors), timeout=_RESULT_SECONDS)

    def look(self) -> None:
        """Request the current usage, unless the last request is less than a second old."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._look()

    def read(self) -> Usage:
        """Return the CPU seconds since construction and the sum of each process's peak memory.

        A worker that does not respond within 5 s is left out.
        """
        self._look()
        workers = [_results(list(refs)) for refs in zip(*self._requests, strict=True)]
        each = [self._own, *(usages for usages in workers if usages)]
        cpu = sum(usages[-1].cpu_seconds - usages[0].cpu_seconds for usages in each)
        return Usage(cpu, sum(max(usage.memory_bytes for usage in usages) for usages in each))

    def _look(self) -> None:
        self._own.append(own_usage())
        self._requests.append(self._request())

    def _request(self) -> list[Any]:
        return [actor.usage.remote() for actor in self._actors]


def _results(refs: list[Any]) -> list[Usage]:
    """Return the results of one worker that arrived, in order."""
    ready, _ = ray.wait(refs, num_returns=len(refs), timeout=_RESULT_SECONDS)
    usages = []
    for ref in ready:
        try:
            usages.append(ray.get(ref))
        except ray.exceptions.RayError:  # the worker has ended meanwhile
            continue
    return usages
