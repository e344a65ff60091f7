"""The feeder: a thread of the training process in which dispatch runs, and where batches are put together.

Owns the conversation of consumer, pool, executor and dispatch: one queue for all that happens, one for what is ready.
It decides nothing itself.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rayingest.errors import ConfigError, DataError, IngestError, WorkerError
from rayingest.execute.cluster.assembly import assemble_batch
from rayingest.execute.cluster.executor import Executor
from rayingest.execute.cluster.pool import Member, Pool
from rayingest.execute.cluster.reader import BLOCK_OVERHEAD
from rayingest.execute.cluster.resources import uncount_loader
from rayingest.execute.cluster.status import at_fault
from rayingest.execute.cluster.timings import Stalls
from rayingest.execute.cluster.walk import Walk
from rayingest.execute.quarantine import NOTHING_SKIPPED, Quarantine
from rayingest.execute.stream import Stream
from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.dispatch import Dispatch, Limits
from rayingest.plan.dispatch.failures import WorkerFailure
from rayingest.plan.figures.metrics import Span, no_span
from rayingest.plan.order.replacements import Known
from rayingest.plan.protocols import Batch, BufferPool, array_bytes
from rayingest.util import slow

_ROW_OVERHEAD = 64
"""Bytes that a raw block takes for a sample besides its fields: its key, its offset, where its fields begin."""
_CLOSE_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_FREE_LOOK_SECONDS = 0.05

_log = logging.getLogger("rayingest")


@dataclass(frozen=True)
class _Arrival:
    """Something that happened elsewhere; `extra` is the answer of a call, or how a member was lost."""

    kind: str
    subject: Any
    extra: Any = None


class Feeder:
    """The batch source over Ray.

    `buffers` is where batches are put; `epochs` the epoch that it does not run on to. It closes the pool with itself
    where it `owns_pool`. `quarantine` is where samples go that the stream's work skips. `tick` is called whenever
    something happened, and twice a second where nothing does; `span` with what was done.
    """

    def __init__(
        self,
        stream: Stream,
        pool: Pool,
        buffers: BufferPool,
        limits: Limits,
        *,
        epochs: int | None = None,
        decode_timeout: float = math.inf,
        owns_pool: bool = False,
        quarantine: Quarantine | None = None,
        tick: Callable[[], None] = lambda: None,
        span: Span = no_span,
    ) -> None:
        self._stream, self._pool, self._buffers, self._limits, self._epochs = (
            stream,
            pool,
            buffers,
            limits,
            epochs,
        )
        self._owns_pool, self._quarantine, self._tick = owns_pool, quarantine, tick
        self._stalls = Stalls(time.monotonic)
        self._inbox: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
        # The start it belongs to, the batch or what stands in its place, what is wrong with samples left out of it.
        self._outbox: queue.SimpleQueue[tuple[int, Batch | BaseException, Sequence[DataError]]] = (
            queue.SimpleQueue()
        )
        self._executor = Executor(stream, pool, self._tell, decode_timeout, span)
        self._span = span
        row_bytes = stream.work.spec_bytes or stream.row_bytes
        self._dispatch = Dispatch(stream.sizes(_ROW_OVERHEAD, BLOCK_OVERHEAD), limits, row_bytes)
        self._generation = (
            0  # of the consumer's start; what older ones left in the outbox is thrown away
        )
        self._error: BaseException | None = None
        self._closed = False
        # Of the thread alone:
        self._serving = 0
        self._looked = 0.0
        self._known = Known()
        self._walk = Walk(stream, 0, 0, 0, self._known)
        self._counts = {
            "samples": 0,
            "steps": 0,
            "peak_bytes": 0,
            "assemble_seconds": 0.0,
            "bytes_assembled": 0,
        }
        self._thread = threading.Thread(target=self._run, name="rayingest-feeder", daemon=True)
        self._thread.start()
        pool.subscribe(self)

    # The consumer's side

    def start(self, epoch: int, step: int) -> None:
        self._pool.connection.check_process()
        self._generation += 1
        self._tell("start", (self._generation, epoch, step))

    def get(self) -> Batch:
        self._pool.connection.check_process()
        self._stalls.wait()
        try:
            return self._next()
        except Exception as error:
            explained = self._pool.connection.explained(error)
            raise explained from explained.__cause__
        finally:
            self._stalls.served()

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
                    words = self._executor.waiting_for(self._stalls.lack)
                    _log.warning("no batch for %.0f s: waiting for %s", waited, words)
                continue
            if generation != self._generation:
                continue
            self._tell("taken", generation)
            if isinstance(item, BaseException):
                raise item
            if self._quarantine is not None:
                self._quarantine.admit(len(item.columns["__index__"]), bad)
            return item

    def ready(self) -> bool:
        return not self._outbox.empty()

    def stats(self) -> dict[str, Any]:
        self._pool.connection.check_process()
        dispatch = self._dispatch
        return {
            **self._counts,
            **self._executor.stats(),
            **self._stalls.stats(),
            **dispatch.counts,
            **(NOTHING_SKIPPED if self._quarantine is None else self._quarantine.counts),
            "blocks_reread": dispatch.residency.rereads,
            "bytes_in_flight": dispatch.held,
            "lingering_bytes": dispatch.lingering,
            "max_bytes": self._limits.max_bytes,
            "node_store_bytes": self._pool.store_bytes,
            "batches_ready": self._outbox.qsize(),
            "readers": sum(member.role == "reader" for member in self._pool.members),
            "cluster_cpus": self._pool.cpus,
            "world_size": self._stream.planner.world_size,
            "decoders_wanted": self._pool.workers,
            "decoders": sum(member.role == "decoder" for member in self._pool.members),
        }

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        uncount_loader(self)
        if not self._pool.connection.here:
            return
        self._pool.unsubscribe(self)
        self._tell("close", None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)
        if self._owns_pool:
            self._pool.close()

    # The pool's side

    def joined(self, member: Member) -> None:
        self._tell("joined", member)

    def lost(self, member: Member, loss: WorkerFailure) -> None:
        self._tell("lost", member, loss)

    def failed(self, error: IngestError) -> None:
        self._fail(error)

    def _tell(self, kind: str, subject: Any, extra: Any = None) -> None:
        self._inbox.put(_Arrival(kind, subject, extra))

    # The thread

    def _run(self) -> None:
        try:
            while not self._closed:
                happened = self._wait()
                if self._closed:
                    break
                self._stalls.passed("transfer")
                commands = self._dispatch.handle(*happened)
                self._executor.settle(
                    [command for command in commands if isinstance(command, ev.Discard)]
                )
                for command in commands:
                    self._obey(command)
                self._counts["peak_bytes"] = max(self._counts["peak_bytes"], self._dispatch.held)
                self._stalls.passed(self._lack())
                self._tick()
        except BaseException as error:
            # The thread's boundary: whatever ended it, the consumer must hear of it instead of waiting for ever.
            if not self._closed:
                _log.debug("the feeder ended", exc_info=True)
                self._fail(error)
        finally:
            self._executor.clear()

    def _wait(self) -> list[ev.Event]:
        """All that happened since the last time, waiting for something; late tasks are looked for meanwhile."""
        arrivals = []
        with contextlib.suppress(queue.Empty):
            wait = _FREE_LOOK_SECONDS if self._executor.waits_for_store else _LOOK_SECONDS
            arrivals.append(self._inbox.get(timeout=wait))
        while not self._inbox.empty():
            arrivals.append(self._inbox.get())
        happened = [event for arrival in arrivals for event in self._events(arrival)]
        happened += self._executor.freed()
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            happened += self._executor.overdue()
        return happened

    def _events(self, arrival: _Arrival) -> list[ev.Event]:
        happened: list[ev.Event] = []
        match arrival.kind:
            case "start":
                happened = self._restart(*arrival.subject)
            case "taken" if arrival.subject == self._serving:
                happened = [ev.Taken()]
            case "joined":
                self._executor.briefing.introduce(arrival.subject)
            case "learnt":
                self._executor.briefing.learnt(arrival.subject, arrival.extra)
            case "registered":
                happened = self._executor.registered(arrival.subject, arrival.extra)
            case "lost":
                happened = self._executor.lost(arrival.subject, arrival.extra)
            case "read" | "decode":
                happened = self._executor.answered(arrival.subject, arrival.extra)
            case "output":
                happened = self._executor.decoded(arrival.subject, arrival.extra)
            case "told":
                happened = self._executor.log_if_slow(arrival.subject, arrival.extra)
        return happened

    def _restart(self, generation: int, epoch: int, step: int) -> list[ev.Event]:
        self._serving = generation
        self._executor.forget_outputs()
        epochs = None if self._epochs is None or epoch >= self._epochs else self._epochs
        self._walk = Walk(self._stream, epoch, step, epochs, self._known)
        started = self._walk.start()
        self._executor.briefing.go_on()
        return [started]

    def _obey(self, command: ev.Command) -> None:
        match command:
            case ev.Read():
                self._executor.read(command, self._walk.samples)
            case ev.Decode():
                self._executor.decode(command, self._walk.samples)
            case ev.Drop(blocks):
                self._executor.drop(blocks)
            case ev.GiveUp(nbytes):
                self._executor.give_up(nbytes)
            case ev.Deliver():
                self._deliver(command)
            case ev.Fail():
                self._fail(self._explained(command))

    def _lack(self) -> str:
        lack = self._dispatch.lack()
        return "transfer" if lack == "decode" and self._executor.only_fetches else lack

    def _deliver(self, command: ev.Deliver) -> None:
        filled = self._walk.take()
        parts = [(output.rows, self._executor.take(output)) for output in command.outputs]
        if command.error is not None:
            error = command.error
            if isinstance(error, DataError) and error.shard is None:
                error = self._stream.named(error, filled.own, command.row)
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
        self._stalls.passed("")
        self._outbox.put((self._serving, batch, self._stream.bad(filled)))

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._outbox.put((self._generation, error, ()))

    def _explained(self, command: ev.Fail) -> BaseException:
        """The error for the user: what could not be done, where, and why at last."""
        if command.error is None:
            return ConfigError(command.reason)
        where = at_fault(command, self._stream, self._walk.samples)
        made = WorkerError(f"{where}: {command.reason}; lastly: {command.error}")
        made.__cause__ = command.error
        return made
