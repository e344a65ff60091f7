"""Take events into the state: what each fact changes.

Owns how chunks and blocks move on when tasks end, fail or are lost, and which sample is to blame.
Where several tasks make the same thing, the first that answers wins and the others' results are
discarded. Refuses to begin anything: it orders no read and no decode.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

import numpy as np

from rayingest.errors import DeadlySampleError
from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.block_cache import BlockState
from rayingest.plan.dispatch.chunks import (
    CRASHES_TO_BLAME,
    CRASHES_TO_SPLIT,
    Chunk,
    ChunkState,
)
from rayingest.plan.dispatch.state import State
from rayingest.plan.dispatch.step_queue import StepQueue
from rayingest.plan.dispatch.workers import Task


class EventHandlers:
    """Change one stream's state by events."""

    def __init__(self, state: State) -> None:
        self._state = state

    def handle(self, event: ev.Event) -> None:
        """Take in an event. Raises IllegalEventError, before any change, if it cannot happen."""
        self._check(event)
        state = self._state
        match event:
            case ev.Start():
                self._start(event)
            case ev.BatchTaken():
                state.untaken -= 1
            case ev.LimitRaised(max_bytes):
                state.ledger.max_bytes = max_bytes
            case ev.WorkerJoined(name, role, slots):
                state.workers.join(name, role, slots)
            case ev.WorkerLost():
                self._lose_worker(event)
            case ev.Freed(nbytes):
                state.ledger.free(nbytes)
            case ev.BlocksLost(numbers):
                self._lose_blocks(numbers)
            case ev.ReadDone() | ev.ReadFailed() | ev.DecodeDone() | ev.DecodeFailed():
                task = state.workers.end(event.task)
                if task is not None:  # else its worker was lost before it answered
                    self._end_task(task, event)

    def _check(self, event: ev.Event) -> None:
        """Raise IllegalEventError if the event contradicts the state."""
        state = self._state
        reason = None
        match event:
            case ev.BatchTaken() if not state.untaken:
                reason = "no delivered batch is left to take"
            case ev.WorkerJoined(name, _, slots) if name in state.workers.workers or slots < 1:
                reason = "the worker's name must be new, and it needs a slot"
            case ev.LimitRaised(max_bytes) if max_bytes < state.ledger.max_bytes:
                reason = f"max_bytes is {state.ledger.max_bytes}, and cannot shrink"
            case ev.Freed(nbytes) if not 0 <= nbytes <= state.ledger.released:
                reason = f"{state.ledger.released} released bytes are not free yet"
            case ev.ReadDone() | ev.ReadFailed() | ev.DecodeDone() | ev.DecodeFailed():
                task = state.workers.tasks.get(event.task)
                reason = None if task is None else _contradiction(task, event)
            case _:
                pass
        if reason is not None:
            raise ev.IllegalEventError(f"dispatch cannot take {event}: {reason}")

    def _start(self, event: ev.Start) -> None:
        """Begin new steps; blocks in the store stay until the new steps had time to need them."""
        state = self._state
        state.cache.restart(state.limits.read_ahead)
        state.queue.abandon()
        for task in state.workers.tasks.values():
            task.stale = True
        for nbytes in state.ledger.clear_outputs():
            state.release(nbytes)
        state.queue = StepQueue(event.steps, state.pace, state.limits.whole_steps)
        state.untaken = 0
        state.find_replacement = event.find_replacement

    def _lose_worker(self, event: ev.WorkerLost) -> None:
        """Fail all tasks of a lost worker."""
        failure = event.failure
        error = ConnectionError(f"worker {event.worker} failed: {failure.value}")
        for task in self._state.workers.lose(event.worker):
            if task.chunks:
                self._fail_decode(task, error, failure)
            else:
                self._fail_read(task, error, final=False, counts=failure.counts_as_try)

    def _lose_blocks(self, numbers: Iterable[int]) -> None:
        """Make blocks absent that were in the store.

        Decodes that use one may never answer, so their chunks wait again.
        """
        state = self._state
        lost = set()
        for number in numbers:
            block = state.cache.blocks.get(number)
            if block is not None and block.state is BlockState.RESIDENT:
                state.cache.remove(block)
                lost.add(number)
        state.counters["blocks_lost"] += len(lost)
        for task in state.workers.tasks.values():
            for chunk in task.chunks:
                if chunk.state is not ChunkState.DECODING or chunk.obsolete:
                    continue
                if not lost.isdisjoint(chunk.blocks):
                    state.wait(chunk)

    def _end_task(self, task: Task, event: ev.Event) -> None:
        match event:
            case ev.ReadDone(_, nbytes, left_out):
                self._end_read(task, nbytes, left_out)
            case ev.ReadFailed(_, error, final):
                self._fail_read(task, error, final)
            case ev.DecodeDone(_, parts, seconds):
                self._end_decode(task, parts, seconds)
            case ev.DecodeFailed(_, error):
                self._fail_decode(task, error)

    # Reads

    def _end_read(self, task: Task, nbytes: tuple[int, ...], left_out: tuple[int, ...]) -> None:
        """Take in the blocks that a read brought, and the sizes of some that it left out."""
        state = self._state
        late = []
        sizes = zip_longest(task.blocks, task.charges, (*nbytes, *left_out), fillvalue=0)
        for place, (number, charge, size) in enumerate(sizes):
            block = state.cache.end_read(number, charge)
            if place >= len(nbytes):
                if block is not None:
                    state.cache.leave_out(block, size)
                continue
            state.counters["blocks_read"] += 1
            if block is None:  # another read was first, or nothing needs it any more
                late.append(number)
                state.release(size)
                continue
            for chunk in state.cache.arrive(block, size):
                state.queue.offer(chunk)
        state.discard(task.number, late)
        state.drop_useless(task.blocks)

    def _fail_read(
        self, task: Task, error: BaseException, final: bool, counts: bool = True
    ) -> None:
        """Have the blocks of a failed read that no other read brings read again, one by one.

        So only a block that is at fault is given up: a final error of a read of one block breaks
        that block. Where blocks are read in order, it breaks all of the read's. The consumer may
        start again after an error because its cause is gone, so an earlier start's read, whose
        cause may be gone too, gives nothing up, and what follows is a first try.
        """
        state = self._state
        final, counts = final and not task.stale, counts and not task.stale
        blocks = zip(task.blocks, task.charges, strict=True)
        ended = [state.cache.end_read(number, charge) for number, charge in blocks]
        awaited = [block for block in ended if block is not None]
        if final and (len(task.blocks) == 1 or state.limits.in_order):
            # All blocks are broken before any chunk waits again: a chunk may need several.
            freed = [chunk for block in awaited for chunk in state.cache.break_off(block, error)]
            for chunk in freed:
                state.wait(chunk)
        else:
            for block in awaited:
                block.tries += counts
                if not block.readers:
                    state.cache.remove(block)
                state.counters["retries"] += not task.stale
                self._check_tries(block.tries, (block.number,), error)
        state.drop_useless(task.blocks)

    # Decodes

    def _end_decode(self, task: Task, parts: tuple[ev.PartDone, ...], seconds: float) -> None:
        """Take in the outputs of a decode, part by part."""
        state = self._state
        useless = []
        rows = 0.0
        for index, (chunk, charge, part) in enumerate(
            zip(task.chunks, task.charges, parts, strict=True)
        ):
            state.end_attempt(chunk, charge)
            good = chunk.row_cost * (len(chunk.rows) - len(part.bad))
            if part.nbytes or not part.left_out:
                rows += chunk.cost
                if good and part.error is None:
                    state.pace.observe_output(good, part.nbytes)
            owner = self._end_part(chunk, part)
            if owner is None or owner.error is not None:
                useless.append(index)
            else:
                owner.task, owner.index, owner.output_bytes = task.number, index, part.nbytes
        sizes = [0 if part.left_out else part.nbytes for part in parts]
        state.release(state.ledger.add_outputs(task.number, sizes, len(useless)))
        state.discard(task.number, [index for index in useless if not parts[index].left_out])
        state.drop_useless(number for chunk in task.chunks for number in chunk.blocks)
        state.pace.observe_task(rows, seconds)

    def _end_part(self, chunk: Chunk, part: ev.PartDone) -> Chunk | None:
        """Take in one part's result; returns the chunk that is done by it, None where none is."""
        state = self._state
        if part.left_out:
            chunk.measured_bytes = part.nbytes
            if chunk.orphaned:
                state.wait(chunk)
            return None
        if chunk.obsolete or chunk.state is ChunkState.DONE:
            return None  # another decode was first, or nothing needs it any more
        if chunk.state is ChunkState.WAITING:  # a block was lost, yet the decode had it
            state.cache.stop_waiting(chunk)
        owner = state.replace_rows(chunk, dict(part.bad)) if part.bad else chunk
        if owner is not None:
            owner.finish(part.error)
        return owner

    def _fail_decode(
        self, task: Task, error: BaseException, failure: ev.WorkerFailure | None = None
    ) -> None:
        """Have the chunks of a failed decode that no other decodes decoded again.

        Where the decode may have ended its worker, narrow down which row did.
        """
        state = self._state
        blames = failure is not None and failure.blames_task
        counts = failure is None or failure.counts_as_try
        for chunk, charge in zip(task.chunks, task.charges, strict=True):
            state.end_attempt(chunk, charge)
            chunk.crashes += blames
            chunk.timed_out |= failure is ev.WorkerFailure.TIMED_OUT
            if not chunk.orphaned:
                continue
            state.counters["retries"] += 1
            state.wait(chunk)  # none of its blocks is broken: it was being decoded
            chunk.tries += counts and not blames
            if blames:
                self._narrow_down(chunk)
            row = chunk.key if len(chunk.rows) == 1 else None
            self._check_tries(chunk.tries, chunk.blocks, error, row)
        state.drop_useless(number for chunk in task.chunks for number in chunk.blocks)

    def _narrow_down(self, chunk: Chunk) -> None:
        """Split a waiting chunk that keeps ending its workers in halves; blame a single row."""
        state = self._state
        if len(chunk.rows) > 1 and chunk.crashes >= CRASHES_TO_SPLIT:
            first = np.arange(len(chunk.rows)) < len(chunk.rows) // 2
            halves = [chunk.select(half, chunk.crashes - 1) for half in (first, ~first)]
            state.split(chunk, halves)
        elif chunk.crashes >= (CRASHES_TO_SPLIT if chunk.timed_out else CRASHES_TO_BLAME):
            state.cache.stop_waiting(chunk)
            deed = "took longer than decode_timeout" if chunk.timed_out else "ended its worker"
            error = DeadlySampleError(
                f"decoding this sample {deed} {chunk.crashes} times", transient=chunk.timed_out
            )
            if state.is_replaceable(error):
                state.replace_rows(chunk, {0: error})
            else:
                chunk.finish(error)

    def _check_tries(
        self,
        tries: int,
        blocks: tuple[int, ...],
        error: BaseException,
        row: tuple[int, int] | None = None,
    ) -> None:
        """End the stream if something failed as often as it may."""
        if tries >= self._state.limits.max_tries:
            self._state.fail(ev.Fail(f"failed after {tries} attempts", blocks, error, row))


def _contradiction(
    task: Task, event: ev.ReadDone | ev.ReadFailed | ev.DecodeDone | ev.DecodeFailed
) -> str | None:
    """Return why an event cannot end this task, None where it can."""
    if isinstance(event, ev.ReadDone | ev.ReadFailed) != bool(task.blocks):
        return f"task {task.number} is a {'read' if task.blocks else 'decode'}"
    if isinstance(event, ev.ReadDone):
        count = len(event.nbytes) + len(event.left_out)
        if count > len(task.blocks):
            return f"the read has {len(task.blocks)} block(s), not {count}"
    if isinstance(event, ev.DecodeDone):
        if len(event.parts) != len(task.chunks):
            return f"the decode has {len(task.chunks)} part(s), not {len(event.parts)}"
        for chunk, part in zip(task.chunks, event.parts, strict=True):
            places = [place for place, _ in part.bad]
            if places != sorted(set(places) & set(range(len(chunk.rows)))):
                return f"places of bad rows must ascend in [0, {len(chunk.rows)}), not {places}"
    return None
