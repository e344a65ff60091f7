"""Nodes that were out of reach: for a while nothing new is placed there.

A node that went without a word is declared dead only after many seconds, in which Ray would place actors there. One
that was only slow to answer is as good as any other afterwards, and may be the only one there is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ray

AVOID_SECONDS = 20.0
"""If a node is dead, Ray says so within that time."""


class Avoided:
    """A pool's, guarded by its lock. `over` is called, on another thread, when a node was avoided for long enough."""

    def __init__(self, over: Callable[[str], None], seconds: float = AVOID_SECONDS) -> None:
        self._over, self._seconds = over, seconds
        self._timers: dict[str, threading.Timer] = {}

    def add(self, node: str) -> None:
        """Avoid this node from now on."""
        if node not in self._timers:
            self._timers[node] = timer = threading.Timer(self._seconds, self._over, (node,))
            timer.daemon = True
            timer.start()

    def end(self, node: str) -> None:
        """Avoid it no more."""
        self._timers.pop(node).cancel()

    def clear(self) -> None:
        """Avoid none, and call nobody any more."""
        for node in list(self._timers):
            self.end(node)

    def nodes(self) -> tuple[str, ...]:
        """The nodes to avoid now; none where there is no other with a CPU."""
        if not self._timers:
            return ()
        there = {
            node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")
        }
        return tuple(sorted(self._timers)) if there - self._timers.keys() else ()


def elsewhere(nodes: tuple[str, ...]) -> dict[str, Any]:
    """The options of an actor that is on none of these nodes."""
    return {"label_selector": {"ray.io/node-id": f"!in({','.join(nodes)})"}} if nodes else {}
