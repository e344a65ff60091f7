"""Measure one turn of a contestant: its rate, its CPU time and the hand-over of a ready batch.

Owns when a turn starts and what is timed; the benchmarks choose the contestants.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from benchmarks.contestants import Contestant

IDLE_SHARE = 0.3
"""Of one CPU: the contestants' processes together are idle below this. Ray's and a dozen loaders'
take half of it.
"""


@dataclass(frozen=True)
class Turn:
    """The figures of a turn: samples per second, CPU ms per sample of all processes and of the
    training process, and seconds to hand over a ready batch.
    """

    rate: float
    cpu_ms: float
    trainer_cpu_ms: float
    hand_over: float


def cpu_seconds() -> tuple[float, float]:
    """Return CPU seconds of this process and all its descendants, and of this process alone."""
    mine = psutil.Process().cpu_times()
    below = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            below += sum(
                child.cpu_times()[:4]
            )  # its own, and that of its children which it has seen end
        except psutil.NoSuchProcess:
            continue
    return sum(mine[:4]) + below, sum(mine[:2])


def wait_until_idle(most: float = 10.0, slice_: float = 0.2) -> None:
    """Wait until the processes of all contestants are idle, at most `most` seconds."""
    deadline = time.monotonic() + most
    before = cpu_seconds()[0]
    while time.monotonic() < deadline:
        time.sleep(slice_)
        now = cpu_seconds()[0]
        if now - before < IDLE_SHARE * slice_:
            return
        before = now


def take_turn(contestant: Contestant, batch: int, batches: int, drain: int) -> Turn:
    """Take `drain` batches, which may have been made in advance, then time `batches`."""
    wait_until_idle()
    begun = time.perf_counter()
    contestant.take()
    hand_over = time.perf_counter() - begun
    contestant.take(drain - 1)
    cpu, mine = cpu_seconds()
    begun = time.perf_counter()
    contestant.take(batches)
    seconds = time.perf_counter() - begun
    cpu_after, mine_after = cpu_seconds()
    samples = batches * batch
    return Turn(
        samples / seconds,
        1e3 * (cpu_after - cpu) / samples,
        1e3 * (mine_after - mine) / samples,
        hand_over,
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, quartiles and extremes."""
    low, q1, median, q3, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()
    return {"median": median, "q1": q1, "q3": q3, "min": low, "max": high}
