"""Connect the pools of a job's ranks: each reports what it has, and learns what it may have.

Owns the coordinator, one actor a job, and the thread with which a pool reports to it. `sharing.py`
decides. The first rank starts the actor, which ends with the last pool, or with the process that
started it; then the next report starts another one, which learns the same from the next reports.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Set
from dataclasses import replace
from typing import Any, Protocol

import ray
from ray._private.state import available_resources_per_node

from rayingest.execute.cluster.connection import Connection
from rayingest.execute.cluster.local_cluster import LAUNCH_KEYS
from rayingest.execute.cluster.node_info import await_rays_end
from rayingest.execute.cluster.sharing import Pools, Report, Share

NAMESPACE = "rayingest"
"""The ranks of a job can be drivers of their own. Ray finds their actors in a named namespace."""
_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 10.0
_RETRY_SECONDS = 1.0

_log = logging.getLogger("rayingest")
_started: dict[str, Any] = {}
"""By name: an actor lives as long as the handle of the process that started it."""


def job_name(world_size: int) -> str:
    """Return a name that the ranks of this launch have in common, and other launches do not.

    Ranks that are started by hand, without a launcher's variables, have their number in common.
    """
    launch = [os.getuid(), world_size, *(os.environ.get(key, "") for key in LAUNCH_KEYS)]
    return hashlib.blake2b(json.dumps(launch).encode(), digest_size=8).hexdigest()


class Coordinator:
    """Takes the reports of a job's pools."""

    def __init__(self, world_size: int) -> None:
        await_rays_end()
        self._pools = Pools(world_size)
        self._free_cpus = self._node_changes = 0
        self._nodes: Set[str] = frozenset()
        self._looked = 0.0

    async def report(self, report: Report) -> Share:
        """Return the share of the pool that reports."""
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._look()
        share = self._pools.add(report, now, self._free_cpus)
        return replace(share, node_changes=self._node_changes)

    def _look(self) -> None:
        """Look at the nodes, and how many decoders could start: whole free CPUs of each node."""
        nodes = available_resources_per_node()
        self._free_cpus = sum(int(node.get("CPU", 0)) for node in nodes.values())
        self._node_changes += nodes.keys() != self._nodes
        self._nodes = nodes.keys()

    async def leave(self, pool: str) -> None:
        """Remove a pool that is closed; with the last one this actor ends."""
        self._pools.remove(pool)
        if not self._pools:
            ray.actor.exit_actor()


class Sharing(Protocol):
    """A pool that shares decoders with the pools of other ranks."""

    def report(self) -> Report:
        """Return what the pool has."""

    def on_share(self, share: Share) -> None:
        """The coordinator has answered a report."""


class Reporter:
    """Reports what one pool has to the coordinator of its job, from a thread.

    Args:
        pool: the pool, which the thread does not keep alive.
        connection: the pool's.
        world_size: ranks of the job.
    """

    def __init__(self, pool: Sharing, connection: Connection, world_size: int) -> None:
        self._pool, self._connection = weakref.ref(pool), connection
        self._world_size = world_size
        self._actor: Any = None
        self._calling = threading.Lock()  # so that no report comes behind the call of `leave`
        self._closed, self._answered = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="rayingest-reporter", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until the first share has come, but not longer than this."""
        self._answered.wait(seconds)

    def close(self, pool: str) -> None:
        """End the thread, and report that the pool is closed."""
        with self._calling:
            self._closed.set()
            if self._actor is not None and self._connection.alive:
                self._connection.call(self._actor.leave, pool)

    def _run(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            try:
                share = self._ask()
            except Exception:
                # The coordinator has ended, or its node is lost. It only makes pools even: its
                # failure must not end them.
                _log.debug("the coordinator does not answer", exc_info=True)
                self._actor, pause = None, _RETRY_SECONDS
                continue
            if share is None:
                return
            pause = share.report_seconds
            self._answered.set()

    def _ask(self) -> Share | None:
        """Report, and pass the share to the pool; return None if the pool is gone."""
        pool = self._pool()
        if pool is None or not self._connection.alive:
            return None
        report = pool.report()
        actor = self._actor or _find_or_start(self._connection, self._world_size)
        with self._calling:
            if self._closed.is_set():  # an actor that this thread has just started must end too
                self._connection.call(actor.leave, report.pool)
                return None
            self._actor = actor
            answer = self._connection.call(actor.report, report)
        share: Share = answer.future().result(_ANSWER_SECONDS)
        pool.on_share(share)
        return share


def _find_or_start(connection: Connection, world_size: int) -> Any:
    options = {"name": f"rayingest:job:{job_name(world_size)}", "namespace": NAMESPACE}
    handle = connection.make(
        ray.remote(Coordinator), world_size, num_cpus=0, get_if_exists=True, **options
    )
    _started[options["name"]] = handle
    return handle
