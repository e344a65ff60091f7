"""Hold the steps between the one due and the last one taken up, cut into chunks.

Owns how steps are cut by the pace of decoding, which chunks are ready, and the order of delivery.
Knows nothing of where blocks are: `Chunk.missing` says whether a chunk is ready.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

import numpy as np

from rayingest.plan.dispatch.chunks import CRASHES_TO_BLAME, Chunk, ChunkState
from rayingest.plan.dispatch.events import StepWork

_MAX_TASK_ROWS = 1 << 16
_ALL_STEPS = 1 << 61
"""The queue's horizon once it has taken up the last step: later than every `expires`."""


class Pace:
    """Estimate what a row costs to decode, in seconds and in bytes of output."""

    def __init__(self, row_bytes: float, task_seconds: float, first_task_rows: int) -> None:
        # Whether an output was seen; until then `_row_bytes` is a guess.
        self.measured = False
        # The largest mean of a part seen so far: the next outputs must not exceed what is charged.
        self._row_bytes = row_bytes
        # A moving mean over tasks; 0.0 before the first.
        self._row_seconds = 0.0
        self._task_seconds, self._first_task_rows = task_seconds, first_task_rows

    def observe_output(self, rows: float, nbytes: int) -> None:
        """Take in the size of a part's output."""
        self._row_bytes = max(self._row_bytes, nbytes / rows) if self.measured else nbytes / rows
        self.measured = True

    def observe_task(self, rows: float, seconds: float) -> None:
        """Take in the time of a whole task."""
        pace = seconds / rows
        self._row_seconds = pace if not self._row_seconds else 0.8 * self._row_seconds + 0.2 * pace

    def expected_bytes(self, rows: float) -> int:
        """Return how many bytes the output of this many rows is expected to take, at least 1."""
        return max(1, int(np.ceil(rows * self._row_bytes)))

    @property
    def task_rows(self) -> int:
        """Rows that a task of the wanted duration has, at least 1."""
        if not self._row_seconds:
            return self._first_task_rows
        return max(1, min(_MAX_TASK_ROWS, int(self._task_seconds / max(self._row_seconds, 1e-7))))


class StepQueue:
    """Hold the chunks of all steps from the one due up to the horizon. Steps count from 0."""

    def __init__(self, steps: Iterator[StepWork], pace: Pace, whole_steps: bool) -> None:
        self._steps, self._pace, self._whole_steps = steps, pace, whole_steps
        # The next step to deliver: the first of `_chunks`, where there is one.
        self.due = 0
        # The next step to take up; `_ALL_STEPS` once there is none.
        self.horizon = 0
        # The largest cost of a step taken up so far, in rows.
        self.max_step_cost = 0
        # Where passes end with which the loop may end, ascending: of all steps taken up but those
        # of passes that the loop has left.
        self._pass_ends: deque[int] = deque()
        # The chunks of each step from `due` to the horizon: together they have each of the step's
        # rows once, and none of them is obsolete.
        self._chunks: deque[list[Chunk]] = deque()
        # A heap that has every WAITING chunk without missing blocks; others in it are stale.
        self._ready: list[Chunk] = []

    @property
    def exhausted(self) -> bool:
        """Whether all steps are taken up."""
        return self.horizon >= _ALL_STEPS

    def take_up(self) -> list[tuple[Chunk, list[int]]]:
        """Cut the next step into chunks; returns them, each with `expires` of its blocks."""
        work = next(self._steps, None)
        if work is None:
            self.horizon = _ALL_STEPS
            return []
        cost = len(work) if work.cost is None else work.cost
        self.max_step_cost = max(self.max_step_cost, cost)
        chunks = self._cut(work, cost)
        self._chunks.append(chunks)
        ends = self._pass_ends
        if work.pass_end is not None and (not ends or ends[-1] != work.pass_end):
            ends.append(work.pass_end)
        self.horizon += 1
        return [(chunk, _latest_expiry(chunk, work)) for chunk in chunks]

    def _cut(self, work: StepWork, cost: int) -> list[Chunk]:
        """Return the chunks of a step; each row that has ended workers is one by itself."""
        count = 1 if self._whole_steps else min(len(work), -(-cost // self._pace.task_rows))
        row_cost = cost / len(work)
        rows, lone = np.arange(len(work)), list[Chunk]()
        if work.deadly:
            rows = np.setdiff1d(rows, work.deadly)
            # One more crash blames the row: a resumed run tries it again, but only once.
            lone = [
                Chunk(
                    self.horizon,
                    np.array([row]),
                    work.block[[row]],
                    row_cost,
                    crashes=CRASHES_TO_BLAME - 1,
                )
                for row in work.deadly
            ]
        if not len(rows):
            return lone
        parts = np.array_split(rows, min(count, len(rows)))
        return [*(Chunk(self.horizon, part, work.block[part], row_cost) for part in parts), *lone]

    def next_pass(self, received: int) -> range | None:
        """Return the steps of the pass after the one that the loop is in.

        The loop has `received` steps. Returns None where no step of the next pass is taken up, or
        where the loop goes on in any case.
        """
        ends = self._pass_ends
        while ends and ends[0] < received:
            ends.popleft()
        return range(ends[0], ends[1]) if len(ends) > 1 else None

    def offer(self, chunk: Chunk) -> None:
        """Put the chunk among the ready ones if it waits and no block is missing."""
        if chunk.state is ChunkState.WAITING and not chunk.missing:
            heapq.heappush(self._ready, chunk)

    def next_ready(self) -> Chunk | None:
        """Return the first waiting chunk that misses no block."""
        while self._ready:
            chunk = self._ready[0]
            waits = chunk.state is ChunkState.WAITING and not chunk.obsolete
            if waits and not chunk.missing:
                return chunk
            heapq.heappop(self._ready)
        return None

    def replace(self, chunk: Chunk, others: list[Chunk]) -> None:
        """Put other chunks of the same rows in a chunk's place; the chunk becomes obsolete."""
        chunk.obsolete = True
        chunks = self._chunks[chunk.step - self.due]
        place = chunks.index(chunk)
        chunks[place : place + 1] = others

    def abandon(self) -> None:
        """Make all chunks obsolete, and forget them."""
        for chunk in self.chunks():
            chunk.obsolete = True
        self._chunks.clear()

    def deliver(self) -> list[Chunk] | None:
        """Take the chunks of the step due if all are DONE; the next step is due then."""
        if not self._chunks or any(c.state is not ChunkState.DONE for c in self._chunks[0]):
            return None
        self.due += 1
        return self._chunks.popleft()

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over all chunks, step after step."""
        return (chunk for chunks in self._chunks for chunk in chunks)

    def with_output(self) -> list[Chunk]:
        """Return the chunks whose outputs are in the store."""
        return [chunk for chunk in self.chunks() if chunk.task >= 0]

    def due_chunks(self) -> list[Chunk]:
        """Return the chunks of the step due; none where it is not taken up."""
        return self._chunks[0] if self._chunks else []

    def due_bytes(self) -> int:
        """Return the bytes charged for outputs of the step due, decoded or being decoded."""
        return sum(chunk.charge + chunk.output_bytes for chunk in self.due_chunks())

    def validate(self) -> None:
        """Assert what holds of the queue by itself."""
        assert self.exhausted or self.due + len(self._chunks) == self.horizon
        ready = set(map(id, self._ready))
        for step, chunks in enumerate(self._chunks, self.due):
            rows = np.concatenate([chunk.rows for chunk in chunks])
            assert np.array_equal(np.sort(rows), np.arange(len(rows))), "each row is in one chunk"
            for chunk in chunks:
                chunk.validate()
                assert chunk.step == step
                waits = chunk.state is ChunkState.WAITING
                assert not waits or chunk.missing or id(chunk) in ready


def _latest_expiry(chunk: Chunk, work: StepWork) -> list[int]:
    """Return for each of the chunk's blocks the latest `expires` of its rows."""
    latest = dict.fromkeys(chunk.blocks, 0)
    untils = work.expires[chunk.rows].tolist()
    for number, until in zip(chunk.row_blocks.tolist(), untils, strict=True):
        latest[number] = max(latest[number], until)
    return list(latest.values())
