"""Where an actor runs: its node, and how soon the node's object store has back what is given up there."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil
import ray

FREE_VARIABLE = "RAY_free_objects_period_milliseconds"
"""Ray frees objects in batches, this often; it takes the figure from the environment that a node is started with."""
QUICK_FREE_MILLISECONDS = 50
"""For clusters that are started here."""
_FREE_MILLISECONDS = 1000
"""Ray's own default."""
_FREE_MARGIN_SECONDS = 0.3


@dataclass(frozen=True)
class Site:
    """`free_seconds`: so long after an object is given up the store surely has its bytes back."""

    node: str
    free_seconds: float


def here() -> Site:
    """This process's; for processes that the node started, whose environment they have."""
    try:
        period = float(os.environ.get(FREE_VARIABLE, _FREE_MILLISECONDS))
    except ValueError:
        period = _FREE_MILLISECONDS
    return Site(str(ray.get_runtime_context().get_node_id()), period / 1000 + _FREE_MARGIN_SECONDS)


@dataclass(frozen=True)
class Usage:
    """Seconds of CPU since the process began, and bytes of memory that it has for itself alone.

    What it shares with others, the object store and libraries, is not counted, so that processes add up.
    """

    cpu_seconds: float
    memory_bytes: int


def own_usage() -> Usage:
    """This process's."""
    process = psutil.Process()
    times, memory = process.cpu_times(), process.memory_info()
    return Usage(times.user + times.system, memory.rss - getattr(memory, "shared", 0))
