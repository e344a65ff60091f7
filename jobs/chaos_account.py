"""The account of `chaos.py`: what was done to a run, what its loaders' stats say of it, and what
they leave out.

Faults of storage are those that readers met: the index and the first samples are read by others,
whose counts are no loader's.
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
    """A read of this process's failed, or began to hang at this time."""

    what: str
    pid: int
    at: float


def faults_in(notes: str) -> list[Fault]:
    """What `chaos_storage` noted of readers: lines of kind, process, time and whether it is a
    reader.
    """
    lines = [line.split() for line in notes.splitlines()]
    return [Fault(what, int(pid), float(at)) for what, pid, at, role in lines if role == "reader"]


def storage_faults(faults: Iterable[Fault], alive: Set[int], hang_seconds: float) -> dict[str, int]:
    """`reads_failed` and `reads_hung`, and how many of them the stats must have.

    Of a reader that died, what it met since its last answer went with it: its faults may show or
    not. Hangs of one process that overlap may be in one read, which is then one long read:
    `long_reads_sure` is how many there are.
    """
    told = list(faults)
    failed = [fault for fault in told if fault.what == FAIL]
    hung = [fault for fault in told if fault.what == HANG]
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
    """Reads that took so long, by the bounds that durations are counted by: somewhat shorter ones
    may be among them.
    """
    return sum(durations[bisect_left(BOUNDS, seconds) :])


def faults_unaccounted(report: Mapping[str, Any]) -> list[str]:
    """What does not add up, in words.

    - Each actor that was killed or went with its node (`died`) is one of `workers_lost`, but for those that nobody has
      asked for anything since (`idle_dead`). Others may be lost with them: such as were starting on a lost node, and
      neighbours of one that Ray calls unavailable.
    - Each failed read was tried again by its worker, which counts it; see `storage_faults`.
    - Each hang of a reader that lived on made a long read; one that was hedged answers too, later.
    """
    missing = []
    noticed, lost = report["died"] - report["idle_dead"], report["workers_lost"]
    most = (
        report["died"]
        + STARTING_ON_A_NODE * report["nodes_lost"]
        + BESIDE_THE_DEAD * report["killed"]
    )
    if not noticed <= lost <= most:
        missing.append(f"workers_lost: {lost}, and {noticed} to {most} were")
    retries = report["storage_retries"]
    if not report["reads_failed_sure"] <= retries <= report["reads_failed"]:
        missing.append(
            f"storage_retries: {retries}, of {report['reads_failed_sure']} to {report['reads_failed']}"
        )
    if report["long_reads"] < report["long_reads_sure"]:
        missing.append(
            f"long_reads: {report['long_reads']}, and {report['long_reads_sure']} at least were"
        )
    return missing
