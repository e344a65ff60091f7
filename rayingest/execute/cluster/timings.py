"""What the workers of each node said that it took, and what they gave.

Owns these figures of one stream; knows no tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rayingest.execute.cluster.decoder import Decoded
from rayingest.execute.cluster.reader import Fetched
from rayingest.plan.figures.histogram import Histogram, together
from rayingest.plan.figures.metrics import NODES, STALLS

_SHORT_ID = 8
"""So many characters of a node's id tell it from others, on Ray's dashboard too."""


@dataclass
class _Timings:
    """Of one node's workers: `queue_seconds` is how long tasks were on their way or waited for them to begin,
    `transfer_seconds` how long what they had decoded was on its way to the trainer.
    """

    queue_seconds: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    transfer_seconds: float = 0.0
    bytes_read: int = 0
    bytes_decoded: int = 0
    samples_decoded: int = 0
    storage_retries: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    read_durations: Histogram = field(default_factory=Histogram)
    decode_durations: Histogram = field(default_factory=Histogram)

    def stats(self) -> dict[str, Any]:
        return {
            figure: value.counts.copy() if isinstance(value, Histogram) else value
            for figure, value in vars(self).items()
        }


class Timings:
    """By node. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Timings] = {}

    def see_read(self, node: str, fetched: Fetched, took: float) -> None:
        """A read ended, with its blocks or without, so many seconds after it was asked for."""
        timings = self._of(node)
        timings.storage_retries += fetched.counters.retries
        timings.cache_hits += fetched.counters.cache_hits
        timings.cache_misses += fetched.counters.cache_misses
        if fetched.error is None:
            timings.queue_seconds += max(0.0, took - fetched.seconds)
            timings.read_seconds += fetched.seconds
            timings.read_durations.add(fetched.seconds)
            timings.bytes_read += sum(fetched.nbytes)

    def see_decode(
        self, node: str, decoded: Decoded, samples: int, took: float, transfer_seconds: float
    ) -> None:
        """A decode's outputs are here; it was done so many seconds after it was asked for."""
        timings = self._of(node)
        timings.queue_seconds += max(0.0, took - decoded.seconds)
        timings.decode_durations.add(decoded.seconds)
        timings.decode_seconds += decoded.seconds
        timings.transfer_seconds += transfer_seconds
        timings.bytes_decoded += sum(part.nbytes for part in decoded.parts)
        timings.samples_decoded += samples

    def stats(self) -> dict[str, Any]:
        """All together, and by node."""
        nodes = {node: timings.stats() for node, timings in list(self._nodes.items())}
        total = {}
        for figure, nothing in _Timings().stats().items():
            parts = [figures[figure] for figures in nodes.values()]
            total[figure] = together(parts) if isinstance(nothing, list) else sum(parts)
        return {**total, NODES: nodes}

    def _of(self, node: str) -> _Timings:
        return self._nodes.setdefault(node[:_SHORT_ID], _Timings())


class Stalls:
    """`clock` gives seconds. `lack`: what the batch lacks now, "workers" to begin with."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(STALLS, 0.0)
        self._waiting_since: float | None = None
        self._looked = clock()
        self.lack = "workers"

    def stats(self) -> dict[str, float]:
        """`stall_<cause>_seconds` for all causes."""
        return {f"stall_{cause}_seconds": seconds for cause, seconds in self._seconds.items()}

    def wait(self) -> None:
        """The consumer begins to wait."""
        self._waiting_since = self._clock()

    def served(self) -> None:
        """It has what it waited for."""
        self._waiting_since = None

    def passed(self, lack: str) -> None:
        """Until now the batch lacked what was said the last time, from now on this; "" for nothing that is known."""
        now, since = self._clock(), self._waiting_since
        if since is not None and self.lack:
            self._seconds[self.lack] += max(0.0, now - max(since, self._looked))
        self._looked, self.lack = now, lack
