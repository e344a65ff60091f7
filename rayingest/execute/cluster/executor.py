"""The executor: has dispatch's reads and decodes done by actors, and turns what they answer into events.

Owns every object reference of its stream. For one thread, the feeder's; answers reach it through `tell`, which Ray
calls on a thread of its own. Decides nothing.
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

from rayingest.execute.cluster.connection import DEATHS
from rayingest.execute.cluster.decoder import BlockNote
from rayingest.execute.cluster.object_refs import Answers, Arrived, Holdings, Parcel
from rayingest.execute.cluster.pool import Member, Pool
from rayingest.execute.cluster.registration import Registration, refusal
from rayingest.execute.cluster.status import waiting_for
from rayingest.execute.cluster.timings import Timings
from rayingest.execute.stream import Stream
from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.failures import WorkerFailure
from rayingest.plan.dispatch.stragglers import Stragglers
from rayingest.plan.figures.metrics import Span, no_span
from rayingest.plan.order.step_samples import StepSamples

Tell = Callable[[str, Any, Any], None]
"""(kind, subject, future): a call on `subject` (a task or a member) was answered."""

_LETTER_SECONDS = 0.1
"""How often decoders are told what to let go of, where no task tells them earlier."""
_PATIENCE_SECONDS = 10.0
"""So long a decoder that does not answer is taken to keep what it was told to let go of."""


@dataclass(eq=False)
class _Call:
    """A task of dispatch's as Ray has it.

    `begun` is when it was asked for. `parcel` and `meta`, the first, small answer, are a decode's; `answered` is when
    that came; `position` the first step's epoch and number.
    """

    command: ev.Read | ev.Decode
    member: Member
    refs: list[Any]
    begun: float
    parcel: Parcel | None = None
    meta: Any = None
    answered: float = 0.0
    position: tuple[int, int] | None = None


class Executor:
    """The calls, blocks and outputs of one stream."""

    def __init__(
        self,
        stream: Stream,
        pool: Pool,
        tell: Tell,
        decode_timeout: float = math.inf,
        span: Span = no_span,
    ) -> None:
        self._stream, self._pool, self._tell, self._span = stream, pool, tell, span
        self._decode_timeout = decode_timeout
        self._too_late: set[Member] = set()  # ended because of what they were at
        self._connection, self._key = pool.connection, uuid.uuid4().hex
        self.briefing = Registration(stream, pool, self._key, self._when_done)
        self._node = ray.get_runtime_context().get_node_id()
        self._members: dict[str, Member] = {}
        self._calls: dict[int, _Call] = {}
        self._answers = Answers()
        self._holdings = Holdings()
        self._letters_sent = 0.0
        self._late = {ev.Read: Stragglers(), ev.Decode: Stragglers()}
        self._given_up: deque[tuple[float, int]] = deque()
        self._timings = Timings()
        self._workers_lost = 0

    # What happened

    def registered(self, member: Member, future: Any) -> list[ev.Event]:
        """A member took the stream up, or could not. Raises ConfigError where it cannot."""
        error = future.exception()
        if error is None:
            self._members[member.name] = member
            return [ev.WorkerJoined(member.name, member.role, member.slots)]
        if not isinstance(error, DEATHS):
            raise refusal(error)
        self._pool.report_dead(member, error)
        return []

    def lost(self, member: Member, loss: WorkerFailure) -> list[ev.Event]:
        """A member is gone, and with its node all blocks that were read there.

        Those that only had a copy there are given up too: whoever asks for one of them may be made to wait for the lost
        node, for 10 s (Ray's `pull_timeout_ms`) or until it is declared dead.
        """
        events: list[ev.Event] = []
        copied = self._holdings.given_to(member.name)
        self._workers_lost += loss is not WorkerFailure.DISMISSED
        self.briefing.lost(member, loss is WorkerFailure.WITH_NODE)
        if self._members.pop(member.name, None) is not None:
            for task in [task for task, call in self._calls.items() if call.member is member]:
                self._end(task, done=False)
            self._holdings.lose(member.name)
            too_late = loss is WorkerFailure.BY_ITSELF and member in self._too_late
            events.append(ev.WorkerLost(member.name, WorkerFailure.TOO_LATE if too_late else loss))
            self._too_late.discard(member)
        if loss is WorkerFailure.WITH_NODE and member.node != self._node:
            late = self._answers.read_on(member.node)
            events += self._lose_blocks((*self._holdings.read_on(member.node), *copied, *late))
        return events

    def answered(self, task: int, future: Any) -> list[ev.Event]:
        """The small first answer of a call."""
        call = self._calls.get(task)
        if call is None:
            return []
        error = future.exception()
        if error is not None:
            return self._failed(task, call, error)
        if call.parcel is not None:
            self._holdings.settle(call.parcel, arrived=True)
            call.meta, call.answered = future.result(), time.monotonic()
            self._span("decode", call.meta.seconds, call.member.name, call.position)
            self._when_done(call.refs[1], "output", task)
            return []
        fetched = future.result()
        self._end(task, done=fetched.error is None)
        self._timings.see_read(call.member.node, fetched, time.monotonic() - call.begun)
        self._span("read", fetched.seconds, call.member.name, call.position)
        if fetched.error is not None:
            return [ev.ReadFailed(task, fetched.error, final=True)]
        self._stream.noted(call.command.blocks, fetched.notes)
        self.briefing.go_on()
        blocks = (Arrived(ref, call.member.node) for ref in call.refs[1 : 1 + len(fetched.nbytes)])
        self._answers.blocks[task] = dict(zip(call.command.blocks, blocks, strict=False))
        return [ev.ReadDone(task, fetched.nbytes, fetched.left)]

    def decoded(self, task: int, future: Any) -> list[ev.Event]:
        """The arrays of a decode are on this node; where they came from another, they are in both stores."""
        call = self._calls.get(task)
        if call is None:
            return []
        error = future.exception()
        if error is not None:
            return self._failed(task, call, error)
        self._end(task)
        if outputs := dict(enumerate(future.result())):
            self._answers.outputs[task] = outputs
        assert isinstance(call.command, ev.Decode)
        made = zip(call.command.parts, call.meta.parts, strict=True)
        samples = sum(len(part.rows) for part, done in made if not done.left)
        transfer = time.monotonic() - call.answered
        self._timings.see_decode(
            call.member.node, call.meta, samples, call.answered - call.begun, transfer
        )
        self._span("transfer", transfer, call.member.name, call.position)
        copies = self._copies(call.member)
        parts = tuple(replace(part, nbytes=copies * part.nbytes) for part in call.meta.parts)
        return [ev.DecodeDone(task, parts, call.meta.seconds)]

    def _copies(self, member: Member) -> int:
        """Stores in which what it decodes comes to lie: its own node's, and this one's where that is another."""
        return 1 if member.node == self._node else 2

    def freed(self) -> list[ev.Event]:
        """What was given up long enough ago for the store to have it back."""
        now = time.monotonic()
        self._send_letters(now)
        lingers = self._holdings.lingers_since()
        kept_from = now if lingers is None else max(lingers, now - _PATIENCE_SECONDS)
        last = max((member.site.free_seconds for member in self._members.values()), default=0.0)
        events: list[ev.Event] = []
        while self._given_up and self._given_up[0][0] < min(kept_from, now - last):
            events.append(ev.Freed(self._given_up.popleft()[1]))
        return events

    def log_if_slow(self, parcel: Parcel, future: Any) -> list[ev.Event]:
        """A decoder let go of blocks, or did not hear of it."""
        member, error = self._members.get(parcel.holder), future.exception()
        if member is not None:
            self._holdings.settle(parcel, arrived=error is None)
            if isinstance(error, DEATHS):
                self._pool.report_dead(member, error)
        return []

    def overdue(self) -> list[ev.Event]:
        """Tasks that take much longer than their like; decoders that are at one for too long are ended."""
        now = time.monotonic()
        for task in self._late[ev.Decode].begun_before(now - self._decode_timeout):
            self._too_late.add(self._calls[task].member)
            self._connection.kill(self._calls[task].member.actor)
        self.briefing.end_learner(now - self._decode_timeout)
        return [ev.Overdue(task) for late in self._late.values() for task in late.overdue(now)]

    def _failed(self, task: int, call: _Call, error: BaseException) -> list[ev.Event]:
        if isinstance(error, DEATHS):
            expected = isinstance(call.command, ev.Decode) and call.command.suspect
            self._pool.report_dead(
                call.member, error, expected
            )  # which tells us in turn that it is lost
            return []
        self._end(task, done=False)
        cause = error.cause if isinstance(error, rx.RayTaskError) else error
        if isinstance(call.command, ev.Read):
            return [ev.ReadFailed(task, cause, final=False)]
        if call.parcel is not None:
            self._holdings.settle(call.parcel, arrived=False)
        lost = isinstance(
            cause, (rx.ObjectLostError, rx.OwnerDiedError, rx.ObjectReconstructionFailedError)
        )
        events = self._lose_blocks(call.command.blocks) if lost else []
        return [*events, ev.DecodeFailed(task, error)]

    def _lose_blocks(self, numbers: tuple[int, ...]) -> list[ev.Event]:
        gone = [*self._holdings.drop(numbers, time.monotonic()), *self._answers.lose(numbers)]
        return [ev.BlocksLost(tuple(dict.fromkeys(gone)))] if gone else []

    def _end(self, task: int, done: bool = True) -> None:
        call = self._calls.pop(task)
        self._late[type(call.command)].end(task, time.monotonic(), done)

    def _when_done(self, ref: Any, kind: str, subject: Any) -> None:
        ref.future().add_done_callback(lambda future: self._tell(kind, subject, future))

    # What to do

    def settle(self, discards: list[ev.Discard]) -> None:
        """Keep what arrived but for what dispatch discards, before its other commands are carried out."""
        for number, block in self._answers.settle(discards):
            self._holdings.add(number, block.ref, block.node)

    def read(self, command: ev.Read, samples_of: Callable[[int], StepSamples]) -> None:
        """Have blocks read."""
        member = self._members[command.worker]
        spans, returns = self._stream.spans(command.blocks), 1 + len(command.blocks)
        refs = self._connection.call(
            member.actor.read, self._key, spans, command.nbytes, num_returns=returns
        )
        self._begin(command, member, refs, "read")
        if command.step is not None:
            first = samples_of(command.step)
            self._calls[command.task].position = first.epoch, first.step

    def decode(self, command: ev.Decode, samples_of: Callable[[int], StepSamples]) -> None:
        """Have parts decoded."""
        member = self._members[command.worker]
        chosen = [(samples_of(part.step), part.rows) for part in command.parts]
        parts = self._stream.parts(chosen, np.array(command.blocks))
        whole = tuple(len(rows) == len(samples.block) for samples, rows in chosen)
        parcel = self._holdings.pack(member.name, command.blocks)
        note = BlockNote(parcel.serials, parcel.coming, parcel.leaving)
        given = (
            self._key,
            parts,
            whole,
            command.nbytes // self._copies(member),
            note,
            *parcel.refs,
        )
        refs = self._connection.call(member.actor.decode, *given, num_returns=2)
        self._begin(command, member, refs, "decode", parcel)
        first, _ = chosen[0]
        self._calls[command.task].position = first.epoch, first.step

    def drop(self, numbers: tuple[int, ...]) -> None:
        """Give up blocks, if they did not go with their node before dispatch heard of it."""
        self._holdings.drop(numbers, time.monotonic())

    def take(self, output: ev.Output) -> Any:
        """What a decode made for an output, which is then given up here."""
        return self._answers.take(output)

    def give_up(self, nbytes: int) -> None:
        """So many bytes were given up just now."""
        self._given_up.append((time.monotonic(), nbytes))

    @property
    def waits_for_store(self) -> bool:
        """Whether there is something given up that the store may not have back yet."""
        return bool(self._given_up)

    def forget_outputs(self) -> None:
        """All outputs so far are of no use any more."""
        self._answers.outputs.clear()

    def clear(self) -> None:
        """Give up every reference, and have the workers forget the stream."""
        with contextlib.suppress(Exception):  # whoever does not hear it is going, or all of Ray is
            for member in self._members.values():
                self._connection.call(member.actor.forget, self._key)
        for kept in (
            self._members,
            self._calls,
            self._answers.blocks,
            self._answers.outputs,
            self._holdings,
        ):
            kept.clear()

    def stats(self) -> dict[str, Any]:
        """What the workers said that it took, all together and by node; tasks under way."""
        calls = list(self._calls.values())
        reads = sum(isinstance(call.command, ev.Read) for call in calls)
        lost = {"workers_lost": self._workers_lost}
        return {
            **self._timings.stats(),
            **lost,
            "reads_under_way": reads,
            "decodes_under_way": len(calls) - reads,
        }

    def waiting_for(self, lack: str) -> str:
        """In words, what is being waited for, where the batch due lacks this. Callable from any thread."""
        return waiting_for(
            lack, self._pool, self._stream, list(self._calls.values()), self.briefing.learning
        )

    @property
    def only_fetches(self) -> bool:
        """Whether all that is still lacking from the decodes under way is that it be brought here."""
        decodes = [call for call in self._calls.values() if call.parcel is not None]
        return bool(decodes) and all(call.meta is not None for call in decodes)

    def _send_letters(self, now: float) -> None:
        if now - self._letters_sent < _LETTER_SECONDS:
            return
        self._letters_sent = now
        for parcel in self._holdings.letters():
            ref = self._connection.call(
                self._members[parcel.holder].actor.let_go, self._key, parcel.leaving
            )
            self._when_done(ref, "told", parcel)

    def _begin(
        self,
        command: ev.Read | ev.Decode,
        member: Member,
        refs: list[Any],
        kind: str,
        parcel: Parcel | None = None,
    ) -> None:
        now = time.monotonic()
        self._calls[command.task] = _Call(command, member, refs, now, parcel)
        self._late[type(command)].begin(command.task, now)
        self._when_done(refs[0], kind, command.task)
