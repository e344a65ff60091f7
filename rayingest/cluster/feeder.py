"""The feeder: a thread of the training process that carries out what dispatch decides, and puts batches together.

Owns every object reference of its stream, and the only place where Ray's answers become events. It waits on one queue
for all that happens (answers, the consumer, the pool), and decides nothing itself.
"""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import ray.exceptions as rx

from rayingest.cluster.assembly import assemble_batch
from rayingest.cluster.decoder import PartOrder
from rayingest.cluster.pool import Member, Pool
from rayingest.cluster.reader import BLOCK_OVERHEAD
from rayingest.errors import ConfigError, IngestError, WorkerError
from rayingest.plan import events as ev
from rayingest.plan.dispatch import Dispatch, Limits
from rayingest.plan.planner import Picks
from rayingest.plan.protocols import Batch, BufferPool
from rayingest.stream import Stream

_ROW_OVERHEAD = 64
"""Bytes that a raw block takes for a sample besides its fields: its key, its offset, where its fields begin."""
_CLOSE_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_SILENCE_SECONDS = 30.0

_log = logging.getLogger("rayingest")


@dataclass(eq=False)
class _Call:
    """A task of dispatch's as Ray has it. `stale`: nobody wants its outcome any more."""

    command: ev.Read | ev.Decode
    member: Member
    refs: list[Any]
    stale: bool = False
    meta: Any = None


@dataclass(frozen=True)
class _Arrival:
    """Something that happened elsewhere; `future` is the answer of a call, where it is one."""

    kind: str
    subject: Any
    future: Any = None


@dataclass
class _Timings:
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    bytes_read: int = 0
    samples: int = 0
    steps: int = 0
    peak_bytes: int = 0


class Feeder:
    """The batch source over Ray.

    `buffers` is where batches are put; `epochs` the epoch that it does not run on to. It closes the pool with itself
    where it `owns_pool`.
    """

    def __init__(
        self,
        stream: Stream,
        pool: Pool,
        buffers: BufferPool,
        limits: Limits,
        *,
        epochs: int | None = None,
        owns_pool: bool = False,
    ) -> None:
        self._stream, self._pool, self._buffers, self._limits, self._epochs = stream, pool, buffers, limits, epochs
        self._owns_pool = owns_pool
        self._key = uuid.uuid4().hex
        self._work = ray.put(stream.work)
        row_bytes = stream.work.pipeline.spec_bytes or stream.manifest.total_bytes / stream.manifest.num_samples
        sizes = stream.manifest.nbytes + _ROW_OVERHEAD * stream.manifest.samples + BLOCK_OVERHEAD
        self._dispatch = Dispatch(sizes, limits, row_bytes)
        self._inbox: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[tuple[int, Batch | BaseException]] = queue.SimpleQueue()
        self._generation = 0  # of the consumer's start; what older ones left in the outbox is thrown away
        self._error: BaseException | None = None
        self._closed = False
        # Of the thread alone:
        self._serving = 0
        self._picks: deque[Picks] = deque()
        self._first_pick = 0
        self._members: dict[str, Member] = {}
        self._calls: dict[int, _Call] = {}
        self._blocks: dict[int, Any] = {}
        self._outputs: dict[int, list[Any]] = {}
        self._timings = _Timings()
        self._thread = threading.Thread(target=self._run, name="rayingest-feeder", daemon=True)
        self._thread.start()
        pool.subscribe(self)

    # The consumer's side

    def start(self, epoch: int, step: int) -> None:
        self._generation += 1
        self._inbox.put(_Arrival("start", (self._generation, epoch, step)))

    def get(self) -> Batch:
        waited = 0.0
        while True:
            if self._closed:
                raise IngestError("this loader is closed")
            if self._error is not None:
                raise self._error
            try:
                generation, item = self._outbox.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                waited += _LOOK_SECONDS
                self._pool.check_started()
                if waited % _SILENCE_SECONDS == 0:
                    _log.warning("no batch for %.0f s: %s", waited, self._waiting_for())
                continue
            if generation != self._generation:
                continue
            self._inbox.put(_Arrival("taken", generation))
            if isinstance(item, BaseException):
                raise item
            return item

    def ready(self) -> bool:
        return not self._outbox.empty()

    def stats(self) -> dict[str, Any]:
        dispatch = self._dispatch
        return {
            **vars(self._timings),
            **dispatch.counts,
            "blocks_reread": dispatch.residency.rereads,
            "bytes_in_flight": dispatch.held,
            "max_bytes": self._limits.max_bytes,
            "readers": sum(member.role == "reader" for member in self._pool.members),
            "decoders": sum(member.role == "decoder" for member in self._pool.members),
        }

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._pool.unsubscribe(self)
        self._inbox.put(_Arrival("close", None))
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)
        if self._owns_pool:
            self._pool.close()

    # The pool's side

    def joined(self, member: Member) -> None:
        """It is given the stream first; when it has it, it can be given tasks."""
        ref = member.actor.register.remote(self._key, self._work)
        ref.future().add_done_callback(lambda future: self._inbox.put(_Arrival("registered", member, future)))

    def lost(self, member: Member) -> None:
        self._inbox.put(_Arrival("lost", member))

    def failed(self, error: IngestError) -> None:
        self._fail(error)

    # The thread

    def _run(self) -> None:
        try:
            while not self._closed:
                arrivals = [self._inbox.get()]
                while not self._inbox.empty():
                    arrivals.append(self._inbox.get())
                happened = [event for arrival in arrivals for event in self._events(arrival)]
                if happened and not self._closed:
                    for command in self._dispatch.handle(*happened):
                        self._obey(command)
                    self._timings.peak_bytes = max(self._timings.peak_bytes, self._dispatch.held)
        except BaseException as error:
            # The thread's boundary: whatever ended it, the consumer must hear of it instead of waiting for ever.
            if not self._closed:
                _log.debug("the feeder ended", exc_info=True)
                self._fail(error)
        finally:
            self._clear()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._outbox.put((self._generation, error))

    def _clear(self) -> None:
        """Give up every reference, and have the workers forget the stream."""
        if ray.is_initialized():
            for member in self._members.values():
                member.actor.forget.remote(self._key)
        for kept in (self._calls, self._blocks, self._outputs, self._members):
            kept.clear()
        self._picks.clear()

    def _events(self, arrival: _Arrival) -> list[ev.Event]:
        happened: list[ev.Event] = []
        match arrival.kind:
            case "start":
                happened = self._restart(*arrival.subject)
            case "taken" if arrival.subject == self._serving:
                happened = [ev.Taken()]
            case "registered":
                happened = self._registered(arrival.subject, arrival.future)
            case "lost":
                happened = self._lost(arrival.subject)
            case "read" | "decode":
                happened = self._answered(arrival.subject, arrival.future)
            case "output":
                happened = self._decoded(arrival.subject, arrival.future)
        return happened

    def _restart(self, generation: int, epoch: int, step: int) -> list[ev.Event]:
        self._serving = generation
        self._picks.clear()
        self._first_pick = 0
        self._outputs.clear()
        for call in self._calls.values():
            call.stale = isinstance(call.command, ev.Decode)
        epochs = None if self._epochs is None or epoch >= self._epochs else self._epochs

        def steps() -> Any:
            for picks in self._stream.steps(epoch, step, epochs):
                self._picks.append(picks)
                yield self._stream.step_work(picks, (epoch, step))

        return [ev.Start(steps())]

    def _registered(self, member: Member, future: Any) -> list[ev.Event]:
        error = future.exception()
        if error is None:
            self._members[member.name] = member
            return [ev.WorkerJoined(member.name, member.role, member.slots)]
        if isinstance(error, rx.RayActorError):
            self._pool.report_dead(member)
        else:
            last = str(error).strip().splitlines()[-1]
            self._fail(
                ConfigError(
                    f"the workers cannot take up the description of the data: {last}; what it uses must be importable "
                    "there: install it, or give ray.init a runtime_env with working_dir or py_modules"
                )
            )
        return []

    def _lost(self, member: Member) -> list[ev.Event]:
        if self._members.pop(member.name, None) is None:
            return []
        for task in [task for task, call in self._calls.items() if call.member is member]:
            del self._calls[task]
        return [ev.WorkerLost(member.name)]

    def _answered(self, task: int, future: Any) -> list[ev.Event]:
        """The small first answer of a call."""
        call = self._calls.get(task)
        if call is None:
            return []
        error = future.exception()
        if error is not None:
            return self._call_failed(task, call, error)
        if isinstance(call.command, ev.Decode):
            call.meta = future.result()
            self._when_done(call.refs[1], "output", task)
            return []
        nbytes, seconds = future.result()
        del self._calls[task]
        self._blocks |= dict(zip(call.command.blocks, call.refs[1:], strict=True))
        self._timings.read_seconds += seconds
        self._timings.bytes_read += sum(nbytes)
        return [ev.ReadDone(task, nbytes)]

    def _decoded(self, task: int, future: Any) -> list[ev.Event]:
        """The arrays of a decode are on this node."""
        call = self._calls.get(task)
        if call is None:
            return []
        error = future.exception()
        if error is not None:
            return self._call_failed(task, call, error)
        del self._calls[task]
        if not call.stale:
            self._outputs[task] = future.result()
        self._timings.decode_seconds += call.meta.seconds
        return [ev.DecodeDone(task, call.meta.parts, call.meta.seconds)]

    def _call_failed(self, task: int, call: _Call, error: BaseException) -> list[ev.Event]:
        if isinstance(error, rx.RayActorError):
            self._pool.report_dead(call.member)  # which tells us in turn that it is lost
            return []
        del self._calls[task]
        if isinstance(call.command, ev.Read):
            cause = error.cause if isinstance(error, rx.RayTaskError) else error
            return [ev.ReadFailed(task, cause, final=isinstance(cause, IngestError))]
        events: list[ev.Event] = []
        if isinstance(error, (rx.ObjectLostError, rx.RayTaskError)) and _is_loss(error):
            events.append(ev.BlocksLost(self._forget_blocks(call.command.blocks)))
        return [*events, ev.DecodeFailed(task, error)]

    def _forget_blocks(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number for number in numbers if self._blocks.pop(number, None) is not None)

    def _when_done(self, ref: Any, kind: str, task: int) -> None:
        ref.future().add_done_callback(lambda future: self._inbox.put(_Arrival(kind, task, future)))

    def _obey(self, command: ev.Command) -> None:
        match command:
            case ev.Read():
                self._read(command)
            case ev.Decode():
                self._decode(command)
            case ev.Drop(blocks):
                self._forget_blocks(blocks)
            case ev.Deliver():
                self._deliver(command)
            case ev.Fail(reason, blocks, error):
                self._fail(self._explained(reason, blocks, error))

    def _read(self, command: ev.Read) -> None:
        member = self._members[command.worker]
        method = member.actor.read.options(num_returns=1 + len(command.blocks))
        refs = method.remote(self._key, self._stream.spans(command.blocks))
        self._calls[command.task] = _Call(command, member, refs)
        self._when_done(refs[0], "read", command.task)

    def _decode(self, command: ev.Decode) -> None:
        member = self._members[command.worker]
        blocks = np.array(command.blocks)
        orders = []
        for part in command.parts:
            picks = self._picks[part.step - self._first_pick]
            orders.append(
                PartOrder(self._stream.rows(picks, part.rows, blocks), whole=len(part.rows) == len(picks.block))
            )
        method = member.actor.decode.options(num_returns=2)
        refs = method.remote(self._key, orders, *(self._blocks[number] for number in command.blocks))
        self._calls[command.task] = _Call(command, member, refs)
        self._when_done(refs[0], "decode", command.task)

    def _deliver(self, command: ev.Deliver) -> None:
        picks = self._picks.popleft()
        self._first_pick += 1
        parts = []
        for output in command.outputs:
            results = self._outputs[output.task]
            parts.append((output.rows, results[output.index]))
            results[output.index] = None
            if all(result is None for result in results):
                del self._outputs[output.task]
        if command.error is not None:
            self._outbox.put((self._serving, command.error))
            return
        batch = assemble_batch(self._stream, picks, parts, self._buffers)
        self._timings.samples += picks.rows
        self._timings.steps += 1
        self._outbox.put((self._serving, batch))

    def _explained(self, reason: str, blocks: tuple[int, ...], error: BaseException | None) -> BaseException:
        """The error for the user: what could not be done, on which shard, and why at last."""
        if error is None:
            return ConfigError(reason)
        urls = dict.fromkeys(span[0] for span in self._stream.spans(blocks[:3]))
        made = WorkerError(f"work on {', '.join(urls)} {reason}; lastly: {error}")
        made.__cause__ = error
        return made

    def _waiting_for(self) -> str:
        calls = list(self._calls.values())
        reads = sum(isinstance(call.command, ev.Read) for call in calls)
        decoders = sum(member.role == "decoder" for member in self._pool.members)
        return f"{reads} reads and {len(calls) - reads} decodes are under way on {decoders} decoders"


def _is_loss(error: BaseException) -> bool:
    """Whether a call failed because an object it was given is gone."""
    cause = error.cause if isinstance(error, rx.RayTaskError) else error
    return isinstance(cause, (rx.ObjectLostError, rx.OwnerDiedError, rx.ObjectReconstructionFailedError))
