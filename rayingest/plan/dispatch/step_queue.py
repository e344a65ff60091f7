"""The backlog: the steps between the one due and the last one looked at, cut into pieces, and what their outputs cost.

Owns the cutting of steps to the pace of decoding, the pieces that lack nothing, and the order of delivery. Knows
nothing of where blocks are; pieces tell.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

import numpy as np

from rayingest.plan.dispatch.chunks import DEATHS_TO_BLAME, Piece, PieceState
from rayingest.plan.dispatch.events import StepWork

_MOST_TASK_ROWS = 1 << 16


class Pace:
    """What a row costs to decode, in seconds and in bytes of output, as seen so far."""

    def __init__(self, row_bytes: float, task_seconds: float, first_task_rows: int) -> None:
        self.measured = False
        self._row_bytes, self._row_seconds = row_bytes, 0.0
        self._task_seconds, self._first_task_rows = task_seconds, first_task_rows

    def see_output(self, rows: float, nbytes: int) -> None:
        """A part's output; the largest row so far is what is expected from now on."""
        self._row_bytes = max(self._row_bytes, nbytes / rows) if self.measured else nbytes / rows
        self.measured = True

    def see_task(self, rows: float, seconds: float) -> None:
        """A whole task's time."""
        pace = seconds / rows
        self._row_seconds = pace if not self._row_seconds else 0.8 * self._row_seconds + 0.2 * pace

    def output_bytes(self, rows: float) -> int:
        """Bytes that decoding so many rows is expected to take in the store."""
        return max(1, int(np.ceil(rows * self._row_bytes)))

    @property
    def task_rows(self) -> int:
        """Rows that make a task of the wanted length."""
        if not self._row_seconds:
            return self._first_task_rows
        return max(1, min(_MOST_TASK_ROWS, int(self._task_seconds / max(self._row_seconds, 1e-7))))


class Backlog:
    """Steps numbered from 0: `due` is the next to deliver, `walked` the next to look at (endless once all are seen)."""

    def __init__(self, steps: Iterator[StepWork], pace: Pace, whole_steps: bool) -> None:
        self._steps, self._pace, self._whole_steps = steps, pace, whole_steps
        self.due = 0
        self.walked = 0
        self.longest = 0
        self._pieces: deque[list[Piece]] = deque()
        self._ready: list[Piece] = []

    @property
    def ended(self) -> bool:
        return self.walked > 1 << 60

    def walk(self) -> list[tuple[Piece, list[int]]]:
        """Look at one more step: its pieces, and for each of their blocks the step after which it is not needed."""
        work = next(self._steps, None)
        if work is None:
            self.walked = 1 << 61
            return []
        size = len(work) if work.size is None else work.size
        self.longest = max(self.longest, size)
        count = 1 if self._whole_steps else min(len(work), -(-size // self._pace.task_rows))
        rows, each = np.arange(len(work)), size / len(work)
        pieces = []
        if work.deadly:
            rows = np.setdiff1d(rows, work.deadly)
            alone = ((np.array([row]), work.block[[row]]) for row in work.deadly)
            pieces = [Piece(self.walked, *one, each, deaths=DEATHS_TO_BLAME - 1) for one in alone]
        if len(rows):
            parts = np.array_split(rows, min(count, len(rows))) if count > 1 else [rows]
            pieces = [
                *(Piece(self.walked, part, work.block[part], each) for part in parts),
                *pieces,
            ]
        cut = []
        for piece in pieces:
            last = dict.fromkeys(piece.blocks, 0)
            for number, until in zip(
                piece.row_blocks.tolist(), work.until[piece.rows].tolist(), strict=True
            ):
                last[number] = max(last[number], until)
            cut.append((piece, list(last.values())))
        self._pieces.append([piece for piece, _ in cut])
        self.walked += 1
        return cut

    def offer(self, piece: Piece) -> None:
        """The piece may lack nothing now."""
        if piece.state is PieceState.WAITING and not piece.missing:
            heapq.heappush(self._ready, piece)

    def next_ready(self) -> Piece | None:
        """The first waiting piece that lacks nothing."""
        while self._ready:
            piece = self._ready[0]
            if piece.state is PieceState.WAITING and not piece.missing and not piece.gone:
                return piece
            heapq.heappop(self._ready)
        return None

    def replace(self, piece: Piece, parts: list[Piece]) -> None:
        """Put pieces of the same rows in a piece's place; it is needed no more."""
        piece.gone = True
        step = self._pieces[piece.step - self.due]
        at = step.index(piece)
        step[at : at + 1] = parts

    def abandon(self) -> None:
        """No step is needed any more."""
        for step in self._pieces:
            for piece in step:
                piece.gone = True
        self._pieces.clear()

    def deliver(self) -> list[Piece] | None:
        """The pieces of the step due, if all are done; then the next is due."""
        if not self._pieces or any(piece.state is not PieceState.DONE for piece in self._pieces[0]):
            return None
        self.due += 1
        return self._pieces.popleft()

    def done(self) -> list[Piece]:
        """Pieces whose outputs are in the store."""
        return [
            piece
            for step in self._pieces
            for piece in step
            if piece.state is PieceState.DONE and piece.task >= 0
        ]

    def due_pieces(self) -> list[Piece]:
        """The pieces of the step due, none where it has not been looked at."""
        return self._pieces[0] if self._pieces else []

    def due_output_bytes(self) -> int:
        """Bytes charged for outputs of the step due."""
        return sum(piece.charged + piece.nbytes for piece in self.due_pieces())
