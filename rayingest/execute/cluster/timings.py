"""Measure where time goes: what the training loop waits for, and how long the workers take.

Owns these figures of one stream. Knows no tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rayingest.execute.cluster.decoder import DecodeResult
from rayingest.execute.cluster.reader import ReadResult
from rayingest.plan.figures.histogram import Histogram, add_counts
from rayingest.plan.figures.metrics import NODES, STALLS

_SHORT_ID = 8
"""This many characters of a node's id identify it, on Ray's dashboard too."""


class Stalls:
    """Seconds that the training loop waited, by what the batch that is due lacked at each moment.

    The consumer's thread calls `begin_wait` and `end_wait`, the feeder's thread `set_lack`. `clock`
    returns seconds. `lack` is one of `metrics.STALLS`, or "" if the batch lacks nothing known.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(STALLS, 0.0)
        self._waiting_since: float | None = None
        self._counted = clock()  # waits before this moment are in `_seconds`
        self.lack = "workers"

    def stats(self) -> dict[str, float]:
        """Return `stall_<cause>_seconds` for all causes."""
        return {f"stall_{cause}_seconds": seconds for cause, seconds in self._seconds.items()}

    def begin_wait(self) -> None:
        """The consumer begins to wait for a batch."""
        self._waiting_since = self._clock()

    def end_wait(self) -> None:
        """The consumer has its batch, or an error."""
        self._waiting_since = None

    def set_lack(self, lack: str) -> None:
        """Count the time until now for the previous lack; from now on the batch lacks this."""
        now, since = self._clock(), self._waiting_since
        if since is not None and self.lack:
            self._seconds[self.lack] += max(0.0, now - max(since, self._counted))
        self._counted, self.lack = now, lack


@dataclass
class _NodeTimings:
    """The figures of one node's workers.

    `queue_seconds`: from sending a task until its worker begins it. `transfer_seconds`: from the
    end of a decode until its output is in the trainer's store.
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
    """What the workers report, by node. One thread writes, any thread reads."""

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeTimings] = {}

    def add_read(self, node: str, result: ReadResult, took: float) -> None:
        """Add a read that ended, with or without an error, `took` seconds after it was sent."""
        timings = self._of(node)
        timings.storage_retries += result.counters.retries
        timings.cache_hits += result.counters.cache_hits
        timings.cache_misses += result.counters.cache_misses
        if result.error is None:
            timings.queue_seconds += max(0.0, took - result.seconds)
            timings.read_seconds += result.seconds
            timings.read_durations.add(result.seconds)
            timings.bytes_read += sum(result.nbytes)

    def add_decode(
        self, node: str, result: DecodeResult, samples: int, took: float, transfer_seconds: float
    ) -> None:
        """Add a decode that ended `took` seconds after it was sent, and whose output is here."""
        timings = self._of(node)
        timings.queue_seconds += max(0.0, took - result.seconds)
        timings.decode_durations.add(result.seconds)
        timings.decode_seconds += result.seconds
        timings.transfer_seconds += transfer_seconds
        timings.bytes_decoded += sum(part.nbytes for part in result.parts)
        timings.samples_decoded += samples

    def stats(self) -> dict[str, Any]:
        """Return the totals, and the figures of each node under `NODES`."""
        nodes = {node: timings.stats() for node, timings in list(self._nodes.items())}
        total = {}
        for figure, nothing in _NodeTimings().stats().items():
            parts = [figures[figure] for figures in nodes.values()]
            total[figure] = add_counts(parts) if isinstance(nothing, list) else sum(parts)
        return {**total, NODES: nodes}

    def _of(self, node: str) -> _NodeTimings:
        return self._nodes.setdefault(node[:_SHORT_ID], _NodeTimings())
