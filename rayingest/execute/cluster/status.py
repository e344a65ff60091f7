"""In words, what a stream that gives no batch is waiting for: CPUs, storage, decoders; or what it ended of.

Owns the words alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from rayingest.execute.cluster.pool import Pool
from rayingest.execute.cluster.resources import cpus
from rayingest.execute.stream import Stream
from rayingest.plan.dispatch import events as ev
from rayingest.plan.figures.metrics import STALLS
from rayingest.plan.order.step_samples import StepSamples
from rayingest.util import slow

_NAMED = 3
"""So many shards are named."""


class Call(Protocol):
    """A task under way."""

    command: ev.Read | ev.Decode
    begun: float


def waiting_for(
    lack: str, pool: Pool, stream: Stream, calls: Iterable[Call], learning: bool
) -> str:
    """What the batch due lacks (of `metrics.STALLS`, or ""), who works, and what has been under way for how long.

    `learning`: a decoder learns the schema of the samples, before which there are no workers.
    """
    tasks, now = list(calls), time.monotonic()
    if learning:
        first = "the first samples, from which a decoder learns what fields there are"
    elif lack == "room" and any(_is_slow_read(task, now) for task in tasks):
        first = f"{STALLS['read']}, which have room in the object store kept for them"
    else:
        first = STALLS.get(lack, "what comes next")
    running = sum(member.role == "decoder" for member in pool.members)
    parts = [
        first,
        f"{running} of {pool.workers} decoders run"
        + (f" ({cpus()})" if running < pool.workers else ""),
    ]
    for kind, name in ((ev.Read, "read"), (ev.Decode, "decode")):
        these = [task for task in tasks if isinstance(task.command, kind)]
        if these:
            oldest = min(these, key=lambda task: task.begun)
            age, where = now - oldest.begun, _shards(oldest.command.blocks, stream)
            parts.append(
                f"{len(these)} {name}(s) under way, the longest for {age:.0f} s, of {where}"
            )
    return "; ".join(parts)


def _is_slow_read(task: Call, now: float) -> bool:
    return isinstance(task.command, ev.Read) and now - task.begun >= slow.FIRST_SECONDS


def at_fault(command: ev.Fail, stream: Stream, samples_of: Callable[[int], StepSamples]) -> str:
    """The sample that could not be had, or as much as is known of it."""
    if command.row is None:
        return f"one of the samples in {_shards(command.blocks, stream)}"
    step, row = command.row
    samples = samples_of(step)
    return f"sample {int(samples.ordinal[row])}, in {_shards([int(samples.block[row])], stream)}"


def _shards(blocks: Iterable[int], stream: Stream) -> str:
    """Those that the blocks are of, all that there are or how many more."""
    shards = [*dict.fromkeys(stream.place(number)[0] for number in blocks)]
    more = len(shards) - _NAMED
    return ", ".join(shards[:_NAMED]) + (
        f" or {more} other{'s' if more > 1 else ''}" if more > 0 else ""
    )
