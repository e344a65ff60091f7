"""In words, what a stream that gives no batch is waiting for: CPUs, storage, decoders.

Owns the words alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from rayingest.cluster.cpus import cpus
from rayingest.cluster.pool import Pool
from rayingest.plan import events as ev
from rayingest.plan.metrics import STALLS
from rayingest.streams import Stream


class Call(Protocol):
    """A task under way."""

    command: ev.Read | ev.Decode
    begun: float


def waiting_for(lack: str, pool: Pool, stream: Stream, calls: Iterable[Call], learning: bool) -> str:
    """What the batch due lacks (of `metrics.STALLS`, or ""), who works, and what has been under way for how long.

    `learning`: a decoder learns the schema of the samples, before which there are no workers.
    """
    if lack == "workers" and learning:
        first = "the first samples, from which a decoder learns what fields there are"
    else:
        first = STALLS.get(lack, "what comes next")
    running = sum(member.role == "decoder" for member in pool.members)
    parts = [first, f"{running} of {pool.workers} decoders run" + (f" ({cpus()})" if running < pool.workers else "")]
    tasks = list(calls)
    for kind, name in ((ev.Read, "read"), (ev.Decode, "decode")):
        these = [task for task in tasks if isinstance(task.command, kind)]
        if these:
            oldest = min(these, key=lambda task: task.begun)
            age, (shard, _) = time.monotonic() - oldest.begun, stream.place(oldest.command.blocks[0])
            parts.append(f"{len(these)} {name}(s) under way, the longest for {age:.0f} s, of {shard}")
    return "; ".join(parts)
