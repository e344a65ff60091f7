"""Dispatch: decides what to read, decode, retry, give up and deliver. A pure state machine: events in, commands out.

No Ray, no clock, no sleep and no randomness: the same events give the same commands. It executes out of order and
delivers in order. `outcomes` takes in what happened, `eviction` keeps all within the budget; here is what is ordered.
Pieces wait for their blocks (`residency`), are decoded by workers (`workforce`), and lie ready until all of their step
are done and the step is due (`backlog`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.block_cache import Block, BlockState
from rayingest.plan.dispatch.chunks import NEVER, Piece, PieceState
from rayingest.plan.dispatch.eviction import Eviction
from rayingest.plan.dispatch.limits import Limits
from rayingest.plan.dispatch.workers import Worker

__all__ = ["Dispatch", "Limits"]

_WALK_AT_ONCE = 32
_DECODING_PART = 4
"""Tasks are so long that all that are under way fill no more than one part in so many of the budget: blocks need it."""


class Dispatch(Eviction):
    """One stream's state, and what is to be done in it."""

    def handle(self, *happened: ev.Event) -> list[ev.Command]:
        """Take in what happened, in order; returns what to do, in order."""
        for event in happened:
            if isinstance(event, ev.Overdue):
                self._hedge(event.task)
            else:
                self.take_in(event)
        if not self.failed:
            self._walk()
            while self._deliver():
                self._walk()
            if not self.pace.measured:
                self._read()  # beside the first decode, which is then given all room that is left
            self._decode()
            self._read()
            self._unblock()
        commands, self._commands = self._commands, []
        return commands

    def lack(self) -> str:
        """What the step due is not done for, one of `metrics.STALLS`; "" where it is done, or nothing is to be done."""
        undone = [
            piece for piece in self.backlog.due_pieces() if piece.state is not PieceState.DONE
        ]
        if not undone:
            return ""
        if not self.workforce.slots("reader"):
            return "workers"
        if any(piece.state is PieceState.WAITING and piece.missing for piece in undone):
            idle = self._reader() is not None and self.residency.next_wanted() is not None
            return "room" if idle else "read"
        if not self.workforce.slots("decoder"):
            return "workers"
        ready = self.backlog.next_ready()
        near = ready is not None and ready.step <= self._begin_by() and self.pace.measured
        return "room" if near and self.workforce.free("decoder") is not None else "decode"

    def _walk(self) -> None:
        """Take up the steps that blocks may be fetched for: not many at once, and none before it is of use."""
        backlog = self.backlog
        most = min(backlog.walked + _WALK_AT_ONCE, backlog.due + self.limits.ahead)
        needed = backlog.due + self._decode_ahead()
        while not backlog.ended and backlog.walked < most:
            if backlog.walked > needed and self.residency.next_wanted() is not None:
                break
            for piece, until in backlog.walk():
                self._wait(piece, until)
        if expired := self.residency.expired(backlog.walked):
            self._drop_useless(expired)

    def _has_room(self) -> bool:
        """Whether one more batch may lie ready for the consumer."""
        if self.untaken < self.limits.room or not self.pace.measured:
            return self.untaken < self.limits.room
        ready_bytes = (self.untaken + 1) * self.pace.output_bytes(self.backlog.longest)
        return self.untaken < self.limits.most_room and ready_bytes <= self.limits.room_bytes

    def _deliver(self) -> bool:
        """Hand over the steps due that are done, as far as there is room; returns whether there were any."""
        due = self.backlog.due
        while self._has_room() and (pieces := self.backlog.deliver()) is not None:
            self._hand_over(pieces)
        return self.backlog.due > due

    def _hand_over(self, pieces: list[Piece]) -> None:
        self.untaken += 1
        outputs = tuple(
            ev.Output(piece.task, piece.index, piece.rows)
            for piece in pieces
            if piece.error is None
        )
        for piece in pieces:
            if piece.task >= 0:
                self._release(piece)
        broken = min((piece for piece in pieces if piece.error is not None), default=None)
        if broken is None:
            self._commands.append(ev.Deliver(pieces[0].step, outputs))
        else:
            self._commands.append(
                ev.Deliver(pieces[0].step, outputs, broken.error, int(broken.rows[0]))
            )

    def _decode(self) -> None:
        """Have pieces decoded that lack nothing, the earliest first, as long as a decoder is free."""
        while (worker := self.workforce.free("decoder")) is not None:
            if self._measuring():
                return
            attempts = self._next_decode(worker)
            if not attempts:
                return
            self._order_decode(worker, attempts)

    def _measuring(self) -> bool:
        """Whether the first decode is under way, which shows what a row takes: it may need whatever room there is."""
        if self.pace.measured:
            return False
        pieces = (piece for task in self.workforce.tasks.values() for piece in task.pieces)
        return any(piece.state is PieceState.DECODING and not piece.gone for piece in pieces)

    def _next_decode(self, worker: Worker) -> list[tuple[Piece, int]]:
        """The ready pieces that make the worker's next task, and what each is charged with; a suspect waits for an idle
        worker, to be its only one.
        """
        attempts: list[tuple[Piece, int]] = []
        rows, most = 0.0, self._task_rows()
        while (piece := self.backlog.next_ready()) is not None:
            if not (attempts or piece.step <= self._begin_by()):
                break
            if not self._may_decode(piece):
                if attempts or not self._part_by_block(piece):
                    break
                continue
            if attempts and (rows + piece.size > most or piece.alone or piece.suspect):
                break
            if piece.suspect and worker.busy:
                break
            attempts.append((piece, self._begin_attempt(piece)))
            rows += piece.size
            self.residency.stop_waiting(piece)
            piece.state = PieceState.DECODING
            if piece.suspect or piece.alone:
                break
        return attempts

    def _part_by_block(self, piece: Piece) -> bool:
        """Have a piece that does not fit beside all of its blocks made block by block; returns whether that is it."""
        if piece.step != self.backlog.due or len(piece.blocks) == 1 or not self._is_stuck(piece):
            return False
        self._part_rows(piece, piece.row_blocks == piece.row_blocks[0])
        return True

    def _part_rows(self, piece: Piece, now: np.ndarray) -> None:
        """Have these rows of a waiting piece (bool, one a row) decoded before its others."""
        self._part(piece, [piece.part(now, piece.deaths), piece.part(~now, piece.deaths)])

    def _begin_attempt(self, piece: Piece) -> int:
        """A decode of the piece begins: its blocks are held, its output is charged; returns what with: what room there
        is, where the step due is stuck with it.
        """
        charge = min(self._expected(piece), max(0, self.limits.max_bytes - self.held))
        piece.attempts += 1
        piece.charged += charge
        self.decode_bytes += charge
        self.residency.pin(piece)
        return charge

    def _order_decode(self, worker: Worker, attempts: list[tuple[Piece, int]]) -> None:
        pieces, charges = zip(*attempts, strict=True)
        weight = worker.slots if pieces[0].suspect else 1
        task = self.workforce.begin(worker, charges, pieces=pieces, weight=weight)
        self.counts["decodes"] += 1
        blocks = tuple(sorted({number for piece in pieces for number in piece.blocks}))
        parts = tuple(ev.Part(piece.step, piece.rows) for piece in pieces)
        room = self._room(charges, self.pace.measured)
        self._commands.append(
            ev.Decode(task.number, worker.name, parts, blocks, room, pieces[0].suspect)
        )

    def _room(self, charges: Sequence[int], measured: bool) -> int:
        """Bytes that a task may bring. The first is not held to what was expected: nothing else is begun meanwhile."""
        return sum(charges) + (0 if measured else max(0, self.limits.max_bytes - self.held))

    def _hedge(self, number: int) -> None:
        """Have a late task done by another worker too, if that costs nothing else its room."""
        task = self.workforce.tasks.get(number)
        if task is None or task.hedged or self.failed:
            return
        if task.blocks and (self.limits.in_order or self._measuring()):
            return
        worker = self.workforce.free("decoder" if task.pieces else "reader", other_than=task.worker)
        if worker is None or self.held + sum(task.charges) > self.limits.max_bytes:
            return
        if task.pieces:
            pieces = [
                p
                for p in task.pieces
                if p.state is PieceState.DECODING and not p.gone and not p.suspect
            ]
            if not pieces or worker is task.worker:
                return
            self._order_decode(worker, [(piece, self._begin_attempt(piece)) for piece in pieces])
        else:
            blocks = [
                block
                for block in map(self.residency.blocks.get, task.blocks)
                if block and block.awaited
            ]
            if not blocks:
                return
            self._order_read(worker, blocks, [self._begin_read(block) for block in blocks])
        task.hedged = True
        self.counts["hedges"] += 1

    def _may_decode(self, piece: Piece) -> bool:
        """Whether it is near enough, and its output has room."""
        near = self.backlog.due + self._decode_ahead()
        return piece.step <= near and self._fits_output(piece)

    def _decode_ahead(self) -> int:
        """Steps behind the one due that may be decoded: enough to keep all decoders busy."""
        busy = (
            (self.workforce.slots("decoder") + 1)
            * self._task_rows()
            // max(1, self.backlog.longest)
        )
        return max(self.limits.ready, busy)

    def _begin_by(self) -> int:
        """The last step that a decode may begin with: behind it there are too few for a whole task. They can wait until
        there are more, where a decoder that took each as it comes would cost everyone a task's overhead for it.
        """
        ahead = min(self._decode_ahead(), self.limits.ahead - 1)
        share = ahead // (self.workforce.slots("decoder") + 1)
        return (
            self.backlog.due + ahead - min(share, self._task_rows() // max(1, self.backlog.longest))
        )

    def _task_rows(self) -> int:
        """Rows of a task of the wanted length; more than a step only as far as all decoders have room for as much."""
        tasks = self.workforce.slots("decoder") + 1
        room = self.limits.max_bytes // (_DECODING_PART * tasks * self.pace.output_bytes(1))
        return min(self.pace.task_rows, max(self.backlog.longest, room, 1))

    def _read(self) -> None:
        """Have blocks read, those needed first first, giving up such as are needed later."""
        if self.failed or self._measuring():
            return
        while (worker := self._reader()) is not None:
            blocks: list[Block] = []
            charges: list[int] = []
            while (block := self.residency.next_wanted()) is not None and self._joins(
                block, blocks, sum(charges)
            ):
                if not self._make_room(block):
                    break
                blocks.append(block)
                charges.append(self._begin_read(block))
            if not blocks:
                break
            self._order_read(worker, blocks, charges)

    def _reader(self) -> Worker | None:
        """A reader that is to have another task. How many it has follows from how long they take: blocks are asked for
        as steps are taken, so what is under way is their rate times the storage's latency (Little, 1961).
        """
        if not self.residency.measured and self._reading():
            return (
                None  # the first read shows what a block takes: it may need whatever room there is
            )
        if self.limits.in_order:
            return None if self._reads_what_comes_first() else self.workforce.same_reader()
        worker = self.workforce.free("reader")
        if (
            worker is None
            or worker.busy < self.limits.few_reads
            or worker.nbytes < self.limits.reading_bytes
        ):
            return worker
        return None

    def _reads_what_comes_first(self) -> bool:
        """Whether a block is being read that is needed before all that nobody reads yet."""
        wanted = self.residency.next_wanted()
        reading = (number for task in self.workforce.tasks.values() for number in task.blocks)
        return wanted is not None and any(
            self.residency.awaited_by(number) < wanted.next_use for number in reading
        )

    def _reading(self) -> bool:
        """Whether a read is under way that is of use."""
        reading = (number for task in self.workforce.tasks.values() for number in task.blocks)
        return any(self.residency.awaited_by(number) != NEVER for number in reading)

    def _begin_read(self, block: Block) -> int:
        """A read of the block begins; returns what it is charged with."""
        return self.residency.begin_read(block, max(0, self.limits.max_bytes - self.held))

    def _joins(self, block: Block, others: list[Block], size: int) -> bool:
        """Whether a read of `others` may take this block too; what failed before is read alone."""
        if not others:
            return True
        if not self.residency.measured:
            return False  # the first one shows how large they are
        fits = size + self.residency.size(block.number) <= self.limits.read_bytes
        return (
            fits
            and len(others) < self.limits.read_blocks
            and not block.tries
            and not others[0].tries
        )

    def _order_read(self, worker: Worker, blocks: list[Block], charges: list[int]) -> None:
        task = self.workforce.begin(
            worker, tuple(charges), blocks=tuple(block.number for block in blocks)
        )
        self.counts["reads"] += 1
        first = min(block.next_use for block in blocks)
        room = self._room(charges, self.residency.measured)
        step = None if first == NEVER else first[0]
        self._commands.append(ev.Read(task.number, worker.name, task.blocks, room, step))

    def _unblock(self) -> None:
        """Where the step due needs more blocks than fit, decode what is there, give that up, and go on."""
        if self.failed or self._measuring():
            return
        block = self.residency.next_wanted()
        if (
            block is None
            or block.next_use[0] != self.backlog.due
            or self._over_budget(block) <= self.lingering
        ):
            return
        piece = block.uses[block.next_use]
        here = [
            number
            for number in piece.blocks
            if self.residency.blocks[number].state is BlockState.RESIDENT
        ]
        if here:
            self._part_rows(piece, np.isin(piece.row_blocks, here))
            self._decode()
        elif self.workforce.slots("decoder") and not (self.workforce.tasks or self.lingering):
            self._force(block)

    def _force(self, block: Block) -> None:
        """Nothing is under way and nothing fits: give up all that is needed later, outputs too, and then read in what
        room there is, or fail where it is known not to do.
        """
        if not self._has_given_up(block.next_use) or self.residency.held:
            return  # this is asked again once the store has it back, or what is there was decoded
        if block.known + self.outputs.nbytes > self.limits.max_bytes:
            self._fail_for_room(block.number, self.outputs.nbytes)
        elif (worker := self.workforce.free("reader")) is not None:
            self._order_read(worker, [block], [self._begin_read(block)])
