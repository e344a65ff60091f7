"""Decide what to read, decode, evict, retry and deliver: a state machine, events in, commands out.

No Ray, no clock, no sleep and no randomness: the same events give the same commands. Dispatch works
out of order and delivers in order. README.md has the theory of operation, with the four rules that
comments name. Owns when something is begun or delivered; `handlers` take in what happened,
`eviction` makes room.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.block_cache import Block, BlockState, Sizes
from rayingest.plan.dispatch.chunks import NEVER, Chunk, ChunkState
from rayingest.plan.dispatch.event_handlers import EventHandlers
from rayingest.plan.dispatch.eviction import Eviction
from rayingest.plan.dispatch.limits import Limits
from rayingest.plan.dispatch.state import State
from rayingest.plan.dispatch.workers import Task, Worker

_STEPS_AT_ONCE = 32
"""Steps taken up in one call at most, so that no event waits long for an answer."""
_DECODING_SHARE = 4
"""Size decode tasks so that all running ones use at most 1/4 of `max_bytes`.

The rest is for blocks.
"""
_LEAD_PART = 8
"""Of a long pass that the loop may never begin, 1/8 is decoded."""


class Dispatch:
    """Decide for one stream.

    `sizes` has every block's size in bytes as the index expects it, `row_bytes` is the expected
    size of a decoded row; both are corrected by what arrives.
    """

    def __init__(self, sizes: Sizes, limits: Limits, row_bytes: float = 1.0) -> None:
        self.limits = limits
        self.state = State(sizes, limits, row_bytes)
        self._handlers = EventHandlers(self.state)
        self._eviction = Eviction(self.state)
        # For short: these parts of `state` are never exchanged. (A start exchanges the queue.)
        self._cache, self._ledger = self.state.cache, self.state.ledger
        self._workers, self._pace = self.state.workers, self.state.pace

    def handle(self, *events: ev.Event) -> list[ev.Command]:
        """Take in events, in order; returns what to do, in order.

        Raises IllegalEventError for an event that cannot happen. The state is then as before that
        event, and the next call returns the commands that the events before it caused.
        """
        for event in events:
            if isinstance(event, ev.Overdue):
                self._hedge(event.task)
            else:
                self._handlers.handle(event)
        if not self.state.failed:
            self._take_up_steps()
            while self._deliver():
                self._take_up_steps()
            if not self._pace.measured:
                self._read()  # before the first decode, which then gets all room that is left
            self._decode()
            self._read()
            self._unblock()
        return self.state.take_commands()

    def stall_cause(self) -> str:
        """Return the cause, a key of `metrics.STALLS`, for which the step due is not done.

        "" where it is done, or where no step is left.
        """
        state, workers = self.state, self._workers
        undone = [c for c in state.queue.due_chunks() if c.state is not ChunkState.DONE]
        if not undone:
            return ""
        if not workers.slots("reader"):
            return "workers"
        if any(chunk.state is ChunkState.WAITING and chunk.missing for chunk in undone):
            idle = self._next_reader() is not None and self._cache.next_wanted() is not None
            return "room" if idle else "read"
        if not workers.slots("decoder"):
            return "workers"
        ready = state.queue.next_ready()
        near = ready is not None and ready.step <= self._begin_until() and self._pace.measured
        return "room" if near and workers.free("decoder") is not None else "decode"

    @property
    def charged_bytes(self) -> int:
        """Bytes charged against `max_bytes`: in the store, or on their way there or back."""
        return self._ledger.total

    def stats(self) -> dict[str, int]:
        """Return counters and gauges by their names in `plan.figures.metrics`.

        May be called by any thread while another one calls `handle`.
        """
        return {
            **self.state.counters,
            "blocks_reread": self._cache.rereads,
            "bytes_in_flight": self._ledger.total,
            "released_bytes": self._ledger.released,
        }

    def validate(self) -> None:
        """Assert every invariant of the state. For tests and simulations, after any event."""
        self.state.validate()

    # Steps

    def _take_up_steps(self) -> None:
        """Take up steps whose blocks may be read: a limited number at once, none too early."""
        queue = self.state.queue
        most = min(queue.horizon + _STEPS_AT_ONCE, queue.due + self.limits.read_ahead)
        needed = queue.due + self._decode_ahead()
        while not queue.exhausted and queue.horizon < most:
            if queue.horizon > needed and self._cache.next_wanted() is not None:
                break  # blocks of the steps so far are still to be read: later steps can wait
            for chunk, expires in queue.take_up():
                self.state.wait(chunk, expires)
        if expired := self._cache.expired(queue.horizon):
            self.state.drop_useless(expired)

    def _deliver(self) -> bool:
        """Deliver done steps that may lie ready; returns whether there were any."""
        queue = self.state.queue
        due = queue.due
        while self._may_deliver() and (chunks := queue.deliver()) is not None:
            self._deliver_step(chunks)
        return queue.due > due

    def _may_deliver(self) -> bool:
        """Return whether one more batch may lie ready for the consumer."""
        limits, untaken = self.limits, self.state.untaken
        if untaken < limits.ready_batches or not self._pace.measured:
            return untaken < limits.ready_batches
        batch_bytes = self._pace.expected_bytes(self.state.queue.max_step_cost)
        fits = (untaken + 1) * batch_bytes <= limits.ready_bytes
        return untaken < limits.max_ready_batches and fits

    def _deliver_step(self, chunks: list[Chunk]) -> None:
        self.state.untaken += 1
        outputs = tuple(
            ev.Output(chunk.task, chunk.index, chunk.rows)
            for chunk in chunks
            if chunk.error is None
        )
        for chunk in chunks:
            if chunk.task >= 0:
                self.state.release_output(chunk)
        broken = min((chunk for chunk in chunks if chunk.error is not None), default=None)
        if broken is None:
            self.state.order(ev.Deliver(chunks[0].step, outputs))
        else:
            row = int(broken.rows[0])
            self.state.order(ev.Deliver(chunks[0].step, outputs, broken.error, row))

    # Decodes

    def _decode(self) -> None:
        """Begin decodes of ready chunks, the earliest first, while a decoder is free."""
        while (worker := self._workers.free("decoder")) is not None:
            if self._is_measuring():
                return
            attempts = self._next_attempts(worker)
            if not attempts:
                return
            self._begin_decode(worker, attempts)

    def _is_measuring(self) -> bool:
        """Return whether the first decode runs, which shows what a row takes.

        It may need all room there is, so nothing else is begun meanwhile.
        """
        if self._pace.measured:
            return False
        chunks = (chunk for task in self._workers.tasks.values() for chunk in task.chunks)
        return any(c.state is ChunkState.DECODING and not c.obsolete for c in chunks)

    def _next_attempts(self, worker: Worker) -> list[tuple[Chunk, int]]:
        """Begin attempts at ready chunks for a worker's next task; returns them with their charges.

        A suspect is the only chunk of its task, and waits for a worker that runs nothing else.
        """
        queue = self.state.queue
        attempts: list[tuple[Chunk, int]] = []
        rows, most = 0.0, self._max_task_rows()
        while (chunk := queue.next_ready()) is not None:
            if chunk.step > (self._decode_until() if attempts else self._begin_until()):
                break
            if not self._eviction.fits_output(chunk):
                if attempts or not self._split_by_block(chunk):
                    break
                continue
            if attempts and (rows + chunk.cost > most or chunk.alone or chunk.suspect):
                break
            if chunk.suspect and worker.busy:
                break
            attempts.append((chunk, self._begin_attempt(chunk)))
            rows += chunk.cost
            self._cache.stop_waiting(chunk)
            chunk.state = ChunkState.DECODING
            if chunk.suspect or chunk.alone:
                break
        return attempts

    def _begin_attempt(self, chunk: Chunk) -> int:
        return self.state.begin_attempt(chunk, self._eviction.expected_bytes(chunk))

    def _begin_decode(self, worker: Worker, attempts: list[tuple[Chunk, int]]) -> None:
        """Order a decode of chunks whose attempts have begun."""
        chunks, charges = zip(*attempts, strict=True)
        suspect = chunks[0].suspect
        slots = worker.slots if suspect else 1
        task = self._workers.begin(worker, charges, chunks=chunks, slots=slots)
        self.state.counters["decodes"] += 1
        blocks = tuple(sorted({number for chunk in chunks for number in chunk.blocks}))
        parts = tuple(ev.Part(chunk.step, chunk.rows) for chunk in chunks)
        budget = self._budget(charges, self._pace.measured)
        self.state.order(ev.Decode(task.number, worker.name, parts, blocks, budget, suspect))

    def _budget(self, charges: Sequence[int], measured: bool) -> int:
        """Return how many bytes a task may bring: what it is charged with.

        Until sizes are `measured` also all that is free: the charge is a guess, and nothing else is
        begun meanwhile.
        """
        return sum(charges) + (0 if measured else max(0, -self._ledger.exceeds_by(0)))

    def _decode_until(self) -> int:
        """Return the last step that may be decoded now.

        A loop may end with any pass. Until it begins the next pass, only the steps that let this
        pass start at once are decoded: those that limits say (`ready_batches`, `decode_ahead`), or
        1/8 of the pass where that is more, and never more than half of it.
        """
        state, limits = self.state, self.limits
        due = state.queue.due
        until = due + self._decode_ahead()
        following = state.queue.next_pass(due - state.untaken - limits.copied_ahead)
        if following is None:
            return until
        few = limits.copied_ahead + limits.ready_batches + limits.decode_ahead
        lead = min(max(few, len(following) // _LEAD_PART), -(-len(following) // 2))
        # The consumer may wait for the step due, if it has taken all batches before.
        waits = due if not state.untaken else 0
        return max(waits, min(until, following.start + lead - 1))

    def _decode_ahead(self) -> int:
        """Return how many steps behind the one due may be decoded: enough for all decoders."""
        step = max(1, self.state.queue.max_step_cost)
        busy = (self._workers.slots("decoder") + 1) * self._max_task_rows() // step
        return max(self.limits.decode_ahead, busy)

    def _begin_until(self) -> int:
        """Return the last step that a decode task may begin with.

        Behind it are too few steps for a whole task. They wait until there are more: a decoder that
        took each as it comes would spend a task's overhead on every one.
        """
        queue = self.state.queue
        ahead = min(self._decode_ahead(), self.limits.read_ahead - 1)
        share = ahead // (self._workers.slots("decoder") + 1)
        task_steps = self._max_task_rows() // max(1, queue.max_step_cost)
        return min(queue.due + ahead - min(share, task_steps), self._decode_until())

    def _max_task_rows(self) -> int:
        """Return the rows that a decode task has at most.

        That is a task of the wanted duration; one of more rows than a step only as far as the
        decoders' share of `max_bytes` holds as much for each of their slots, and one more.
        """
        tasks = self._workers.slots("decoder") + 1
        room = self._ledger.max_bytes // (_DECODING_SHARE * tasks * self._pace.expected_bytes(1))
        return min(self._pace.task_rows, max(self.state.queue.max_step_cost, room, 1))

    # Rule 3: where the step due does not fit with all its blocks, it is decoded part by part.

    def _split_by_block(self, chunk: Chunk) -> bool:
        """Split a chunk of the step due that will never fit by its blocks; returns whether."""
        if chunk.step != self.state.queue.due or len(chunk.blocks) == 1:
            return False
        if not self._eviction.is_stuck(chunk):
            return False
        self._split_rows(chunk, chunk.row_blocks == chunk.row_blocks[0])
        return True

    def _split_rows(self, chunk: Chunk, first: np.ndarray) -> None:
        """Split a waiting chunk in the rows to decode `first` (bool[rows]) and the others."""
        parts = [chunk.select(rows, chunk.crashes) for rows in (first, ~first)]
        self.state.split(chunk, parts)

    def _unblock(self) -> None:
        """Let the step due go on where it misses a block that no eviction makes room for."""
        if self.state.failed or self._is_measuring():
            return
        block = self._cache.next_wanted()
        if block is None or block.next_use[0] != self.state.queue.due:
            return
        if self._eviction.over_budget(block) <= self._ledger.released:
            return  # there is room, or there will be
        chunk = block.waiting[block.next_use]
        blocks = self._cache.blocks
        here = [n for n in chunk.blocks if blocks[n].state is BlockState.RESIDENT]
        if here:
            # Rule 3: decode the rows whose blocks are here; then these blocks can go.
            self._split_rows(chunk, np.isin(chunk.row_blocks, here))
            self._decode()
        elif self._workers.slots("decoder"):
            self._force_read(block)

    def _force_read(self, block: Block) -> None:
        """Read a block of the step due though nothing runs and it does not fit (rule 4)."""
        ledger = self._ledger
        if not self._eviction.gives_up_rest(block.next_use) or ledger.blocks:
            return  # the store will have bytes back, or a decode will: this is asked again then
        if block.measured_bytes + ledger.outputs > ledger.max_bytes:
            self._eviction.fail_for_room(block.number, ledger.outputs)
        elif (worker := self._workers.free("reader")) is not None:
            self._begin_read(worker, [block], [self._cache.begin_read(block)])

    # Reads

    def _read(self) -> None:
        """Begin reads of the blocks that are needed first, evicting blocks needed later."""
        if self.state.failed or self._is_measuring():
            return
        while (worker := self._next_reader()) is not None:
            blocks: list[Block] = []
            charges: list[int] = []
            while (block := self._cache.next_wanted()) is not None:
                if not self._joins(block, blocks, sum(charges)):
                    break
                if not self._eviction.make_room(block):
                    break
                blocks.append(block)
                charges.append(self._cache.begin_read(block))
            if not blocks:
                break
            self._begin_read(worker, blocks, charges)

    def _next_reader(self) -> Worker | None:
        """Return the reader to begin another read, None where none should.

        How many reads a reader runs follows from how long they take: blocks are wanted as fast as
        steps are taken, so the reads that run are that rate times the storage's latency (Little's
        law, 1961).
        """
        if not self._cache.measured and self._is_reading():
            return None  # the first read shows what a block takes: it may need all room there is
        if self.limits.in_order:
            return None if self._reads_earlier_block() else self._workers.same_reader()
        worker = self._workers.free("reader")
        if worker is None or worker.busy < self.limits.min_reads:
            return worker
        return worker if worker.charge < self.limits.reader_bytes else None

    def _reads_earlier_block(self) -> bool:
        """Return whether a running read brings a block needed before every one still to be read."""
        wanted = self._cache.next_wanted()
        if wanted is None:
            return False
        reading = self._workers.reading()
        return any(self._cache.awaited_by(number) < wanted.next_use for number in reading)

    def _is_reading(self) -> bool:
        """Return whether a read runs that a chunk waits for."""
        return any(self._cache.awaited_by(n) != NEVER for n in self._workers.reading())

    def _joins(self, block: Block, others: list[Block], nbytes: int) -> bool:
        """Return whether a read of `others`, of `nbytes` bytes so far, may take this block too."""
        if not others:
            return True
        if not self._cache.measured:
            return False  # the first read is of one block, and shows how large blocks are
        if block.tries or others[0].tries:
            return False  # a block that failed is read alone, so that it alone is given up
        nbytes += self._cache.expected_bytes(block.number)
        return nbytes <= self.limits.read_bytes and len(others) < self.limits.read_blocks

    def _begin_read(self, worker: Worker, blocks: list[Block], charges: list[int]) -> None:
        """Order a read of blocks whose reads the cache has begun."""
        numbers = tuple(block.number for block in blocks)
        task = self._workers.begin(worker, tuple(charges), blocks=numbers)
        self.state.counters["reads"] += 1
        first = min(block.next_use for block in blocks)
        step = None if first == NEVER else first[0]
        budget = self._budget(charges, self._cache.measured)
        self.state.order(ev.Read(task.number, worker.name, task.blocks, budget, step))

    # Hedges

    def _hedge(self, number: int) -> None:
        """Have an overdue task done by another worker too, if there is room without eviction."""
        task = self._workers.tasks.get(number)
        if task is None or task.hedged or self.state.failed:
            return
        if task.blocks and (self.limits.in_order or self._is_measuring()):
            return
        worker = self._workers.free("decoder" if task.chunks else "reader", avoid=task.worker)
        if worker is None or self._ledger.exceeds_by(sum(task.charges)) > 0:
            return
        if self._hedge_decode(task, worker) if task.chunks else self._hedge_read(task, worker):
            task.hedged = True
            self.state.counters["hedges"] += 1

    def _hedge_decode(self, task: Task, worker: Worker) -> bool:
        """Begin a second decode of what is still needed of a task; returns whether it did."""
        chunks = [
            chunk
            for chunk in task.chunks
            if chunk.state is ChunkState.DECODING and not chunk.obsolete and not chunk.suspect
        ]
        if not chunks or worker is task.worker:
            return False
        self._begin_decode(worker, [(chunk, self._begin_attempt(chunk)) for chunk in chunks])
        return True

    def _hedge_read(self, task: Task, worker: Worker) -> bool:
        """Begin a second read of what is still needed of a task; returns whether it did."""
        blocks = [b for b in map(self._cache.blocks.get, task.blocks) if b and b.awaited]
        if not blocks:
            return False
        self._begin_read(worker, blocks, [self._cache.begin_read(block) for block in blocks])
        return True
