"""The pool: the reader and decoder actors of one process, shared by any number of its loaders.

Owns the lives of the actors: requests CPUs, names actors, replaces those that die, ends all of
them. The feeders decide what the actors work on. A reader runs on each node that has decoders, so
that a raw block is read on the node that decodes it.

When a worker dies, the executor sees it (`Executor.on_actor_lost`), the pool replaces it
(`Pool.report_failure`), and dispatch does its tasks again (`plan/dispatch/event_handlers.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, Protocol

import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayingest.errors import ConfigError, IngestError, WorkerError
from rayingest.execute.cluster.connection import Connection
from rayingest.execute.cluster.coordinator import Reporter
from rayingest.execute.cluster.decoder import CONTROL, Decoder
from rayingest.execute.cluster.node_info import NodeInfo
from rayingest.execute.cluster.reader import THREADS, Reader
from rayingest.execute.cluster.resources import (
    count_cpus,
    count_decoders,
    explain_no_decoder,
    store_bytes,
    total_cpus,
)
from rayingest.execute.cluster.sharing import Report, Share
from rayingest.options import Seconds, checked, whole
from rayingest.plan.dispatch.events import WorkerFailure
from rayingest.util.slow import AGAIN_SECONDS, FIRST_SECONDS

Role = Literal["reader", "decoder"]

DECODER_SLOTS = 2
"""Tasks that a decoder has at a time: one that runs, and one to begin at once after it."""
MAX_FAILURES_A_MINUTE = 30
_FIRST_SHARE_SECONDS = 10.0
COOL_DOWN_SECONDS = 20.0
"""If a node is dead, Ray declares it dead within this time."""

_log = logging.getLogger("rayingest")
_pools = itertools.count()
_open_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
"""The pools of this process."""


@dataclass(eq=False)
class ActorHandle:
    """One actor of a pool.

    Attributes:
        name: the actor's name in the cluster.
        actor: Ray's handle, to call its methods.
        info: where it runs; an empty node until it has started.
        excluded: ids of the nodes that it was not to be placed on.
        requested: the time at which it was requested.
    """

    name: str
    role: Role
    actor: Any
    info: NodeInfo = field(default_factory=lambda: NodeInfo("", 0.0))
    excluded: tuple[str, ...] = ()
    requested: float = field(default_factory=time.monotonic)

    @property
    def node(self) -> str:
        """The id of the node that the actor runs on."""
        return self.info.node

    @property
    def slots(self) -> int:
        """The number of tasks that the actor has at a time."""
        return THREADS if self.role == "reader" else DECODER_SLOTS


class Subscriber(Protocol):
    """Receives changes of the pool's actors. Methods run on any thread and must return at once."""

    @property
    def reads_in_order(self) -> bool:
        """Whether one reader makes all reads, and another one would begin from the start."""

    def on_actor_started(self, handle: ActorHandle) -> None:
        """An actor runs."""

    def on_actor_lost(self, handle: ActorHandle, failure: WorkerFailure) -> None:
        """An actor has ended, or cannot be reached."""

    def on_pool_failed(self, error: IngestError) -> None:
        """The pool cannot continue."""

    def on_local_ranks(self, local_ranks: int) -> None:
        """At most this many ranks are on this node; the number only falls."""


class Pool:
    """A pool of `workers` decoders (1 CPU each) and a reader on each of their nodes.

    Several loaders of a process can share it. Where CPUs lack, the pools of a job's ranks share the
    decoders evenly, and again when ranks, nodes or CPUs come and go.

    The first loader that uses the pool starts the actors. If the cluster has fewer CPUs than all
    ranks request together, decoders are requested one by one, so that no rank takes another rank's
    first decoder. Use the pool as a context manager, or `close` it.

    Args:
        workers: the number of decoders, 1 or more.
        start_timeout: seconds to wait for the first decoder.

    Raises:
        ConfigError: an argument is not allowed.
    """

    @checked()
    def __init__(
        self,
        workers: Annotated[
            int, whole("a whole number of decoders, 1 or more; for none use loader(workers=0)", 1)
        ] = 2,
        *,
        start_timeout: Seconds = 60.0,
    ) -> None:
        self.workers, self.start_timeout = workers, start_timeout
        self.connection = Connection()
        self.cpus = 0  # of the cluster, when a decoder was last requested or last started
        self.store_bytes = 0  # of this node's object store
        self._lock = threading.RLock()
        self._running: dict[str, ActorHandle] = {}
        self._starting: dict[str, ActorHandle] = {}
        # The reader of each node, running or starting.
        self._reader_nodes: dict[str, str] = {}
        self._subscribers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._numbers = {"reader": itertools.count(), "decoder": itertools.count()}
        self._failures: list[float] = []  # times of the last minute's
        self._cool_down = CoolDown(self._end_cool_down)
        self._prefix = ""  # of the actors' names; "" until the pool is opened
        self._opened = 0.0
        self._one_by_one = False
        self._rank, self._node = 0, ""
        self._reporter: Reporter | None = None  # None for the only rank of a job
        self._share = Share()
        self._closed = self._failed = False
        self._logged_fewer = False
        self._log_due = FIRST_SECONDS  # of waiting for the first decoder, to be logged
        # Ray runs callbacks on a thread of its own that must not call Ray, so this thread does.
        self._callbacks = ThreadPoolExecutor(1, "rayingest-pool")

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self, rank: int, world_size: int) -> None:
        """Start the actors, if no loader has done so before."""
        self.connection.check_process()
        with self._lock:
            if self._closed:
                raise ConfigError("this pool is closed; make a new one")
            if self._prefix:
                self.connection.check()
                return
            job = self.connection.bind()
            self._prefix = f"rayingest:{job}:rank{rank}:pool{next(_pools)}-{uuid.uuid4().hex[:4]}"
            self._opened = time.monotonic()
            _open_pools.add(self)
            self.cpus, self.store_bytes = total_cpus(), store_bytes()
            self._one_by_one = self.cpus < self.workers * world_size
            if self._one_by_one:
                _log.warning(
                    "%d rank(s) request %d decoders of 1 CPU each, the cluster has %d CPUs: "
                    "starting as many as fit; the others start as CPUs become free",
                    world_size,
                    self.workers,
                    self.cpus,
                )
            nodes = _nodes_alive()
            self._rank, self._node = rank, ray.get_runtime_context().get_node_id()
            if world_size > 1:
                self._share = Share(local_ranks=world_size)
                self._reporter = Reporter(self, self.connection, world_size)
            if len(nodes) == 1:
                # All decoders will run here, so the reader can start beside them.
                self._start_reader(*nodes)
            self._start_missing()

    def resize(self, workers: int) -> None:
        """Set the number of decoders: start more, or stop those that started last."""
        with self._lock:
            if self._closed or not self._prefix:
                return
            self.workers = workers
            self._stop_surplus()
            self._start_missing()

    def report(self) -> Report:
        """Return what this pool has, for the coordinator."""
        with self._lock:
            asked = [one.requested for one in self._starting.values() if one.role == "decoder"]
            waiting = time.monotonic() - min(asked) if asked else 0.0
            running = self.count("decoder")
            place = (self._rank, self._node, os.getpid())
            return Report(self._prefix, *place, self.workers, running, waiting)

    def on_share(self, share: Share) -> None:
        """Take this pool's share of its job: give up decoders, or request those that it lacks."""
        with self._lock:
            if self._closed:
                return
            before, self._share = self._share, share
            if share.local_ranks < before.local_ranks:
                for subscriber in list(self._subscribers):
                    subscriber.on_local_ranks(share.local_ranks)
            if share.node_changes != before.node_changes:
                self._report_lost_nodes()
            if share.most == before.most:
                return
            if share.most is not None:
                self._one_by_one = True
                _log.info("keep %d decoders: another rank waits for its share", share.most)
                self._stop_surplus()
            self._start_missing()

    def _report_lost_nodes(self) -> None:
        """Report the actors on nodes that are gone: a pool with little to do makes few calls."""
        alive = _nodes_alive()
        for handle in list(self._running.values()):
            if handle.node not in alive:
                self.report_failure(handle, RayActorError())

    def local_ranks(self) -> int:
        """Return the most ranks of the job that can be on this node, as far as it is known."""
        if self._reporter is not None and len(_nodes_alive()) > 1:
            self._reporter.wait(_FIRST_SHARE_SECONDS)
        return self._share.local_ranks

    @property
    def _allowed(self) -> int:
        """The number of decoders to have: those wanted, within the pool's share."""
        most = self._share.most
        return self.workers if most is None else min(self.workers, most)

    def _stop_surplus(self) -> None:
        """Stop the decoders beyond the allowed number: those that start, then the last ones."""
        running = [handle for handle in self._running.values() if handle.role == "decoder"]
        starting = [handle for handle in self._starting.values() if handle.role == "decoder"]
        surplus = max(0, len(running) + len(starting) - self._allowed)
        for handle in starting[len(starting) - min(surplus, len(starting)) :]:
            del self._starting[handle.name]
            self.connection.kill(handle.actor)
        for handle in running[len(running) - max(0, surplus - len(starting)) :]:
            self._remove(handle, WorkerFailure.REMOVED)
        self._end_idle_readers()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Report running actors and local ranks to the subscriber, and all changes from now on."""
        with self._lock:
            self._subscribers.add(subscriber)
            subscriber.on_local_ranks(self._share.local_ranks)
            for handle in self._running.values():
                subscriber.on_actor_started(handle)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Report no further changes to the subscriber."""
        with self._lock:
            self._subscribers.discard(subscriber)

    @property
    def is_usable(self) -> bool:
        """Whether a loader can still use the pool: not closed, not failed, its session not over."""
        return not (self._closed or self._failed) and self.connection.is_current

    @property
    def actors(self) -> list[ActorHandle]:
        """The actors that run."""
        with self._lock:
            return list(self._running.values())

    def count(self, role: Role) -> int:
        """Return the number of running actors of a role."""
        return sum(handle.role == role for handle in self.actors)

    def check_started(self) -> None:
        """Raise WorkerError if no decoder runs after `start_timeout` seconds; log if few do.

        Log a warning that says why while none runs, first after 10 s.
        """
        self.connection.check()
        with self._lock:
            running = self.count("decoder")
            waited = time.monotonic() - self._opened
            if not running and self._log_due < waited < self.start_timeout:
                self._log_due = waited + AGAIN_SECONDS
                reason = self._explain_no_decoder(waited)
                _log.warning("%s (start_timeout=%g s)", reason, self.start_timeout)
            if running == self.workers or waited < self.start_timeout or self._logged_fewer:
                return
            if not running and not self._failures:
                raise WorkerError(self._explain_no_decoder(waited))
            self._logged_fewer = True
            _log.warning(
                "continuing with %d of %d decoders; the others start as CPUs become free",
                running,
                self.workers,
            )

    def _explain_no_decoder(self, waited: float) -> str:
        held, own = count_decoders(), {pool._prefix for pool in _open_pools}
        return explain_no_decoder(self.workers, waited, *count_cpus(), held, own, self._prefix)

    def report_failure(
        self, handle: ActorHandle, error: BaseException, expected: bool = False
    ) -> None:
        """Remove an actor that a call found dead or unreachable, and start another.

        If its node is the cause, all actors of the node go. An unreachable actor counts as lost:
        Ray declares a node dead only much later. `expected`: the actor had only a task that ended
        other workers before, so its end is no sign of a broken cluster.
        """
        with self._lock:
            if self._closed or handle.name not in self._running or not self.connection.alive:
                return
            failure = (
                WorkerFailure.OUT_OF_MEMORY
                if isinstance(error, OutOfMemoryError)
                else WorkerFailure.CRASHED
            )
            if isinstance(error, ActorUnavailableError) or handle.node not in _nodes_alive():
                failure = WorkerFailure.NODE_LOST
                self._cool_down.start(handle.node)
            lost = [handle]
            if failure is WorkerFailure.NODE_LOST:
                lost = [other for other in self._running.values() if other.node == handle.node]
            for other in lost:
                self._remove(other, failure)
            if expected or not self._too_many_failures(handle, failure):
                self._start_missing()

    def _end_cool_down(self, node: str) -> None:
        """Allow a node again, and restart the actors that wait because it was excluded."""
        with self._lock:
            if self._closed or not self.connection.alive:
                return
            self._cool_down.end(node)
            for handle in list(self._starting.values()):
                if node in handle.excluded:
                    del self._starting[handle.name]
                    self.connection.kill(handle.actor)
                    self._forget_reader(handle)
            self._start_missing()

    def close(self) -> None:
        """End all actors. Idempotent; does nothing in a forked process, which has no actors."""
        if not self.connection.here:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            _open_pools.discard(self)
            handles = [*self._running.values(), *self._starting.values()]
            self._running.clear()
            self._starting.clear()
            self._cool_down.clear()
        self._callbacks.shutdown(wait=False, cancel_futures=True)
        if self._reporter is not None:
            self._reporter.close(self._prefix)
        for handle in handles:
            self.connection.kill(handle.actor)

    def restart_missing(self) -> None:
        """Start the actors that are missing, after failures that were too many to go on."""
        with self._lock:
            if self._closed:
                return
            if self._failures:
                self._failures.clear()
                self._opened, self._logged_fewer = time.monotonic(), False
            self._start_missing()

    def _remove(self, handle: ActorHandle, failure: WorkerFailure) -> None:
        del self._running[handle.name]
        self.connection.kill(handle.actor)
        for subscriber in list(self._subscribers):
            subscriber.on_actor_lost(handle, failure)
        self._forget_reader(handle)

    def _forget_reader(self, handle: ActorHandle) -> None:
        self._reader_nodes = {
            node: name for node, name in self._reader_nodes.items() if name != handle.name
        }

    def _too_many_failures(self, handle: ActorHandle, failure: WorkerFailure) -> bool:
        now = time.monotonic()
        self._failures = [then for then in self._failures if now - then < 60] + [now]
        if len(self._failures) <= MAX_FAILURES_A_MINUTE:
            return False
        self._failed = True
        error = WorkerError(
            f"{len(self._failures)} workers failed within a minute; the last one was "
            f"{handle.name}: {failure.value}"
        )
        for subscriber in list(self._subscribers):
            subscriber.on_pool_failed(error)
        return True

    def _start_missing(self) -> None:
        """Start the decoders that are missing, and a reader on every node with decoders."""
        if not self.connection.alive:
            return
        self.cpus = total_cpus()
        handles = [*self._running.values(), *self._starting.values()]
        missing = self._allowed - sum(handle.role == "decoder" for handle in handles)
        if self._one_by_one:
            waiting = any(handle.role == "decoder" for handle in self._starting.values())
            missing = min(missing, 0 if waiting else 1)
        for _ in range(missing):
            self._start("decoder", Decoder, num_cpus=1, allow_out_of_order_execution=True)
        for node in self._decoder_nodes() - self._reader_nodes.keys():
            if node in _nodes_alive():
                self._start_reader(node)

    def _decoder_nodes(self) -> set[str]:
        return {handle.node for handle in self._running.values() if handle.role == "decoder"}

    def _end_idle_readers(self) -> None:
        """End the readers of nodes without a decoder, if a reader runs beside a decoder."""
        if any(subscriber.reads_in_order for subscriber in self._subscribers):
            return
        nodes = self._decoder_nodes()
        readers = [handle for handle in self._running.values() if handle.role == "reader"]
        idle = [handle for handle in readers if handle.node not in nodes]
        for handle in idle if len(idle) < len(readers) else ():
            self._remove(handle, WorkerFailure.REMOVED)

    def _start_reader(self, node: str) -> None:
        # Ray ignores a soft affinity of an actor without CPUs. A hard one cannot lack room: the
        # reader requests none. If the node is lost, its decoders are lost with the reader.
        strategy = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        name = self._start(
            "reader", Reader, num_cpus=0, max_concurrency=THREADS, scheduling_strategy=strategy
        )
        self._reader_nodes[node] = name

    def _start(self, role: Role, actor: type, **options: Any) -> str:
        name = f"{self._prefix}:{role}{next(self._numbers[role])}"
        excluded = self._cool_down.nodes() if role == "decoder" else ()
        options |= exclude_nodes(excluded)
        remote = (
            ray.remote(concurrency_groups={CONTROL: 1})(actor)
            if role == "decoder"
            else ray.remote(actor)
        )
        handle = ActorHandle(
            name, role, self.connection.make(remote, name=name, **options), excluded=excluded
        )
        self._starting[name] = handle
        started = self.connection.call(handle.actor.node_info).future()
        started.add_done_callback(partial(self._on_started, handle))
        return name

    def _on_started(self, handle: ActorHandle, future: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the pool was closed meanwhile
            self._callbacks.submit(self._add, handle, future)

    def _add(self, handle: ActorHandle, future: Any) -> None:
        """Add a new actor that has started, or replace one that has not."""
        error = future.exception()
        with self._lock:
            ended = self._closed or not self.connection.alive
            if ended or self._starting.pop(handle.name, None) is None:
                return
            if error is not None:
                _log.warning("%s did not start: %s", handle.name, error)
                for subscriber in list(self._subscribers):
                    subscriber.on_actor_lost(handle, WorkerFailure.CRASHED)
                self._forget_reader(handle)
                if not self._too_many_failures(handle, WorkerFailure.CRASHED):
                    self._start_missing()
                return
            handle.info = future.result()
            self._running[handle.name] = handle
            for subscriber in list(self._subscribers):
                subscriber.on_actor_started(handle)
            self._end_idle_readers()
            self._start_missing()


class CoolDown:
    """The nodes that were unreachable a short time ago: no new actor is placed on them.

    Ray declares a dead node dead only after many seconds, and would place actors there meanwhile. A
    node that was only slow is as good as any other afterwards, and may be the only one.

    The pool's lock guards it. `over` runs on another thread when a node's cool-down has ended.
    """

    def __init__(self, over: Callable[[str], None], seconds: float = COOL_DOWN_SECONDS) -> None:
        self._over, self._seconds = over, seconds
        self._timers: dict[str, threading.Timer] = {}

    def start(self, node: str) -> None:
        """Place no actor on this node for the next `seconds`."""
        if node not in self._timers:
            self._timers[node] = timer = threading.Timer(self._seconds, self._over, (node,))
            timer.daemon = True
            timer.start()

    def end(self, node: str) -> None:
        """Allow actors on this node again."""
        self._timers.pop(node).cancel()

    def clear(self) -> None:
        """End all cool-downs without calling `over`."""
        for node in list(self._timers):
            self.end(node)

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes to exclude now; none if no other node has a CPU."""
        if not self._timers:
            return ()
        usable = {
            node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")
        }
        return tuple(sorted(self._timers)) if usable - self._timers.keys() else ()


def exclude_nodes(nodes: tuple[str, ...]) -> dict[str, Any]:
    """Return the options of an actor that Ray must not place on these nodes."""
    return {"label_selector": {"ray.io/node-id": f"!in({','.join(nodes)})"}} if nodes else {}


def _nodes_alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
