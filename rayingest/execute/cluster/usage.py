"""What a process takes of its machine: CPU time, and memory of its own."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


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
