"""Outcomes: what happened, taken into dispatch's state. The half of the machine that decides nothing but what is lost.

Owns how pieces and blocks move on when tasks end, fail, are lost or late; the other half, `dispatch`, gives orders. Of
several tasks that make the same thing the first to answer wins, and what the others bring is discarded.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rayingest.errors import DataError
from rayingest.plan import events as ev
from rayingest.plan.backlog import Backlog, Pace
from rayingest.plan.limits import Limits
from rayingest.plan.pieces import Piece, PieceState
from rayingest.plan.residency import BlockState, Residency
from rayingest.plan.workforce import Task, Workforce

_COUNTED = ("reads", "blocks_read", "decodes", "retries", "hedges", "workers_lost", "blocks_lost", "blocks_dropped")
_DEATHS_TO_PART = 2
_DEATHS_TO_BLAME = 4


class Outcomes:
    """One stream's state. `sizes`: int64, expected bytes of every block; `row_bytes`: expected bytes of a decoded row.

    `output_bytes` is the sum of what decodes under way are charged with and of the outputs that are done.
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
        self.counts = dict.fromkeys(_COUNTED, 0)
        self._commands: list[ev.Command] = []

    @property
    def held(self) -> int:
        """Bytes charged now."""
        return self.residency.held + self.output_bytes

    def take_in(self, event: ev.Event) -> None:
        """Change the state by what happened."""
        match event:
            case ev.Start():
                self._start(event)
            case ev.Taken():
                self.room += 1
            case ev.WorkerJoined(name, role, slots):
                self.workforce.join(name, role, slots)
            case ev.WorkerLost(name, by_itself):
                self._lose_worker(name, by_itself)
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
                self._fail_decode(task, error)

    def _start(self, event: ev.Start) -> None:
        self.residency.restart(self.limits.ahead)
        self.backlog.abandon()
        self.output_bytes = sum(sum(task.charges) for task in self.workforce.tasks.values() if task.pieces)
        self.backlog = Backlog(event.steps, self.pace, self.limits.whole_steps)
        self.room = self.limits.room

    def _lose_worker(self, name: str, by_itself: bool) -> None:
        self.counts["workers_lost"] += name in self.workforce.workers
        error = ConnectionError(f"worker {name} is gone")
        for task in self.workforce.lose(name):
            if task.pieces:
                self._fail_decode(task, error, deadly=by_itself)
            else:
                self._fail_read(task, error, final=False)

    def _lose_blocks(self, numbers: Iterable[int]) -> None:
        """Blocks are gone, and decodes that hold them may never answer: their pieces wait again."""
        lost = set()
        for number in numbers:
            block = self.residency.blocks.get(number)
            if block is not None and block.state is BlockState.RESIDENT:
                self.residency.vanish(block)
                lost.add(number)
        self.counts["blocks_lost"] += len(lost)
        for task in self.workforce.tasks.values():
            for piece in task.pieces:
                if piece.state is PieceState.DECODING and not piece.gone and not lost.isdisjoint(piece.blocks):
                    self._wait(piece)

    def _wait(self, piece: Piece) -> bool:
        """The piece waits for its blocks, or is done with where one of them cannot be had; returns whether it waits."""
        piece.error = self.residency.wait(piece)
        piece.state = PieceState.WAITING if piece.error is None else PieceState.DONE
        self.backlog.offer(piece)
        return piece.error is None

    def _end_read(self, task: Task, nbytes: tuple[int, ...]) -> None:
        late = []
        for number, charge, size in zip(task.blocks, task.charges, nbytes, strict=True):
            block = self.residency.end_read(number, charge)
            if block is None:
                late.append(number)
                continue
            for piece in self.residency.arrive(block, size):
                self.backlog.offer(piece)
        self._discard(task, late)
        self._drop_useless(task.blocks)

    def _fail_read(self, task: Task, error: BaseException, final: bool) -> None:
        """Blocks that nobody else is reading are read again, one by one, so that only one at fault is given up."""
        ended = [self.residency.end_read(*block) for block in zip(task.blocks, task.charges, strict=True)]
        awaited = [block for block in ended if block is not None]
        if final and len(task.blocks) == 1:
            for piece in [piece for block in awaited for piece in self.residency.break_off(block, error)]:
                piece.state, piece.error = PieceState.DONE, error
        else:
            for block in awaited:
                block.tries += 1
                if not block.readers:
                    self.residency.vanish(block)
                self.counts["retries"] += 1
                self._check_tries(block.tries, (block.number,), error)
        self._drop_useless(task.blocks)

    def _end_decode(self, task: Task, parts: tuple[ev.PartDone, ...], seconds: float) -> None:
        late = []
        for index, (piece, charge, part) in enumerate(zip(task.pieces, task.charges, parts, strict=True)):
            if part.error is None:
                self.pace.see_output(len(piece.rows), part.nbytes)
            self._end_attempt(piece, charge)
            if piece.gone or piece.state is PieceState.DONE:
                late.append(index)
                continue
            if piece.state is PieceState.WAITING:
                self.residency.stop_waiting(piece)
            piece.state, piece.task, piece.index, piece.error = PieceState.DONE, task.number, index, part.error
            piece.nbytes = part.nbytes
            self.output_bytes += piece.nbytes
        self._discard(task, late)
        self._drop_useless(number for piece in task.pieces for number in piece.blocks)
        self.pace.see_task(sum(len(piece.rows) for piece in task.pieces), seconds)

    def _fail_decode(self, task: Task, error: BaseException, deadly: bool = False) -> None:
        """Pieces that nobody else is making are made again; what may have ended its worker is narrowed down."""
        for piece, charge in zip(task.pieces, task.charges, strict=True):
            self._end_attempt(piece, charge)
            piece.deaths += deadly
            if piece.state is PieceState.DECODING and not piece.attempts and not piece.gone:
                self.counts["retries"] += 1
                waits = self._wait(piece)
                piece.tries += not deadly
                if waits and deadly:
                    self._narrow_down(piece)
                self._check_tries(piece.tries, piece.blocks, error)
        self._drop_useless(number for piece in task.pieces for number in piece.blocks)

    def _end_attempt(self, piece: Piece, charge: int) -> None:
        """A decode of the piece ended, however."""
        piece.attempts -= 1
        piece.charged -= charge
        self.output_bytes -= charge
        self.residency.unpin(piece)

    def _narrow_down(self, piece: Piece) -> None:
        """Of a waiting piece whose workers keep ending, try the halves; a single row that does so is given up."""
        if len(piece.rows) > 1 and piece.deaths >= _DEATHS_TO_PART:
            first = np.arange(len(piece.rows)) < len(piece.rows) // 2
            self._part(piece, [piece.part(half, deaths=piece.deaths - 1) for half in (first, ~first)])
        elif piece.deaths >= _DEATHS_TO_BLAME:
            self.residency.stop_waiting(piece)
            piece.state = PieceState.DONE
            piece.error = DataError(f"decoding this sample ended its worker, {piece.deaths} times")

    def _part(self, piece: Piece, parts: list[Piece]) -> None:
        """Put parts in the place of a waiting piece."""
        self.residency.stop_waiting(piece)
        self.backlog.replace(piece, parts)
        for part in parts:
            self._wait(part)

    def _discard(self, task: Task, items: list[int]) -> None:
        if items:
            self._commands.append(ev.Discard(task.number, tuple(items)))

    def _check_tries(self, tries: int, blocks: tuple[int, ...], error: BaseException) -> None:
        if tries >= self.limits.max_tries:
            self._fail(f"tried {tries} times, always in vain", blocks, error)

    def _fail(self, reason: str, blocks: tuple[int, ...], error: BaseException | None = None) -> None:
        if not self.failed:
            self.failed = True
            self._commands.append(ev.Fail(reason, blocks, error))

    def _drop_useless(self, numbers: Iterable[int]) -> None:
        gone = tuple(number for number in dict.fromkeys(numbers) if self.residency.forget(number, self.backlog.walked))
        if gone:
            self._commands.append(ev.Drop(gone))
