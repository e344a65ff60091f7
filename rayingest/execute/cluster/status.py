"""Describe in words what a stream waits for, or which samples ended it. Owns the words alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from rayingest.execute.cluster.pool import Pool
from rayingest.execute.cluster.resources import describe_cpus
from rayingest.execute.stream import Stream
from rayingest.plan.dispatch import events as ev
from rayingest.plan.figures.metrics import STALLS
from rayingest.plan.order.step_samples import StepSamples
from rayingest.util import slow

_SHARDS_NAMED = 3


class Call(Protocol):
    """A running task."""

    command: ev.Read | ev.Decode
    begun: float


def describe_wait(
    lack: str, pool: Pool, stream: Stream, calls: Iterable[Call], learning: bool
) -> str:
    """Return what the batch that is due lacks, how many decoders run, and the oldest tasks.

    `lack` is one of `metrics.STALLS`, or "". `learning`: a decoder is learning the schema of the
    samples; until it has, no decoder takes tasks.
    """
    tasks, now = list(calls), time.monotonic()
    if learning:
        first = "the first samples, from which a decoder learns the fields"
    elif lack == "room" and any(_is_slow_read(task, now) for task in tasks):
        # Reads occupy their room in the store before their blocks arrive.
        first = f"{STALLS['read']}, which have room in the object store reserved for them"
    else:
        first = STALLS.get(lack, "the next event")
    running = pool.count("decoder")
    decoders = f"{running} of {pool.workers} decoders run"
    if running < pool.workers:
        decoders += f" ({describe_cpus()})"
    parts = [first, decoders]
    for kind, name in ((ev.Read, "read"), (ev.Decode, "decode")):
        same = [task for task in tasks if isinstance(task.command, kind)]
        if same:
            oldest = min(same, key=lambda task: task.begun)
            age, where = now - oldest.begun, _shards(oldest.command.blocks, stream)
            parts.append(f"{len(same)} {name}(s) running, the oldest for {age:.0f} s, of {where}")
    return "; ".join(parts)


def _is_slow_read(task: Call, now: float) -> bool:
    return isinstance(task.command, ev.Read) and now - task.begun >= slow.FIRST_SECONDS


def describe_failed(
    command: ev.Fail, stream: Stream, samples_of: Callable[[int], StepSamples]
) -> str:
    """Return the sample that dispatch gave up, or the shards that it can be in."""
    if command.row is None:
        return f"one of the samples in {_shards(command.blocks, stream)}"
    step, row = command.row
    samples = samples_of(step)
    return f"sample {int(samples.ordinal[row])}, in {_shards([int(samples.block[row])], stream)}"


def _shards(blocks: Iterable[int], stream: Stream) -> str:
    """Return the shards of these blocks: the first three, and how many more there are."""
    shards = [*dict.fromkeys(stream.location(number)[0] for number in blocks)]
    more = len(shards) - _SHARDS_NAMED
    return ", ".join(shards[:_SHARDS_NAMED]) + (
        f" or {more} other{'s' if more > 1 else ''}" if more > 0 else ""
    )
