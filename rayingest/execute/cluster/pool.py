"""The members of a pool: which actors there are, and who is told of them."""

from __future__ import annotations

import contextlib
import itertools
import logging
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
from ray.exceptions import ActorUnavailableError, OutOfMemoryError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayingest.errors import ConfigError, IngestError, WorkerError
from rayingest.execute.cluster.connection import Connection
from rayingest.execute.cluster.decoder import CONTROL, Decoder
from rayingest.execute.cluster.node_info import Site
from rayingest.execute.cluster.reader import THREADS, Reader
from rayingest.execute.cluster.resources import count_cpus, no_decoder, store_bytes, total_cpus
from rayingest.options.checked import checked, whole
from rayingest.options.types import Seconds
from rayingest.plan.dispatch.failures import WorkerFailure

Role = Literal["reader", "decoder"]

DECODER_SLOTS = 2
"""Tasks a decoder has at a time: one to do, one to begin with at once."""


@dataclass(eq=False)
class Member:
    """One actor of a pool; `site` is where it runs, known once it does; on none of the nodes that it `avoids`."""

    name: str
    role: Role
    actor: Any
    site: Site = field(default_factory=lambda: Site("", 0.0))
    avoids: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        return self.site.node

    @property
    def slots(self) -> int:
        return THREADS if self.role == "reader" else DECODER_SLOTS


class Subscriber(Protocol):
    """Who wants to know about the pool's members. Called from any thread; must return at once."""

    def joined(self, member: Member) -> None:
        """The member runs."""

    def lost(self, member: Member, loss: WorkerFailure) -> None:
        """The member is gone."""

    def failed(self, error: IngestError) -> None:
        """The pool cannot go on."""


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


MAX_DEATHS_A_MINUTE = 30

_log = logging.getLogger("rayingest")
_pools = itertools.count()


class Pool:
    """`workers` decoders (1 CPU each), and a reader on each of their nodes, shared by several loaders of a process.

    Actors are asked for when the first loader opens the pool. Where the cluster has fewer CPUs than all ranks ask for
    together, they are asked for one by one, so that no rank takes another's first. Use it as a context manager, or
    `close` it.
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
        self.cpus = 0  # of the cluster, when a decoder was last asked for, or came
        self.store_bytes = 0  # of this node's object store
        self._lock = threading.RLock()
        self._members: dict[str, Member] = {}
        self._pending: dict[str, Member] = {}
        self._reader_nodes: dict[str, str] = {}
        self._subscribers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._numbers = {"reader": itertools.count(), "decoder": itertools.count()}
        self._deaths: list[float] = []
        self._avoided = Avoided(self._trust)
        self._prefix = ""
        self._opened = 0.0
        self._one_by_one = False
        self._closed = False
        self._told = False
        # Ray answers on a thread of its own, which must not call Ray in turn.
        self._clerk = ThreadPoolExecutor(1, "rayingest-pool")

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self, rank: int, world_size: int) -> None:
        """Ask for the actors, if that has not been done."""
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
            self.cpus, self.store_bytes = total_cpus(), store_bytes()
            self._one_by_one = self.cpus < self.workers * world_size
            if self._one_by_one:
                _log.warning(
                    "%d rank(s) ask for %d decoders of 1 CPU each, the cluster has %d CPUs: "
                    "going on with as many as there are, and taking more as they come",
                    world_size,
                    self.workers,
                    self.cpus,
                )
            nodes = _nodes_alive()
            if (
                len(nodes) == 1
            ):  # the reader's place is known before any decoder runs: they start side by side
                self._add_reader(*nodes)
            self._ask()

    def resize(self, workers: int) -> None:
        """Have so many decoders from now on: ask for more, or send those away that came last."""
        with self._lock:
            if self._closed or not self._prefix:
                return
            self.workers = workers
            decoders = [member for member in self._members.values() if member.role == "decoder"]
            asked = [member for member in self._pending.values() if member.role == "decoder"]
            surplus = max(0, len(decoders) + len(asked) - workers)
            for member in asked[len(asked) - min(surplus, len(asked)) :]:
                del self._pending[member.name]
                self.connection.kill(member.actor)
            for member in decoders[len(decoders) - max(0, surplus - len(asked)) :]:
                self._give_up(member, WorkerFailure.DISMISSED)
            self._ask()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell about members that run, and from now on about all that changes."""
        with self._lock:
            self._subscribers.add(subscriber)
            for member in self._members.values():
                subscriber.joined(member)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Tell no more."""
        with self._lock:
            self._subscribers.discard(subscriber)

    @property
    def members(self) -> list[Member]:
        """The actors that run."""
        with self._lock:
            return list(self._members.values())

    def check_started(self) -> None:
        """Raises WorkerError where no decoder could be had in `start_timeout` seconds; tells of fewer once."""
        self.connection.check()
        with self._lock:
            running = sum(member.role == "decoder" for member in self._members.values())
            waited = time.monotonic() - self._opened
            if running == self.workers or waited < self.start_timeout or self._told:
                return
            if not running and not self._deaths:
                raise WorkerError(no_decoder(self.workers, waited, *count_cpus()))
            self._told = True
            _log.warning(
                "going on with %d of %d decoders; the others come as CPUs do", running, self.workers
            )

    def report_dead(self, member: Member, error: BaseException, expected: bool = False) -> None:
        """Somebody found the member dead or out of reach: it is given up and replaced, its node's others with it.

        `expected`: it had nothing but what had ended others before, so that this death is no sign of a broken cluster.
        Out of reach means lost: a node that went without a word is declared dead only much later.
        """
        with self._lock:
            if self._closed or member.name not in self._members or not self.connection.alive:
                return
            loss = (
                WorkerFailure.FOR_MEMORY
                if isinstance(error, OutOfMemoryError)
                else WorkerFailure.BY_ITSELF
            )
            if isinstance(error, ActorUnavailableError) or member.node not in _nodes_alive():
                loss = WorkerFailure.WITH_NODE
                self._avoided.add(member.node)
            gone = [member]
            if loss is WorkerFailure.WITH_NODE:
                gone = [other for other in self._members.values() if other.node == member.node]
            for other in gone:
                self._give_up(other, loss)
            if expected or not self._too_many_deaths(member, loss):
                self._ask()

    def _trust(self, node: str) -> None:
        """Ask again, without avoiding the node, for what no other had room for."""
        with self._lock:
            if self._closed or not self.connection.alive:
                return
            self._avoided.end(node)
            for member in list(self._pending.values()):
                if node in member.avoids:
                    del self._pending[member.name]
                    self.connection.kill(member.actor)
                    self._forget_reader(member)
            self._ask()

    def _give_up(self, member: Member, loss: WorkerFailure) -> None:
        del self._members[member.name]
        self.connection.kill(member.actor)
        for subscriber in list(self._subscribers):
            subscriber.lost(member, loss)
        self._forget_reader(member)

    def _forget_reader(self, member: Member) -> None:
        """Whatever node it was for, which is not always the one that it was put on."""
        self._reader_nodes = {
            node: name for node, name in self._reader_nodes.items() if name != member.name
        }

    def _too_many_deaths(self, member: Member, loss: WorkerFailure) -> bool:
        now = time.monotonic()
        self._deaths = [then for then in self._deaths if now - then < 60] + [now]
        if len(self._deaths) <= MAX_DEATHS_A_MINUTE:
            return False
        error = WorkerError(
            f"{len(self._deaths)} workers died within a minute; lastly {member.name}: {loss.value}"
        )
        for subscriber in list(self._subscribers):
            subscriber.failed(error)
        return True

    def close(self) -> None:
        """End all actors. Idempotent; does nothing in a forked process, whose pool it is not."""
        if not self.connection.here:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            members = [*self._members.values(), *self._pending.values()]
            self._members.clear()
            self._pending.clear()
            self._avoided.clear()
        self._clerk.shutdown(wait=False, cancel_futures=True)
        for member in members:
            self.connection.kill(member.actor)

    def _ask(self) -> None:
        """Ask for the decoders that are lacking, and for a reader on every node with decoders."""
        if not self.connection.alive:
            return
        self.cpus = total_cpus()
        everyone = [*self._members.values(), *self._pending.values()]
        lacking = self.workers - sum(member.role == "decoder" for member in everyone)
        if self._one_by_one:
            lacking = min(
                lacking, 0 if any(m.role == "decoder" for m in self._pending.values()) else 1
            )
        for _ in range(lacking):
            self._add("decoder", Decoder, num_cpus=1, allow_out_of_order_execution=True)
        for node in {member.node for member in self._members.values() if member.role == "decoder"}:
            if node not in self._reader_nodes:
                self._add_reader(node)

    def _add_reader(self, node: str) -> None:
        strategy = NodeAffinitySchedulingStrategy(node_id=node, soft=True)
        name = self._add(
            "reader", Reader, num_cpus=0, max_concurrency=THREADS, scheduling_strategy=strategy
        )
        self._reader_nodes[node] = name

    def _add(self, role: Role, actor: type, **options: Any) -> str:
        name = f"{self._prefix}:{role}{next(self._numbers[role])}"
        avoids = self._avoided.nodes()
        options |= elsewhere(avoids)
        made = (
            ray.remote(concurrency_groups={CONTROL: 1})(actor)
            if role == "decoder"
            else ray.remote(actor)
        )
        member = Member(name, role, self.connection.make(made, name=name, **options), avoids=avoids)
        self._pending[name] = member
        self.connection.call(member.actor.site).future().add_done_callback(
            partial(self._hear_from, member)
        )
        return name

    def _hear_from(self, member: Member, future: Any) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._clerk.submit(self._arrived, member, future)

    def _arrived(self, member: Member, future: Any) -> None:
        """A new actor answered with its node, or did not start."""
        error = future.exception()
        with self._lock:
            gone = self._closed or not self.connection.alive
            if gone or self._pending.pop(member.name, None) is None:
                return
            if error is not None:
                _log.warning("%s did not start: %s", member.name, error)
                for subscriber in list(self._subscribers):
                    subscriber.lost(member, WorkerFailure.BY_ITSELF)
                self._forget_reader(member)
                if not self._too_many_deaths(member, WorkerFailure.BY_ITSELF):
                    self._ask()
                return
            member.site = future.result()
            self._members[member.name] = member
            for subscriber in list(self._subscribers):
                subscriber.joined(member)
            self._ask()


def _nodes_alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
