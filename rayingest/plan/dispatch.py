"""Dispatch: decides what to read, decode, retry, give up and deliver. A pure state machine: events in, commands out.

No Ray, no clock, no sleep and no randomness: the same events give the same commands. It executes out of order and
delivers in order. Pieces wait for their blocks (`residency`), are decoded by workers (`workforce`), and lie ready until
all of their step are done and the step is due (`backlog`).

Bytes. Blocks, whether being read or in the store, and outputs, whether being decoded or ready, are charged against
`max_bytes`. Room for one whole step is kept for the step that is due, and outputs of later steps leave room for one
block beside it. So whatever is in flight, the step that is due can always go on, block by block if need be, and with
it everything else: that is why nothing here can wait for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rayingest.plan import events as ev
from rayingest.plan.backlog import Backlog, Pace
from rayingest.plan.pieces import Key, Piece, PieceState
from rayingest.plan.residency import Block, BlockState, Residency
from rayingest.plan.workforce import Task, Worker, Workforce


@dataclass(frozen=True)
class Limits:
    """How far dispatch may go.

    `max_bytes`: blocks and outputs together. `ahead`: steps from the one due on whose blocks may be fetched. `ready`:
    steps from the one due on that may be decoded (more where that is too few to keep the decoders busy). `room`:
    batches that the consumer takes in advance. A decode should take `task_seconds`; `whole_steps` keeps steps in one
    piece as far as `max_bytes` allows. A read takes up to `read_blocks` blocks or `read_bytes`. Nothing is tried more
    than `max_tries` times.
    """

    max_bytes: int = 1 << 62
    ahead: int = 16
    ready: int = 4
    room: int = 2
    task_seconds: float = 0.05
    first_task_rows: int = 16
    whole_steps: bool = False
    read_blocks: int = 16
    read_bytes: int = 4 << 20
    max_tries: int = 4


_WALK_AT_ONCE = 32


class Dispatch:
    """One stream's state. `sizes`: int64, expected bytes of every block; `row_bytes`: expected bytes of a decoded row.

    `output_bytes` is the sum of all pieces' `nbytes`, those of stale tasks included.
    """

    def __init__(self, sizes: np.ndarray, limits: Limits, row_bytes: float = 1.0) -> None:
        self.limits = limits
        self.residency = Residency(sizes)
        self.workforce = Workforce()
        self.pace = Pace(row_bytes, limits.task_seconds, limits.first_task_rows)
        self.backlog = Backlog(iter(()), self.pace, limits.whole_steps)
        self.output_bytes = 0
        self.room = limits.room
        self.failed = False
        self.counts = dict.fromkeys(("reads", "blocks_read", "decodes", "retries", "workers_lost", "blocks_dropped"), 0)
        self._commands: list[ev.Command] = []

    def handle(self, *happened: ev.Event) -> list[ev.Command]:
        """Take in what happened, in order; returns what to do, in order."""
        for event in happened:
            self._take_in(event)
        if not self.failed:
            self._walk()
            while self._deliver():
                self._walk()
            self._decode()
            self._read()
        commands, self._commands = self._commands, []
        return commands

    @property
    def held(self) -> int:
        """Bytes charged now."""
        return self.residency.held + self.output_bytes

    # Facts

    def _take_in(self, event: ev.Event) -> None:
        match event:
            case ev.Start():
                self._start(event)
            case ev.Taken():
                self.room += 1
            case ev.WorkerJoined(name, role, slots):
                self.workforce.join(name, role, slots)
            case ev.WorkerLost(name):
                self._lose_worker(name)
            case ev.BlocksLost(numbers):
                self._lose_blocks(numbers)
            case ev.ReadDone() | ev.ReadFailed() | ev.DecodeDone() | ev.DecodeFailed():
                task = self.workforce.end(event.task)
                if task is not None:
                    self._end_task(task, event)

    def _end_task(self, task: Task, event: ev.Event) -> None:
        match event:
            case ev.ReadDone(_, nbytes):
                self._end_read(task, nbytes)
            case ev.ReadFailed(_, error, final):
                self._fail_read(task, error, final)
            case ev.DecodeDone(_, parts, seconds):
                self._end_decode(task, parts, seconds)
            case ev.DecodeFailed(_, error):
                self._retry_decode(task, error)

    def _start(self, event: ev.Start) -> None:
        self.residency.restart(self.limits.ahead)
        for task in self.workforce.tasks.values():
            task.stale = True
        self.output_bytes = sum(piece.nbytes for task in self.workforce.tasks.values() for piece in task.pieces)
        self.backlog = Backlog(event.steps, self.pace, self.limits.whole_steps)
        self.room = self.limits.room

    def _lose_worker(self, name: str) -> None:
        self.counts["workers_lost"] += name in self.workforce.workers
        error = ConnectionError(f"worker {name} is gone")
        for task in self.workforce.lose(name):
            if task.pieces:
                self._retry_decode(task, error)
            else:
                self._retry_read(task, error)

    def _lose_blocks(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            block = self.residency.blocks.get(number)
            if block is not None and block.state is BlockState.RESIDENT:
                self.residency.vanish(block)

    def _end_read(self, task: Task, nbytes: tuple[int, ...]) -> None:
        for number, size in zip(task.blocks, nbytes, strict=True):
            for piece in self.residency.arrive(self.residency.blocks[number], size):
                self.backlog.offer(piece)
        self._drop_useless(task.blocks)

    def _fail_read(self, task: Task, error: BaseException, final: bool) -> None:
        if not final or len(task.blocks) > 1:  # then one by one, so that only the block at fault is given up
            self._retry_read(task, error)
            return
        block = self.residency.blocks[task.blocks[0]]
        for piece in self.residency.break_off(block, error):
            piece.state, piece.error = PieceState.DONE, error

    def _retry_read(self, task: Task, error: BaseException) -> None:
        for number in task.blocks:
            block = self.residency.blocks[number]
            self.residency.vanish(block)
            block.tries += 1
            self._count_retry(block.tries, (number,), error)
        self._drop_useless(task.blocks)

    def _end_decode(self, task: Task, parts: tuple[ev.PartDone, ...], seconds: float) -> None:
        for index, (piece, part) in enumerate(zip(task.pieces, parts, strict=True)):
            if part.error is None:
                self.pace.see_output(len(piece.rows), part.nbytes)
            self._end_output(piece, 0 if task.stale else part.nbytes)
            piece.state, piece.task, piece.index, piece.error = PieceState.DONE, task.number, index, part.error
        self.pace.see_task(sum(len(piece.rows) for piece in task.pieces), seconds)

    def _retry_decode(self, task: Task, error: BaseException) -> None:
        for piece in task.pieces:
            self._end_output(piece, 0, drop=task.stale)
            if not task.stale:
                piece.state = PieceState.WAITING
                piece.tries += 1
                self.residency.wait(piece)
                self.backlog.offer(piece)
                self._count_retry(piece.tries, piece.blocks, error)

    def _end_output(self, piece: Piece, nbytes: int, drop: bool = True) -> None:
        """The piece is no longer being decoded; its output is charged with `nbytes` now."""
        self.output_bytes += nbytes - piece.nbytes
        piece.nbytes = nbytes
        self.residency.unpin(piece)
        if drop:
            self._drop_useless(piece.blocks)

    def _count_retry(self, tries: int, blocks: tuple[int, ...], error: BaseException) -> None:
        self.counts["retries"] += 1
        if tries >= self.limits.max_tries:
            self._fail(f"tried {tries} times, always in vain", blocks, error)

    def _fail(self, reason: str, blocks: tuple[int, ...], error: BaseException | None = None) -> None:
        if not self.failed:
            self.failed = True
            self._commands.append(ev.Fail(reason, blocks, error))

    # Deeds

    def _walk(self) -> None:
        """Take up the steps that blocks may be fetched for: not many at once, and none before it is of use."""
        backlog = self.backlog
        most = backlog.walked + _WALK_AT_ONCE
        while not backlog.ended and backlog.walked < min(most, backlog.due + self.limits.ahead):
            if backlog.walked > backlog.due + self._decode_ahead() and self.residency.next_wanted() is not None:
                break
            for piece, until in backlog.walk():
                error = self.residency.need(piece, until)
                if error is not None:
                    piece.state, piece.error = PieceState.DONE, error
                backlog.offer(piece)
        self._drop_useless(self.residency.expired(backlog.walked))

    def _deliver(self) -> bool:
        """Hand over the step due, if it is done and there is room."""
        pieces = self.backlog.deliver() if self.room else None
        if pieces is None:
            return False
        self.room -= 1
        self.output_bytes -= sum(piece.nbytes for piece in pieces)
        outputs = tuple(ev.Output(piece.task, piece.index, piece.rows) for piece in pieces if piece.error is None)
        error = next((piece.error for piece in pieces if piece.error is not None), None)
        self._commands.append(ev.Deliver(pieces[0].step, outputs, error))
        return True

    def _decode(self) -> None:
        """Have pieces decoded that lack nothing, the earliest first, as long as a decoder is free."""
        while (worker := self.workforce.free("decoder")) is not None:
            if not self.pace.measured and any(task.pieces for task in self.workforce.tasks.values()):
                return  # the first decode shows what a row takes, before there are many
            pieces = self._next_decode()
            if not pieces:
                return
            task = self.workforce.begin(worker, pieces=tuple(pieces))
            self.counts["decodes"] += 1
            blocks = tuple(sorted({number for piece in pieces for number in piece.blocks}))
            parts = tuple(ev.Part(piece.step, piece.rows) for piece in pieces)
            self._commands.append(ev.Decode(task.number, worker.name, parts, blocks))

    def _next_decode(self) -> list[Piece]:
        """The ready pieces that make the next task, now charged and holding their blocks."""
        pieces: list[Piece] = []
        rows = 0
        while (piece := self.backlog.next_ready()) is not None and self._may_decode(piece):
            if pieces and rows + len(piece.rows) > self.pace.task_rows:
                break
            piece.state, piece.nbytes = PieceState.DECODING, self.pace.output_bytes(len(piece.rows))
            self.output_bytes += piece.nbytes
            self.residency.pin(piece)
            pieces.append(piece)
            rows += len(piece.rows)
        return pieces

    def _may_decode(self, piece: Piece) -> bool:
        """Whether it is near enough, and its output leaves room for the step due and for a block beside that."""
        if piece.step == self.backlog.due:
            over = self.held + self.pace.output_bytes(len(piece.rows)) - self.limits.max_bytes
            return self._free(over, piece.key) or not self.workforce.tasks
        if piece.step > self.backlog.due + self._decode_ahead():
            return False
        later, kept = self._outputs()
        later += self.pace.output_bytes(len(piece.rows))
        return later + kept + max(self.residency.held, self.residency.largest) <= self.limits.max_bytes

    def _decode_ahead(self) -> int:
        """Steps behind the one due that may be decoded: enough to keep all decoders busy."""
        busy = (self.workforce.slots("decoder") + 1) * self.pace.task_rows // max(1, self.backlog.longest)
        return max(self.limits.ready, busy)

    def _outputs(self) -> tuple[int, int]:
        """Bytes of outputs of steps that are not due, and bytes kept for the step due, whatever it has used of them."""
        due = self.backlog.due_output_bytes()
        return self.output_bytes - due, max(due, self.pace.output_bytes(self.backlog.longest))

    def _read(self) -> None:
        """Have blocks read, those needed first first, giving up such as are needed later."""
        while (worker := self.workforce.free("reader")) is not None:
            blocks: list[Block] = []
            while (block := self.residency.next_wanted()) is not None and self._joins(block, blocks):
                if not self._make_room(block):
                    break
                self.residency.begin_read(block)
                blocks.append(block)
            if not blocks:
                break
            self._order_read(worker, blocks)
        self._unblock()

    def _joins(self, block: Block, others: list[Block]) -> bool:
        """Whether a read of `others` may take this block too; what failed before is read alone."""
        if not others:
            return True
        size = sum(other.nbytes for other in others) + self.residency.size(block.number)
        small = len(others) < self.limits.read_blocks and size <= self.limits.read_bytes
        return small and not block.tries and not others[0].tries

    def _order_read(self, worker: Worker, blocks: list[Block]) -> None:
        task = self.workforce.begin(worker, blocks=tuple(block.number for block in blocks))
        self.counts["reads"] += 1
        self.counts["blocks_read"] += len(blocks)
        self._commands.append(ev.Read(task.number, worker.name, task.blocks))

    def _over_budget(self, block: Block) -> int:
        """Bytes by which reading this block now would exceed the budget, the due step's room kept."""
        later, kept = self._outputs()
        return self.residency.held + self.residency.size(block.number) + later + kept - self.limits.max_bytes

    def _make_room(self, block: Block) -> bool:
        """Whether the block may be read now; gives up blocks that are needed later where that makes the room."""
        return self._free(self._over_budget(block), block.next_use)

    def _free(self, need: int, key: Key) -> bool:
        """Give up blocks needed later than `key` for so many bytes, if there are enough; returns whether there are."""
        chosen = []
        victims = iter(self.residency.victims(key) if need > 0 else [])
        while need > 0 and (victim := next(victims, None)) is not None:
            chosen.append(victim)
            need -= victim.nbytes
        if need <= 0:
            self._evict(chosen)
        return need <= 0

    def _evict(self, blocks: Iterable[Block]) -> None:
        numbers = tuple(block.number for block in blocks)
        for number in numbers:
            self.residency.vanish(self.residency.blocks[number])
        if numbers:
            self.counts["blocks_dropped"] += len(numbers)
            self._commands.append(ev.Drop(numbers))

    def _unblock(self) -> None:
        """Where the step due needs more blocks than fit, decode what is there, give that up, and go on."""
        block = self.residency.next_wanted()
        if block is None or block.next_use[0] != self.backlog.due or self._over_budget(block) <= 0:
            return
        piece = block.uses[block.next_use]
        here = [number for number in piece.blocks if self.residency.blocks[number].state is BlockState.RESIDENT]
        if here:
            self.residency.stop_waiting(piece)
            for part in self.backlog.split(piece, np.isin(piece.row_blocks, here)):
                self.residency.wait(part)
                self.backlog.offer(part)
            self._decode()
        elif not self.workforce.tasks:
            self._force(block)

    def _force(self, block: Block) -> None:
        """Nothing is under way and nothing fits: read all the same where estimates are to blame, else fail."""
        self._evict(self.residency.victims(block.next_use))
        size, chunk = self.residency.size(block.number), self.pace.output_bytes(self.backlog.longest)
        if self.pace.measured and self.residency.measured and size + chunk > self.limits.max_bytes:
            reason = f"max_bytes={self.limits.max_bytes} can't hold one block of {size} bytes and one batch of {chunk}"
            self._fail(f"{reason}; give it {size + chunk} or more", (block.number,))
        elif (worker := self.workforce.free("reader")) is not None:
            self.residency.begin_read(block)
            self._order_read(worker, [block])

    def _drop_useless(self, numbers: Iterable[int]) -> None:
        gone = tuple(number for number in dict.fromkeys(numbers) if self.residency.forget(number, self.backlog.walked))
        if gone:
            self._commands.append(ev.Drop(gone))
