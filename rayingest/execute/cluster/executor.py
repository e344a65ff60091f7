"""Send dispatch's reads and decodes to actors, and turn their results into events.

Runs on one thread, the feeder's. Results reach that thread through `post`, which Ray calls on a
thread of its own. Decides nothing: dispatch does.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
import ray.exceptions as rx

from rayingest.execute.cluster.connection import ACTOR_ERRORS
from rayingest.execute.cluster.object_refs import BlockMessage, BlockRefs, NewBlock, Results
from rayingest.execute.cluster.pool import ActorHandle, Pool
from rayingest.execute.cluster.registration import (
    Registration,
    StoredWork,
    registration_error,
)
from rayingest.execute.cluster.status import describe_wait
from rayingest.execute.cluster.timings import Timings
from rayingest.execute.stream import Stream
from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.events import WorkerFailure
from rayingest.plan.dispatch.stragglers import Stragglers
from rayingest.plan.figures.metrics import Span, no_span
from rayingest.plan.order.step_samples import StepSamples

Post = Callable[[str, Any, Any], None]
"""(kind, subject, future): the call on `subject`, a task or an actor, has a result."""

_RELEASE_SECONDS = 0.1
"""How often decoders receive messages that release blocks, if no task brings them earlier."""
_PATIENCE_SECONDS = 10.0
"""A decoder that does not respond counts as holding its released blocks for this long at most."""


@dataclass(eq=False)
class _Call:
    """A task of dispatch, as a call on an actor.

    Attributes:
        begun: when it was sent.
        position: epoch and step of its first row.
        message: what a decode's call says of blocks; None for a read.
        result: a decode's first, small result; None until it arrives, at `decoded_at`.
    """

    command: ev.Read | ev.Decode
    handle: ActorHandle
    refs: list[Any]
    begun: float
    position: tuple[int, int] | None = None
    message: BlockMessage | None = None
    result: Any = None
    decoded_at: float = 0.0


class Executor:
    """The calls, blocks and outputs of one stream."""

    def __init__(
        self,
        stream: Stream,
        work: StoredWork,
        pool: Pool,
        post: Post,
        decode_timeout: float = math.inf,
        span: Span = no_span,
    ) -> None:
        self._stream, self._pool, self._post, self._span = stream, pool, post, span
        self._decode_timeout = decode_timeout
        self._timed_out: set[ActorHandle] = set()  # killed because their task exceeded the time-out
        self._connection, self._key = pool.connection, uuid.uuid4().hex
        self.registration = Registration(stream, work, pool, self._key, self._post_result)
        self._node = ray.get_runtime_context().get_node_id()
        self._handles: dict[str, ActorHandle] = {}  # the actors that know the stream
        self._calls: dict[int, _Call] = {}
        self._results = Results()
        self._block_refs = BlockRefs()
        self._release_sent = 0.0
        self._stragglers = {ev.Read: Stragglers(), ev.Decode: Stragglers()}
        # Bytes that dispatch released, and when; the store may not have freed them yet.
        self._released: deque[tuple[float, int]] = deque()
        self._timings = Timings()
        self._workers_lost = 0

    # Results of calls, and changes of the pool, as events

    def on_registered(self, handle: ActorHandle, future: Any) -> list[ev.Event]:
        """An actor knows the stream now. Raises ConfigError if it could not load it."""
        error = future.exception()
        if error is None:
            self._handles[handle.name] = handle
            return [ev.WorkerJoined(handle.name, handle.role, handle.slots)]
        if not isinstance(error, ACTOR_ERRORS):
            raise registration_error(error)
        self._pool.report_failure(handle, error)
        return []

    def on_actor_lost(self, handle: ActorHandle, failure: WorkerFailure) -> list[ev.Event]:
        """An actor is gone; if its node is gone too, so are all blocks that were read there.

        Blocks of which only a copy was there are given up as well: Ray may look for such a block on
        the lost node, for 10 s (`pull_timeout_ms`) or until the node is declared dead.
        """
        events: list[ev.Event] = []
        copied = self._block_refs.sent_to(handle.name)
        with_node = failure is WorkerFailure.NODE_LOST
        self._workers_lost += failure is not WorkerFailure.REMOVED
        self.registration.remove(handle, with_node)
        if self._handles.pop(handle.name, None) is not None:
            for task in [task for task, call in self._calls.items() if call.handle is handle]:
                self._end(task, done=False)
            self._block_refs.remove_decoder(handle.name)
            if failure is WorkerFailure.CRASHED and handle in self._timed_out:
                failure = WorkerFailure.TIMED_OUT
            events.append(ev.WorkerLost(handle.name, failure))
            self._timed_out.discard(handle)
        if with_node and handle.node != self._node:
            new = self._results.read_on(handle.node)
            stored = self._block_refs.read_on(handle.node)
            events += self._lose_blocks((*stored, *copied, *new))
        return events

    def on_result(self, task: int, future: Any) -> list[ev.Event]:
        """The first, small result of a read or decode has arrived."""
        call = self._calls.get(task)
        if call is None:
            return []
        error = future.exception()
        if error is not None:
            return self._on_error(task, call, error)
        if call.message is not None:
            self._block_refs.settle(call.handle.name, call.message, arrived=True)
            call.result, call.decoded_at = future.result(), time.monotonic()
            self._span("decode", call.result.seconds, call.handle.name, call.position)
            self._post_result(call.refs[1], "output", task)
            return []
        result = future.result()
        self._end(task, done=result.error is None)
        self._timings.add_read(call.handle.node, result, time.monotonic() - call.begun)
        self._span("read", result.seconds, call.handle.name, call.position)
        if result.error is not None:
            return [ev.ReadFailed(task, result.error, final=True)]
        self._stream.on_blocks_read(call.command.blocks, result.notes)
        self.registration.advance()
        refs = call.refs[1 : 1 + len(result.nbytes)]
        blocks = (NewBlock(ref, call.handle.node) for ref in refs)
        self._results.blocks[task] = dict(zip(call.command.blocks, blocks, strict=False))
        return [ev.ReadDone(task, result.nbytes, result.left)]

    def on_output(self, task: int, future: Any) -> list[ev.Event]:
        """The arrays of a decode are on this node, and still on the decoder's node."""
        call = self._calls.get(task)
        if call is None:
            return []
        error = future.exception()
        if error is not None:
            return self._on_error(task, call, error)
        self._end(task)
        if outputs := dict(enumerate(future.result())):
            self._results.outputs[task] = outputs
        assert isinstance(call.command, ev.Decode)
        done = zip(call.command.parts, call.result.parts, strict=True)
        samples = sum(len(part.rows) for part, result in done if not result.left_out)
        transfer = time.monotonic() - call.decoded_at
        self._timings.add_decode(
            call.handle.node, call.result, samples, call.decoded_at - call.begun, transfer
        )
        self._span("transfer", transfer, call.handle.name, call.position)
        copies = self._copies(call.handle)
        parts = tuple(replace(part, nbytes=copies * part.nbytes) for part in call.result.parts)
        return [ev.DecodeDone(task, parts, call.result.seconds)]

    def on_released(self, subject: tuple[ActorHandle, BlockMessage], future: Any) -> list[ev.Event]:
        """A decoder has dropped the blocks of a release message, or did not get the message."""
        handle, message = subject
        error = future.exception()
        if self._handles.get(handle.name) is handle:
            self._block_refs.settle(handle.name, message, arrived=error is None)
            if isinstance(error, ACTOR_ERRORS):
                self._pool.report_failure(handle, error)
        return []

    def collect_freed(self) -> list[ev.Event]:
        """Return events for the bytes released long enough ago for the store to have freed them."""
        now = time.monotonic()
        self._send_releases(now)
        lingers = self._block_refs.lingers_since()
        kept_from = now if lingers is None else max(lingers, now - _PATIENCE_SECONDS)
        delay = max((handle.info.free_seconds for handle in self._handles.values()), default=0.0)
        events: list[ev.Event] = []
        while self._released and self._released[0][0] < min(kept_from, now - delay):
            events.append(ev.Freed(self._released.popleft()[1]))
        return events

    def find_overdue(self) -> list[ev.Event]:
        """Return an event for each straggler; kill decoders whose task exceeds the time-out."""
        now = time.monotonic()
        for task in self._stragglers[ev.Decode].begun_before(now - self._decode_timeout):
            self._timed_out.add(self._calls[task].handle)
            self._connection.kill(self._calls[task].handle.actor)
        self.registration.end_slow_learner(now - self._decode_timeout)
        return [
            ev.Overdue(task)
            for stragglers in self._stragglers.values()
            for task in stragglers.overdue(now)
        ]

    # Commands of dispatch

    def settle(self, discards: list[ev.Discard]) -> None:
        """Keep the new blocks that dispatch does not discard; call it before any other command."""
        for number, block in self._results.settle(discards):
            self._block_refs.add(number, block.ref, block.node)

    def read(self, command: ev.Read, samples_of: Callable[[int], StepSamples]) -> None:
        """Send a read to its reader."""
        handle = self._handles[command.worker]
        spans, returns = self._stream.spans(command.blocks), 1 + len(command.blocks)
        refs = self._connection.call(
            handle.actor.read, self._key, spans, command.budget, num_returns=returns
        )
        first = None if command.step is None else samples_of(command.step)
        self._begin(command, handle, refs, "read", first)

    def decode(self, command: ev.Decode, samples_of: Callable[[int], StepSamples]) -> None:
        """Send a decode to its decoder."""
        handle = self._handles[command.worker]
        chosen = [(samples_of(part.step), part.rows) for part in command.parts]
        parts = self._stream.task_rows(chosen, np.array(command.blocks))
        whole = tuple(len(rows) == len(samples.block) for samples, rows in chosen)
        message, sent = self._block_refs.message(handle.name, command.blocks)
        room = command.budget // self._copies(handle)
        arguments = (self._key, parts, whole, room, message, *sent)
        refs = self._connection.call(handle.actor.decode, *arguments, num_returns=2)
        self._begin(command, handle, refs, "decode", chosen[0][0], message)

    def drop(self, numbers: tuple[int, ...]) -> None:
        """Drop blocks; a block may be gone already, with its node."""
        self._block_refs.drop(numbers, time.monotonic())

    def take(self, output: ev.Output) -> Any:
        """Return the value of an output, and drop it here."""
        return self._results.take(output)

    def release(self, nbytes: int) -> None:
        """Note that dispatch released this many bytes; `collect_freed` reports them freed."""
        self._released.append((time.monotonic(), nbytes))

    @property
    def waits_for_store(self) -> bool:
        """Whether dispatch released bytes that the store may not have freed yet."""
        return bool(self._released)

    def forget_outputs(self) -> None:
        """Drop all outputs, because the consumer starts elsewhere."""
        self._results.outputs.clear()

    def clear(self) -> None:
        """Drop every reference, and have the workers forget the stream."""
        with contextlib.suppress(Exception):  # an actor may be gone, or all of Ray
            for handle in self._handles.values():
                self._connection.call(handle.actor.forget, self._key)
        for kept in (
            self._handles,
            self._calls,
            self._results.blocks,
            self._results.outputs,
            self._block_refs,
        ):
            kept.clear()

    # Figures

    def stats(self) -> dict[str, Any]:
        """Return the workers' figures, in total and by node, and the number of running tasks."""
        calls = list(self._calls.values())
        reads = sum(isinstance(call.command, ev.Read) for call in calls)
        return {
            **self._timings.stats(),
            "workers_lost": self._workers_lost,
            "reads_running": reads,
            "decodes_running": len(calls) - reads,
        }

    def describe_wait(self, lack: str) -> str:
        """Return in words what the stream waits for if the batch due lacks this. Thread-safe."""
        return describe_wait(
            lack, self._pool, self._stream, list(self._calls.values()), self.registration.learning
        )

    @property
    def only_transfers(self) -> bool:
        """Whether all running decodes have finished and only their outputs are still to come."""
        decodes = [call for call in self._calls.values() if call.message is not None]
        return bool(decodes) and all(call.result is not None for call in decodes)

    def _begin(
        self,
        command: ev.Read | ev.Decode,
        handle: ActorHandle,
        refs: list[Any],
        kind: str,
        first: StepSamples | None,
        message: BlockMessage | None = None,
    ) -> None:
        now = time.monotonic()
        position = None if first is None else (first.epoch, first.step)
        self._calls[command.task] = _Call(command, handle, refs, now, position, message)
        self._stragglers[type(command)].begin(command.task, now)
        self._post_result(refs[0], kind, command.task)

    def _end(self, task: int, done: bool = True) -> None:
        call = self._calls.pop(task)
        self._stragglers[type(call.command)].end(task, time.monotonic(), done)

    def _on_error(self, task: int, call: _Call, error: BaseException) -> list[ev.Event]:
        if isinstance(error, ACTOR_ERRORS):
            expected = isinstance(call.command, ev.Decode) and call.command.suspect
            # The pool then reports the actor as lost, which ends its tasks.
            self._pool.report_failure(call.handle, error, expected)
            return []
        self._end(task, done=False)
        cause = error.cause if isinstance(error, rx.RayTaskError) else error
        if isinstance(call.command, ev.Read):
            return [ev.ReadFailed(task, cause, final=False)]
        if call.message is not None:
            self._block_refs.settle(call.handle.name, call.message, arrived=False)
        lost = isinstance(
            cause, (rx.ObjectLostError, rx.OwnerDiedError, rx.ObjectReconstructionFailedError)
        )
        events = self._lose_blocks(call.command.blocks) if lost else []
        return [*events, ev.DecodeFailed(task, error)]

    def _lose_blocks(self, numbers: tuple[int, ...]) -> list[ev.Event]:
        stored = self._block_refs.drop(numbers, time.monotonic())
        lost = [*stored, *self._results.lose(numbers)]
        return [ev.BlocksLost(tuple(dict.fromkeys(lost)))] if lost else []

    def _copies(self, handle: ActorHandle) -> int:
        """Return in how many stores an output lies: the decoder's node's, and this node's."""
        return 1 if handle.node == self._node else 2

    def _send_releases(self, now: float) -> None:
        if now - self._release_sent < _RELEASE_SECONDS:
            return
        self._release_sent = now
        for name, message in self._block_refs.release_messages():
            handle = self._handles[name]
            ref = self._connection.call(handle.actor.release, self._key, message.released)
            self._post_result(ref, "released", (handle, message))

    def _post_result(self, ref: Any, kind: str, subject: Any) -> None:
        ref.future().add_done_callback(lambda future: self._post(kind, subject, future))
