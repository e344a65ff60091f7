"""Outcomes: what happened, taken into dispatch's state. The part of the machine that decides nothing but what is lost.

Owns how pieces and blocks move on when tasks end, fail or are lost. Of several that make the same thing the first to
answer wins; others' is discarded. Rows whose samples are bad leave their piece; a new one waits for stand-ins' blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import TypeGuard

import numpy as np

from rayingest.errors import DataError, DeadlySampleError
from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.block_cache import BlockState, Residency, Sizes
from rayingest.plan.dispatch.chunks import DEATHS_TO_BLAME, DEATHS_TO_PART, Piece, PieceState
from rayingest.plan.dispatch.failures import WorkerFailure
from rayingest.plan.dispatch.limits import Limits
from rayingest.plan.dispatch.outputs import Outputs
from rayingest.plan.dispatch.step_queue import Backlog, Pace
from rayingest.plan.dispatch.workers import Task, Workforce

_COUNTED = ("reads", "blocks_read", "decodes", "retries", "hedges", "blocks_lost", "blocks_dropped")


class Outcomes:
    """One stream's state. `sizes`: expected bytes of every block; `row_bytes`: expected bytes of a decoded row.

    `decode_bytes` is what decodes under way are charged with; `lingering` what was given up and is not free yet;
    `untaken` are the batches delivered that the consumer has not taken.
    """

    def __init__(self, sizes: Sizes, limits: Limits, row_bytes: float = 1.0) -> None:
        self.limits = limits
        self.residency = Residency(sizes)
        self.workforce = Workforce()
        self.pace = Pace(row_bytes, limits.task_seconds, limits.first_task_rows)
        self.backlog = Backlog(iter(()), self.pace, limits.whole_steps)
        self.outputs = Outputs()
        self.decode_bytes = 0
        self.lingering = 0
        self.untaken = 0
        self.failed = False
        self._stand_in: ev.FindReplacement | None = None
        self.counts = dict.fromkeys(_COUNTED, 0)
        self._commands: list[ev.Command] = []

    @property
    def held(self) -> int:
        """Bytes charged now."""
        return self.residency.held + self.output_bytes + self.lingering

    @property
    def output_bytes(self) -> int:
        """Of those, what is charged for outputs, whether they are being made or are there."""
        return self.decode_bytes + self.outputs.nbytes

    def take_in(self, event: ev.Event) -> None:
        """Change the state by what happened."""
        match event:
            case ev.Start():
                self._start(event)
            case ev.Taken():
                self.untaken -= 1
            case ev.WorkerJoined(name, role, slots):
                self.workforce.join(name, role, slots)
            case ev.WorkerLost():
                self._lose_worker(event)
            case ev.Freed(nbytes):
                self.lingering -= nbytes
            case ev.BlocksLost(numbers):
                self._lose_blocks(numbers)
            case ev.ReadDone() | ev.ReadFailed() | ev.DecodeDone() | ev.DecodeFailed():
                task = self.workforce.end(event.task)
                if task is not None:
                    self._end_task(task, event)

    def _end_task(self, task: Task, event: ev.Event) -> None:
        match event:
            case ev.ReadDone(_, nbytes, left):
                self._end_read(task, nbytes, left)
            case ev.ReadFailed(_, error, final):
                self._fail_read(task, error, final)
            case ev.DecodeDone(_, parts, seconds):
                self._end_decode(task, parts, seconds)
            case ev.DecodeFailed(_, error):
                self._fail_decode(task, error)

    def _start(self, event: ev.Start) -> None:
        self.residency.restart(self.limits.ahead)
        self.backlog.abandon()
        for nbytes in self.outputs.clear():
            self._give_up(nbytes)
        self.backlog = Backlog(event.steps, self.pace, self.limits.whole_steps)
        self.untaken = 0
        self._stand_in = event.replacement

    def _lose_worker(self, event: ev.WorkerLost) -> None:
        error = ConnectionError(f"worker {event.worker}: {event.loss.value}")
        for task in self.workforce.lose(event.worker):
            if task.pieces:
                self._fail_decode(task, error, event.loss)
            else:
                self._fail_read(task, error, final=False, counts=event.loss.counts)

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
                if (
                    piece.state is PieceState.DECODING
                    and not piece.gone
                    and not lost.isdisjoint(piece.blocks)
                ):
                    self._wait(piece)

    def _wait(self, piece: Piece, until: Iterable[int] | None = None) -> bool:
        """The piece waits for its blocks; returns whether it does. `until` is given for a new one (`Residency.need`).

        Where one of them cannot be had, the piece is done with, or stand-ins take the places of the rows in it.
        """
        error = self.residency.wait(piece) if until is None else self.residency.need(piece, until)
        if error is None:
            piece.state = PieceState.WAITING
            self.backlog.offer(piece)
        elif self._replaceable(error):
            broken = {
                number for number in piece.blocks if self.residency.blocks[number].error is error
            }
            bad = {
                place: error
                for place, number in enumerate(piece.row_blocks.tolist())
                if number in broken
            }
            rest = self._fill(piece, bad, unreadable=True)
            if rest is not None:
                self._wait(rest)
        else:
            piece.state, piece.error = PieceState.DONE, error
        return error is None

    def _replaceable(self, error: BaseException) -> TypeGuard[DataError]:
        """Whether another sample may take the place of one that is lost by this error."""
        return self._stand_in is not None and isinstance(error, DataError) and not error.transient

    def _fill(
        self, piece: Piece, bad: Mapping[int, DataError], unreadable: bool = False
    ) -> Piece | None:
        """Let stand-ins take the places of the piece's bad rows, given by place in it; it waits for nothing.

        Returns a piece of the other rows, which is in the backlog in its place, None where there are none.
        """
        assert self._stand_in is not None
        kept = np.ones(len(piece.rows), bool)
        kept[list(bad)] = False
        rest = piece.part(kept, piece.deaths) if kept.any() else None
        parts = [] if rest is None else [rest]
        found: dict[int, tuple[int, int]] = {}
        for place, error in bad.items():
            row = int(piece.rows[place])
            replacement = self._stand_in(piece.step, row, error, unreadable)
            if isinstance(replacement, DataError):
                lost = Piece(
                    piece.step,
                    np.array([row]),
                    np.zeros(0, np.int64),
                    piece.each,
                    error=replacement,
                )
                lost.state = PieceState.DONE
                parts.append(lost)
            else:
                found[row] = replacement
        if not found:
            self.backlog.replace(piece, parts)
            return rest
        filled = Piece(
            piece.step,
            np.array([*found]),
            np.array([block for block, _ in found.values()]),
            piece.each,
        )
        self.backlog.replace(piece, [*parts, filled])
        last: dict[int, int] = {}
        for block, until in found.values():
            last[block] = max(until, last.get(block, 0))
        self._wait(filled, [last[block] for block in filled.blocks])
        return rest

    def _end_read(self, task: Task, nbytes: tuple[int, ...], left: tuple[int, ...]) -> None:
        late = []
        sizes = (*nbytes, *left)
        for place, (number, charge, size) in enumerate(
            zip_longest(task.blocks, task.charges, sizes, fillvalue=0)
        ):
            block = self.residency.end_read(number, charge)
            if place >= len(nbytes):
                if block is not None:
                    self.residency.put_off(block, size)
                continue
            self.counts["blocks_read"] += 1
            if block is None:
                late.append(number)
                self._give_up(size)
                continue
            for piece in self.residency.arrive(block, size):
                self.backlog.offer(piece)
        self._discard(task, late)
        self._drop_useless(task.blocks)

    def _fail_read(
        self, task: Task, error: BaseException, final: bool, counts: bool = True
    ) -> None:
        """Blocks that nobody else is reading are read again, one by one, so that only one at fault is given up."""
        ended = [
            self.residency.end_read(*block) for block in zip(task.blocks, task.charges, strict=True)
        ]
        awaited = [block for block in ended if block is not None]
        if final and (len(task.blocks) == 1 or self.limits.in_order):
            for piece in [
                piece for block in awaited for piece in self.residency.break_off(block, error)
            ]:
                self._wait(piece)
        else:
            for block in awaited:
                block.tries += counts
                if not block.readers:
                    self.residency.vanish(block)
                self.counts["retries"] += 1
                self._check_tries(block.tries, (block.number,), error)
        self._drop_useless(task.blocks)

    def _end_decode(self, task: Task, parts: tuple[ev.PartDone, ...], seconds: float) -> None:
        useless = []
        rows = 0.0
        for index, (piece, charge, part) in enumerate(
            zip(task.pieces, task.charges, parts, strict=True)
        ):
            self._end_attempt(piece, charge)
            good = piece.each * (len(piece.rows) - len(part.bad))
            if part.nbytes or not part.left:
                rows += piece.size
                if good and part.error is None:
                    self.pace.see_output(good, part.nbytes)
            made: Piece | None = None
            if part.left:
                piece.known = part.nbytes
                if piece.abandoned:
                    self._wait(piece)
            elif not piece.gone and piece.state is not PieceState.DONE:
                if piece.state is PieceState.WAITING:
                    self.residency.stop_waiting(piece)
                made = self._fill(piece, dict(part.bad)) if part.bad else piece
            if made is not None:
                made.state, made.error = PieceState.DONE, part.error
            if made is None or made.error is not None:
                useless.append(index)
            else:
                made.task, made.index, made.nbytes = task.number, index, part.nbytes
        sizes = [0 if part.left else part.nbytes for part in parts]
        self._give_up(self.outputs.add(task.number, sizes, len(useless)))
        self._discard(task, [index for index in useless if not parts[index].left])
        self._drop_useless(number for piece in task.pieces for number in piece.blocks)
        self.pace.see_task(rows, seconds)

    def _fail_decode(
        self, task: Task, error: BaseException, loss: WorkerFailure | None = None
    ) -> None:
        """Pieces that nobody else is making are made again; what may have ended its worker is narrowed down."""
        deadly, counts = loss is not None and loss.deadly, loss is None or loss.counts
        for piece, charge in zip(task.pieces, task.charges, strict=True):
            self._end_attempt(piece, charge)
            piece.deaths, piece.late = (
                piece.deaths + deadly,
                piece.late or loss is WorkerFailure.TOO_LATE,
            )
            if piece.abandoned:
                self.counts["retries"] += 1
                waits = self._wait(piece)
                piece.tries += counts and not deadly
                if waits and deadly:
                    self._narrow_down(piece)
                self._check_tries(
                    piece.tries, piece.blocks, error, piece.key if len(piece.rows) == 1 else None
                )
        self._drop_useless(number for piece in task.pieces for number in piece.blocks)

    def _end_attempt(self, piece: Piece, charge: int) -> None:
        """A decode of the piece ended, however."""
        piece.attempts -= 1
        piece.charged -= charge
        self.decode_bytes -= charge
        self.residency.unpin(piece)

    def _narrow_down(self, piece: Piece) -> None:
        """Of a waiting piece whose workers keep ending, try the halves; a single row that does so is given up."""
        if len(piece.rows) > 1 and piece.deaths >= DEATHS_TO_PART:
            first = np.arange(len(piece.rows)) < len(piece.rows) // 2
            self._part(
                piece, [piece.part(half, deaths=piece.deaths - 1) for half in (first, ~first)]
            )
        elif piece.deaths >= (DEATHS_TO_PART if piece.late else DEATHS_TO_BLAME):
            self.residency.stop_waiting(piece)
            what = "took longer than decode_timeout" if piece.late else "ended its worker"
            error = DeadlySampleError(
                f"decoding this sample {what}, {piece.deaths} times", transient=piece.late
            )
            if self._replaceable(error):
                self._fill(piece, {0: error})
            else:
                piece.state, piece.error = PieceState.DONE, error

    def _part(self, piece: Piece, parts: list[Piece]) -> None:
        """Put parts in the place of a waiting piece."""
        self.residency.stop_waiting(piece)
        self.backlog.replace(piece, parts)
        for part in parts:
            self._wait(part)

    def _release(self, piece: Piece) -> None:
        """A piece's output is of no use any more."""
        self._give_up(self.outputs.release(piece.task))
        piece.nbytes, piece.task = 0, -1

    def _discard(self, task: Task, items: list[int]) -> None:
        if items:
            self._commands.append(ev.Discard(task.number, tuple(items)))

    def _check_tries(
        self,
        tries: int,
        blocks: tuple[int, ...],
        error: BaseException,
        row: tuple[int, int] | None = None,
    ) -> None:
        if tries >= self.limits.max_tries:
            self._fail(ev.Fail(f"tried {tries} times, always in vain", blocks, error, row))

    def _fail(self, command: ev.Fail) -> None:
        if not self.failed:
            self.failed = True
            self._commands.append(command)

    def _drop_useless(self, numbers: Iterable[int]) -> None:
        sizes = {
            number: self.residency.forget(number, self.backlog.walked)
            for number in dict.fromkeys(numbers)
        }
        self._drop({number: size for number, size in sizes.items() if size})

    def _drop(self, sizes: Mapping[int, int]) -> None:
        """Give up blocks of these sizes."""
        if sizes:
            self._commands.append(ev.Drop(tuple(sizes)))
            for size in sizes.values():
                self._give_up(size)

    def _give_up(self, nbytes: int) -> None:
        """An object is given up; it is charged until the store has its bytes back."""
        if nbytes >= self.limits.inline_bytes:
            self.lingering += nbytes
            self._commands.append(ev.GiveUp(nbytes))
