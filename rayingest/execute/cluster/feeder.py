"""The feeder: a thread of the training process that runs dispatch and assembles batches.

Owns the communication between consumer, pool, executor and dispatch: one queue (the inbox) for all
that happens on other threads, and one (the outbox) for finished batches. Decides nothing itself.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rayingest.errors import ConfigError, DataError, IngestError, WorkerError
from rayingest.execute.cluster.assembly import assemble_batch
from rayingest.execute.cluster.executor import Executor
from rayingest.execute.cluster.pool import ActorHandle
from rayingest.execute.cluster.reader import BLOCK_OVERHEAD
from rayingest.execute.cluster.registration import StoredWork
from rayingest.execute.cluster.resources import uncount_loader
from rayingest.execute.cluster.shared_pool import Lease
from rayingest.execute.cluster.status import describe_failed
from rayingest.execute.cluster.timings import Stalls
from rayingest.execute.cluster.walk import Walk
from rayingest.execute.quarantine import NOTHING_SKIPPED, Quarantine
from rayingest.execute.stream import Stream
from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.dispatch import Dispatch
from rayingest.plan.dispatch.events import WorkerFailure
from rayingest.plan.dispatch.limits import Limits
from rayingest.plan.figures.metrics import Span, no_span
from rayingest.plan.order.replacements import Known
from rayingest.plan.protocols import Batch, BufferPool, array_bytes
from rayingest.util import slow

_ROW_OVERHEAD = 64
"""Bytes of a raw block per sample besides the fields: key, offset, and where the fields begin."""
_CLOSE_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_FREE_LOOK_SECONDS = 0.05
"""While the store has bytes to free, look this often: a task may wait for them."""

_log = logging.getLogger("rayingest")


@dataclass(frozen=True)
class _Arrival:
    """Something that happened on another thread; `extra` is a call's future or a failure's kind."""

    kind: str
    subject: Any
    extra: Any = None


class Feeder:
    """The batch source on Ray.

    Args:
        stream: what to make.
        lease: the pool of actors that read and decode; `close` ends the lease.
        buffers: where to put batches.
        limits: `max_bytes` and the number of batches to run ahead.
        epochs: the epoch to stop before; None: no limit.
        decode_timeout: seconds after which a decode ends together with its worker.
        max_bytes_for: returns `max_bytes` for a number of ranks on this node; None: it does
            not depend on them.
        quarantine: receives the samples that the stream's work skips.
        tick: called after every event, and twice a second without events.
        span: receives the duration of finished work.
    """

    def __init__(
        self,
        stream: Stream,
        lease: Lease,
        buffers: BufferPool,
        limits: Limits,
        *,
        epochs: int | None = None,
        decode_timeout: float = math.inf,
        max_bytes_for: Callable[[int], int] | None = None,
        quarantine: Quarantine | None = None,
        tick: Callable[[], None] = lambda: None,
        span: Span = no_span,
    ) -> None:
        pool = lease.pool
        self._stream, self._pool, self._buffers, self._limits = stream, pool, buffers, limits
        self._epochs, self._lease, self._quarantine = epochs, lease, quarantine
        self._max_bytes, self._max_bytes_for = limits.max_bytes, max_bytes_for
        self._tick, self._span, self._decode_timeout = tick, span, decode_timeout
        self._stalls = Stalls(time.monotonic)
        # Counts the consumer's starts. What earlier starts left in the outbox is thrown away.
        self._generation = 0
        self._closed = False
        self._known = Known()
        self._work = StoredWork(stream.work, pool.connection)
        self._counts = {
            "samples": 0,
            "steps": 0,
            "peak_bytes": 0,
            "assemble_seconds": 0.0,
            "bytes_assembled": 0,
        }
        self._begin()

    def _begin(self) -> None:
        """Start the thread and what it uses: for the first start, and for one after an error."""
        stream = self._stream
        # Results of calls that an earlier thread made go on arriving in its inbox, where they stay.
        self._inbox: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
        # The generation of the start; a batch, or the error in its place; the batch's bad samples.
        self._outbox: queue.SimpleQueue[tuple[int, Batch | BaseException, Sequence[DataError]]] = (
            queue.SimpleQueue()
        )
        post = partial(_post_to, self._inbox)
        self._executor = Executor(
            stream, self._work, self._pool, post, self._decode_timeout, self._span
        )
        row_bytes = stream.work.spec_bytes or stream.row_bytes
        sizes = stream.sizes(_ROW_OVERHEAD, BLOCK_OVERHEAD)
        limits = replace(self._limits, max_bytes=self._max_bytes)
        self._dispatch = Dispatch(sizes, limits, row_bytes)
        self._error: BaseException | None = None  # ends the thread
        # Used on the feeder's thread alone from here on.
        self._serving = 0  # the generation that dispatch works for
        self._looked = 0.0
        self._walk = Walk(stream, 0, 0, 0, self._known)
        self._thread = threading.Thread(target=self._run, name="rayingest-feeder", daemon=True)
        self._thread.start()
        self._pool.subscribe(self)

    # The consumer's thread

    def start(self, epoch: int, step: int) -> None:
        """Make the batches from this position on; `get` returns none of an earlier start.

        After an error that ended the thread, all begins anew, with the actors that run.
        """
        self._pool.connection.check_process()
        if self._error is not None and not self._closed:
            self._recover(self._error)
        self._generation += 1
        self._post("start", (self._generation, epoch, step))

    def _recover(self, error: BaseException) -> None:
        self._pool.connection.check()
        self._pool.unsubscribe(self)
        self._post("wake up", None)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():  # in a call of Ray that does not return
            raise error
        self._pool.restart_missing()
        self._begin()

    def get(self) -> Batch:
        """Return the next batch; wait for it. Raises the error that takes its place."""
        self._pool.connection.check_process()
        self._stalls.begin_wait()
        try:
            return self._next()
        except Exception as error:
            explained = self._pool.connection.explain(error)
            raise explained from explained.__cause__
        finally:
            self._stalls.end_wait()

    def _next(self) -> Batch:
        waited = 0.0
        while True:
            if self._closed:
                raise IngestError("this loader is closed")
            if self._error is not None:
                raise self._error
            try:
                generation, item, bad = self._outbox.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                waited += _LOOK_SECONDS
                self._pool.check_started()
                if waited == slow.FIRST_SECONDS or waited % slow.AGAIN_SECONDS == 0:
                    words = self._executor.describe_wait(self._stalls.lack)
                    _log.warning("no batch for %.0f s: waiting for %s", waited, words)
                continue
            if generation != self._generation:
                continue
            if self._error is None:  # else the item may be this error: no batch of dispatch
                self._post("taken", generation)
            if isinstance(item, BaseException):
                raise item
            if self._quarantine is not None:
                self._quarantine.admit(len(item.columns["__index__"]), bad)
            return item

    def ready(self) -> bool:
        """Return whether `get` would return at once."""
        return not self._outbox.empty()

    def stats(self) -> dict[str, Any]:
        """Return the figures of docs/observing.md that a source has."""
        self._pool.connection.check_process()
        dispatch = self._dispatch.stats()
        dispatch["blocks_reread"] += self._stream.blocks_reread
        return {
            **self._counts,
            **self._executor.stats(),
            **self._stalls.stats(),
            **dispatch,
            **(NOTHING_SKIPPED if self._quarantine is None else self._quarantine.counts),
            "max_bytes": self._max_bytes,
            "node_store_bytes": self._pool.store_bytes,
            "batches_ready": self._outbox.qsize(),
            "cluster_cpus": self._pool.cpus,
            "world_size": self._stream.planner.world_size,
            "readers": self._pool.count("reader"),
            "decoders": self._pool.count("decoder"),
            "decoders_wanted": self._pool.workers,
        }

    def close(self) -> None:
        """End the thread, drop all references, and end the lease of the pool."""
        if self._closed:
            return
        self._closed = True
        uncount_loader(self)
        if not self._pool.connection.here:
            return
        self._pool.unsubscribe(self)
        self._post("close", None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)
        self._lease.end()

    # Any thread: the pool's and Ray's

    @property
    def reads_in_order(self) -> bool:
        return self._limits.in_order

    def on_actor_started(self, handle: ActorHandle) -> None:
        self._post("started", handle)

    def on_actor_lost(self, handle: ActorHandle, failure: WorkerFailure) -> None:
        self._post("lost", handle, failure)

    def on_pool_failed(self, error: IngestError) -> None:
        self._fail(error)

    def on_local_ranks(self, local_ranks: int) -> None:
        if self._max_bytes_for is not None:
            self._post("local ranks", self._max_bytes_for(local_ranks))

    def _post(self, kind: str, subject: Any, extra: Any = None) -> None:
        _post_to(self._inbox, kind, subject, extra)

    # The feeder's thread

    def _run(self) -> None:
        try:
            while not self._closed and self._error is None:
                events = self._wait()
                if self._closed:
                    break
                self._stalls.set_lack("transfer")
                commands = self._dispatch.handle(*events)
                self._executor.settle(
                    [command for command in commands if isinstance(command, ev.Discard)]
                )
                for command in commands:
                    self._obey(command)
                peak, charged = self._counts["peak_bytes"], self._dispatch.charged_bytes
                self._counts["peak_bytes"] = max(peak, charged)
                self._stalls.set_lack(self._lack())
                self._tick()
        except BaseException as error:
            # The thread's boundary: the consumer must get any error, or it would wait forever.
            if not self._closed:
                _log.debug("the feeder ended", exc_info=True)
                self._fail(error)
        finally:
            self._executor.clear()

    def _wait(self) -> list[ev.Event]:
        """Wait for an arrival or the next look; return all events since the last call."""
        arrivals = []
        with contextlib.suppress(queue.Empty):
            wait = _FREE_LOOK_SECONDS if self._executor.waits_for_store else _LOOK_SECONDS
            arrivals.append(self._inbox.get(timeout=wait))
        while not self._inbox.empty():
            arrivals.append(self._inbox.get())
        events = [event for arrival in arrivals for event in self._events(arrival)]
        events += self._executor.collect_freed()
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            events += self._executor.find_overdue()
        return events

    def _events(self, arrival: _Arrival) -> list[ev.Event]:
        """Pass an arrival to its receiver; return the events for dispatch."""
        events: list[ev.Event] = []
        match arrival.kind:
            case "start":
                events = self._restart(*arrival.subject)
            case "taken" if arrival.subject == self._serving:
                events = [ev.BatchTaken()]
            case "local ranks" if arrival.subject > self._max_bytes:
                self._max_bytes = arrival.subject
                events = [ev.LimitRaised(self._max_bytes)]
            case "started":
                self._executor.registration.add(arrival.subject)
            case "schema":
                self._executor.registration.on_schema(arrival.subject, arrival.extra)
            case "registered":
                events = self._executor.on_registered(arrival.subject, arrival.extra)
            case "lost":
                events = self._executor.on_actor_lost(arrival.subject, arrival.extra)
            case "read" | "decode":
                events = self._executor.on_result(arrival.subject, arrival.extra)
            case "output":
                events = self._executor.on_output(arrival.subject, arrival.extra)
            case "released":
                events = self._executor.on_released(arrival.subject, arrival.extra)
        return events

    def _restart(self, generation: int, epoch: int, step: int) -> list[ev.Event]:
        if self._serving:
            self._executor.registration.restart()
        self._serving = generation
        self._executor.forget_outputs()
        epochs = None if self._epochs is None or epoch >= self._epochs else self._epochs
        self._walk = Walk(self._stream, epoch, step, epochs, self._known)
        start = self._walk.start()
        self._executor.registration.advance()
        return [start]

    def _obey(self, command: ev.Command) -> None:
        match command:
            case ev.Read():
                self._executor.read(command, self._walk.samples)
            case ev.Decode():
                self._executor.decode(command, self._walk.samples)
            case ev.Drop(blocks):
                self._executor.drop(blocks)
            case ev.ReportFreed(nbytes):
                self._executor.release(nbytes)
            case ev.Deliver():
                self._deliver(command)
            case ev.Fail():
                self._fail(self._explain(command))

    def _lack(self) -> str:
        lack = self._dispatch.stall_cause()
        return "transfer" if lack == "decode" and self._executor.only_transfers else lack

    def _deliver(self, command: ev.Deliver) -> None:
        filled = self._walk.take()
        parts = [(output.rows, self._executor.take(output)) for output in command.outputs]
        if command.error is not None:
            error = command.error
            if isinstance(error, DataError) and error.shard is None:
                error = self._stream.locate(error, filled.own, command.row)
            self._outbox.put((self._serving, error, ()))
            return
        begun = time.perf_counter()
        batch = assemble_batch(self._stream, filled.samples, parts, self._buffers)
        took = time.perf_counter() - begun
        self._counts["assemble_seconds"] += took
        self._span("assemble", took, "feeder", (batch.epoch, batch.step))
        self._counts["bytes_assembled"] += array_bytes(batch.columns)
        self._counts["samples"] += filled.own.rows
        self._counts["steps"] += 1
        self._stalls.set_lack("")
        self._outbox.put((self._serving, batch, self._stream.errors_in(filled)))

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._outbox.put((self._generation, error, ()))

    def _explain(self, command: ev.Fail) -> BaseException:
        """Return the error for the user: where it failed, how often, and the last reason."""
        if command.error is None:
            return ConfigError(command.reason)
        where = describe_failed(command, self._stream, self._walk.samples)
        error = WorkerError(f"{where}: {command.reason}; the last error: {command.error}")
        error.__cause__ = command.error
        return error


def _post_to(
    inbox: queue.SimpleQueue[_Arrival], kind: str, subject: Any, extra: Any = None
) -> None:
    inbox.put(_Arrival(kind, subject, extra))
