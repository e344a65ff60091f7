"""An actor's process: its node, its object store's delay, its CPU time and memory, its end."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

import psutil
import ray

FREE_VARIABLE = "RAY_free_objects_period_milliseconds"
"""Ray frees objects in batches, once per period; a node takes the period from its environment."""
QUICK_FREE_MILLISECONDS = 50
"""The period of clusters that this package starts."""
_FREE_MILLISECONDS = 1000
"""Ray's default period."""
_FREE_MARGIN_SECONDS = 0.3


@dataclass(frozen=True)
class NodeInfo:
    """The node of a process.

    `free_seconds`: the time after which the node's object store has surely freed a released object.
    """

    node: str
    free_seconds: float


@dataclass(frozen=True)
class Usage:
    """CPU seconds since a process began, and bytes of memory that it does not share.

    Shared memory (the object store, libraries) is left out, so that processes add up.
    """

    cpu_seconds: float
    memory_bytes: int


def own_node_info() -> NodeInfo:
    """Return the node of this process, which must have the node's environment (as actors do)."""
    try:
        period = float(os.environ.get(FREE_VARIABLE, _FREE_MILLISECONDS))
    except ValueError:
        period = _FREE_MILLISECONDS
    node = str(ray.get_runtime_context().get_node_id())
    return NodeInfo(node, period / 1000 + _FREE_MARGIN_SECONDS)


def own_usage() -> Usage:
    """Return what this process uses."""
    process = psutil.Process()
    times, memory = process.cpu_times(), process.memory_info()
    return Usage(times.user + times.system, memory.rss - getattr(memory, "shared", 0))


def await_rays_end() -> None:
    """Let Ray end this actor's process by its own message alone, and not by SIGTERM.

    When the process ends that made an actor, Ray's node sends SIGTERM and Ray's head sends a
    message. If SIGTERM wins, Ray prints that a worker died of an unexpected system error. A handler
    that does nothing, unlike one that ignores the signal, is not inherited by commands that the
    actor starts. After 5 s, Ray ends the process by SIGKILL.
    """
    in_actor = ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
    if in_actor and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: None)
