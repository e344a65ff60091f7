"""Compare the faults of a run of `chaos.py` with its loaders' stats.

Only faults that readers met count: other processes read the index and the first samples, and no
loader counts those.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any, NamedTuple

from rayingest.plan.figures.histogram import BOUNDS

FAIL, HANG = "fail", "hang"
STARTING_ON_A_NODE = 4
"""Actors that may be starting on a node of 2 CPUs when it is lost: two decoders, and a reader for
each of two ranks.
"""
BESIDE_THE_DEAD = 3
"""A pool's other actors on the node of one that Ray calls unavailable: they are given up with it.
"""


class Fault(NamedTuple):
    """A read of process `pid` that failed, or began to hang, at a time."""

    what: str
    pid: int
    at: float


def faults_in(notes: str) -> list[Fault]:
    """Return the readers' faults in the lines that `chaos_storage` writes."""
    lines = [line.split() for line in notes.splitlines()]
    return [Fault(what, int(pid), float(at)) for what, pid, at, role in lines if role == "reader"]


def storage_faults(faults: Iterable[Fault], alive: Set[int], hang_seconds: float) -> dict[str, int]:
    """Return `reads_failed` and `reads_hung`, and how many of them the stats must include.

    The counts of a reader that died are lost since its last result: its faults may be counted or
    not. Overlapping hangs of one process may be one long read: `long_reads_sure` counts them once.
    """
    faults = list(faults)
    failed = [fault for fault in faults if fault.what == FAIL]
    hung = [fault for fault in faults if fault.what == HANG]
    sure = sorted((fault.pid, fault.at) for fault in hung if fault.pid in alive)
    apart = sum(
        pid != before or at > then + hang_seconds for (before, then), (pid, at) in pairwise(sure)
    )
    return {
        "reads_failed": len(failed),
        "reads_failed_sure": sum(fault.pid in alive for fault in failed),
        "reads_hung": len(hung),
        "long_reads_sure": apart + bool(sure),
    }


def long_reads(durations: Sequence[int], seconds: float) -> int:
    """Count reads of about `seconds` or more; the bounds of the histogram limit the precision."""
    return sum(durations[bisect_left(BOUNDS, seconds) :])


def faults_unaccounted(report: Mapping[str, Any]) -> list[str]:
    """Return the disagreements as text.

    - An actor that was killed or lost with its node (`died`) is one of `workers_lost`, unless no
      call was made to it since (`idle_dead`). More may be lost with it: actors that were starting
      on a lost node, and neighbours of an actor that Ray calls unavailable.
    - The worker retried each failed read and counted it; see `storage_faults`.
    - Each hang of a reader that survived is a long read; a hedged one answers too, later.
    """
    missing = []
    noticed, lost = report["died"] - report["idle_dead"], report["workers_lost"]
    most = (
        report["died"]
        + STARTING_ON_A_NODE * report["nodes_lost"]
        + BESIDE_THE_DEAD * report["killed"]
    )
    if not noticed <= lost <= most:
        missing.append(f"workers_lost: {lost}, expected {noticed} to {most}")
    retries = report["storage_retries"]
    if not report["reads_failed_sure"] <= retries <= report["reads_failed"]:
        missing.append(
            f"storage_retries: {retries}, expected {report['reads_failed_sure']} to "
            f"{report['reads_failed']}"
        )
    if report["long_reads"] < report["long_reads_sure"]:
        missing.append(
            f"long_reads: {report['long_reads']}, expected {report['long_reads_sure']} or more"
        )
    return missing
