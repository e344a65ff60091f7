"""Share what a cluster has among the ranks of a job: CPUs for decoders, and nodes' object stores.

Owns two decisions, without Ray and without a clock: how many decoders a pool may have when another
one lacks some, and how many ranks divide a node's store. `coordinator.py` carries them out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE_SECONDS = 3.0
"""A decoder that has been starting for so long, with no CPU free, waits for another pool's."""
EXPIRY_SECONDS = 10.0
"""A pool that has not reported for this time, or for five of its intervals, is gone."""
_REPORTS_A_SECOND = 500
"""Reports that the coordinator takes; with more pools, each of them reports less often."""
_RECOMPUTE_SECONDS = 0.2


@dataclass(frozen=True)
class Report:
    """What a pool has.

    Attributes:
        pool: a name that no other pool has.
        rank: the rank that opened the pool.
        node: the node of the rank's process.
        process: the id of this process on its node; ranks that get the same batches are equal, but
            are processes of their own.
        wanted: the decoders that the pool would have if there were CPUs for all.
        running: the decoders that run.
        waiting: seconds for which the oldest decoder that has not started has been starting.
    """

    pool: str
    rank: int
    node: str
    process: int
    wanted: int
    running: int
    waiting: float = 0.0


@dataclass(frozen=True)
class Share:
    """What a pool may have.

    Attributes:
        most: the most decoders that the pool may keep; None: as many as it wants.
        local_ranks: the most ranks that can be on the pool's node.
        report_seconds: when the pool reports again.
        node_changes: how often nodes have come or gone, as far as the coordinator has seen.
    """

    most: int | None = None
    local_ranks: int = 1
    report_seconds: float = 1.0
    node_changes: int = 0


def even_share(wanted: Sequence[int], available: int) -> int:
    """Return the smallest limit with which all of `available` is in use.

    Each of the pools gets what it wants up to the limit, so that those at the limit differ by at
    most one.
    """
    share, rest = 0, available
    for remaining, want in zip(range(len(wanted), 0, -1), sorted(wanted), strict=True):
        share = max(share, min(want, -(-rest // remaining)))
        rest -= min(want, rest // remaining)
    return share


class Pools:
    """The pools of a job of `world_size` ranks, by their last reports."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._reports: dict[str, tuple[Report, float]] = {}
        # What follows from the reports; computed again once it is old, or a pool came or went.
        self._limit: int | None = None
        self._ranks_on: Counter[str] = Counter()
        self._unknown_ranks = 0
        self._computed = -math.inf

    def __len__(self) -> int:
        return len(self._reports)

    def add(self, report: Report, now: float, free_cpus: int) -> Share:
        """Take a pool's report, and return its share."""
        if report.pool not in self._reports:
            self._computed = -math.inf
        self._reports[report.pool] = report, now
        if now - self._computed > _RECOMPUTE_SECONDS:
            self._computed = now
            self._compute(now, free_cpus)
        most = self._limit if self._limit is not None and report.running > self._limit else None
        local_ranks = self._ranks_on[report.node] + self._unknown_ranks
        return Share(most, local_ranks, self._report_seconds)

    def remove(self, pool: str) -> None:
        """Remove a pool that is closed."""
        self._reports.pop(pool, None)
        self._computed = -math.inf

    @property
    def _report_seconds(self) -> float:
        return max(1.0, len(self._reports) / _REPORTS_A_SECOND)

    def _compute(self, now: float, free_cpus: int) -> None:
        expiry = max(EXPIRY_SECONDS, 5 * self._report_seconds)
        for pool, (_, then) in list(self._reports.items()):
            if now - then > expiry:
                del self._reports[pool]
        reports = [report for report, _ in self._reports.values()]
        held = self._limit
        self._limit = None if free_cpus else _limit(reports)
        if self._limit is None and held is not None and _waits(reports, held, 0.0):
            # A decoder that was given up frees its CPU a moment before the waiting one starts.
            self._limit = held
        ranks = {(report.rank, report.process, report.node) for report in reports}
        self._ranks_on = Counter(node for _, _, node in ranks)
        self._unknown_ranks = max(0, self._world_size - len({rank for rank, _, _ in ranks}))


def _limit(reports: Sequence[Report]) -> int | None:
    """Return the even share of the running decoders, if a pool with fewer waits for one."""
    wanted, running = zip(*((report.wanted, report.running) for report in reports), strict=True)
    # The first decoder of a pool comes before the second one of any other.
    share = max(1, even_share(wanted, sum(running)))
    return share if _waits(reports, share, PATIENCE_SECONDS) else None


def _waits(reports: Sequence[Report], share: int, seconds: float) -> bool:
    """Return whether a pool below its share waits for a decoder, for longer than `seconds`."""
    return any(
        report.waiting > seconds and report.running < min(share, report.wanted)
        for report in reports
    )
