"""Hold the parts of one stream's dispatch, and the moves that change several of them together.

Owns the consistency of the parts (`validate` states it) and the commands not yet handed out. Each
move takes a chunk or a block from one state to another in every part that knows it. Refuses to
decide when: `handlers` moves by what happened, `dispatch` by what is to be done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeGuard

import numpy as np

from rayingest.errors import DataError
from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.block_cache import BlockCache, BlockState, Sizes
from rayingest.plan.dispatch.chunks import Chunk, ChunkState, Key
from rayingest.plan.dispatch.ledger import Ledger
from rayingest.plan.dispatch.limits import Limits
from rayingest.plan.dispatch.step_queue import Pace, StepQueue
from rayingest.plan.dispatch.workers import Workers

_COUNTERS = (
    "reads",
    "blocks_read",
    "decodes",
    "retries",
    "hedges",
    "blocks_lost",
    "blocks_dropped",
)


class State:
    """Hold one stream's ledger, block cache, step queue and workers."""

    def __init__(self, sizes: Sizes, limits: Limits, row_bytes: float) -> None:
        self.limits = limits
        self.ledger = Ledger(limits.max_bytes, limits.inline_bytes)
        self.cache = BlockCache(sizes, self.ledger)
        self.pace = Pace(row_bytes, limits.task_seconds, limits.first_task_rows)
        self.queue = StepQueue(iter(()), self.pace, limits.whole_steps)
        self.workers = Workers()
        # Batches delivered since the last start that the consumer has not taken.
        self.untaken = 0
        # Whether `Fail` was ordered: nothing is begun or delivered from then on.
        self.failed = False
        # Finds samples in the place of bad ones; None: their errors are delivered.
        self.find_replacement: ev.FindReplacement | None = None
        # How often each of these was done or happened; they only grow.
        self.counters = dict.fromkeys(_COUNTERS, 0)
        # Commands ordered since the last `take_commands`, in order.
        self._commands: list[ev.Command] = []

    # Commands

    def order(self, command: ev.Command) -> None:
        """Add a command."""
        self._commands.append(command)

    def take_commands(self) -> list[ev.Command]:
        """Return the commands ordered since the last call, in order."""
        commands, self._commands = self._commands, []
        return commands

    def fail(self, command: ev.Fail) -> None:
        """Order the end of the stream, once."""
        if not self.failed:
            self.failed = True
            self.order(command)

    def discard(self, task: int, items: Iterable[int]) -> None:
        """Order that items of a task are released, if any; their bytes are charged elsewhere."""
        if numbers := tuple(items):
            self.order(ev.Discard(task, numbers))

    def release(self, nbytes: int) -> None:
        """Charge bytes as released, until the store has them back."""
        if self.ledger.release(nbytes):
            self.order(ev.ReportFreed(nbytes))

    # Blocks

    def drop(self, sizes: Mapping[int, int]) -> None:
        """Order that blocks of these sizes are released; the cache charges them no more."""
        if sizes:
            self.order(ev.Drop(tuple(sizes)))
            for nbytes in sizes.values():
                self.release(nbytes)

    def evict(self, sizes: Mapping[int, int]) -> None:
        """Evict resident blocks of these sizes."""
        for number in sizes:
            self.cache.remove(self.cache.blocks[number])
        self.counters["blocks_dropped"] += len(sizes)
        self.drop(sizes)

    def drop_useless(self, numbers: Iterable[int]) -> None:
        """Forget those of these blocks that nothing needs any more, and drop them."""
        horizon = self.queue.horizon
        sizes = {number: self.cache.forget(number, horizon) for number in dict.fromkeys(numbers)}
        self.drop({number: nbytes for number, nbytes in sizes.items() if nbytes})

    # Chunks

    def wait(self, chunk: Chunk, expires: Iterable[int] | None = None) -> None:
        """Make a chunk wait for its blocks.

        `expires` is given for a chunk that is new (`BlockCache.add`). Where one of its blocks
        is broken, the rows in it are replaced, or else the chunk is done, with the block's error.
        """
        error = self.cache.wait(chunk) if expires is None else self.cache.add(chunk, expires)
        if error is None:
            chunk.state = ChunkState.WAITING
            self.queue.offer(chunk)
        elif self.is_replaceable(error):
            blocks = self.cache.blocks
            broken = {number for number in chunk.blocks if blocks[number].error is error}
            bad = {i: error for i, n in enumerate(chunk.row_blocks.tolist()) if n in broken}
            rest = self.replace_rows(chunk, bad, unreadable=True)
            if rest is not None:
                self.wait(rest)
        else:
            chunk.finish(error)

    def is_replaceable(self, error: BaseException) -> TypeGuard[DataError]:
        """Return whether another sample may take the place of one with this error."""
        if self.find_replacement is None:
            return False
        return isinstance(error, DataError) and not error.transient

    def replace_rows(
        self, chunk: Chunk, bad: Mapping[int, DataError], *, unreadable: bool = False
    ) -> Chunk | None:
        """Replace a chunk by up to three kinds: its good rows, replacements, and errors.

        `bad` has the error of each bad row by its place in the chunk, which waits for nothing.
        Returns the chunk of the good rows, None where there are none; the caller moves it on. A
        chunk of replacements waits for their blocks. A row without a replacement is a chunk that is
        done with the error.
        """
        assert self.find_replacement is not None
        good = np.ones(len(chunk.rows), bool)
        good[list(bad)] = False
        rest = chunk.select(good, chunk.crashes) if good.any() else None
        others = [] if rest is None else [rest]
        found: dict[int, tuple[int, int]] = {}
        for place, error in bad.items():
            row = int(chunk.rows[place])
            replacement = self.find_replacement(chunk.step, row, error, unreadable)
            if isinstance(replacement, DataError):
                no_block = np.zeros(0, np.int64)
                lost = Chunk(chunk.step, np.array([row]), no_block, chunk.row_cost)
                lost.finish(replacement)
                others.append(lost)
            else:
                found[row] = replacement
        if not found:
            self.queue.replace(chunk, others)
            return rest
        blocks = np.array([block for block, _ in found.values()])
        replacements = Chunk(chunk.step, np.array([*found]), blocks, chunk.row_cost)
        self.queue.replace(chunk, [*others, replacements])
        latest: dict[int, int] = {}
        for block, until in found.values():
            latest[block] = max(until, latest.get(block, 0))
        self.wait(replacements, [latest[block] for block in replacements.blocks])
        return rest

    def split(self, chunk: Chunk, parts: list[Chunk]) -> None:
        """Replace a waiting chunk by new chunks of the same rows, which wait."""
        self.cache.stop_waiting(chunk)
        self.queue.replace(chunk, parts)
        for part in parts:
            self.wait(part)

    def begin_attempt(self, chunk: Chunk, expected: int) -> int:
        """Begin a decode of a chunk; returns what it is charged with.

        That is the expected size of its output, or what is free where that is less: a chunk that
        does not fit is tried in the room there is (rule 4).
        """
        charge = self.ledger.cap(expected)
        chunk.attempts += 1
        chunk.charge += charge
        self.ledger.begin_decode(charge)
        self.cache.pin(chunk)
        return charge

    def end_attempt(self, chunk: Chunk, charge: int) -> None:
        """End a decode of a chunk, however it ended."""
        chunk.attempts -= 1
        chunk.charge -= charge
        self.ledger.end_decode(charge)
        self.cache.unpin(chunk)

    def release_output(self, chunk: Chunk) -> None:
        """Take a done chunk's output from the ledger; its bytes go with the last of its task."""
        self.release(self.ledger.remove_output(chunk.task))
        chunk.task, chunk.index, chunk.output_bytes = -1, -1, 0

    def redo(self, chunk: Chunk) -> None:
        """Evict a done chunk's output; the chunk waits again, to be decoded in a task by itself."""
        self.discard(chunk.task, (chunk.index,))
        self.release_output(chunk)
        chunk.alone = True
        self.wait(chunk, [chunk.step + 1] * len(chunk.blocks))

    # Invariants

    def validate(self) -> None:
        """Assert every invariant that the parts state. Takes time by all that is in the state."""
        self.ledger.validate()
        self.queue.validate()
        self.workers.validate()
        assert self.untaken >= 0
        if self.failed:
            return  # an event may have ended half-way: nothing goes on from here
        self.cache.validate(self.queue.horizon)
        self._validate_reads()
        self._validate_chunks()

    def _validate_reads(self) -> None:
        """Every running read is charged, and counted at its blocks."""
        tasks = [task for task in self.workers.tasks.values() if task.blocks]
        assert self.ledger.reading == sum(sum(task.charges) for task in tasks)
        readers = Counter(number for task in tasks for number in task.blocks)
        assert set(readers) <= set(self.cache.blocks)
        for number, block in self.cache.blocks.items():
            assert block.readers == readers[number]

    def _validate_chunks(self) -> None:
        """Blocks, tasks and the ledger agree on every chunk."""
        blocks = self.cache.blocks
        waiting: dict[int, dict[Key, Chunk]] = {number: {} for number in blocks}
        outputs: Counter[int] = Counter()
        for chunk in self.queue.chunks():
            outputs.update([chunk.task] if chunk.task >= 0 else [])
            if chunk.state is ChunkState.WAITING:
                for number in chunk.blocks:
                    waiting[number][chunk.key] = chunk
                resident = [blocks[n].state is BlockState.RESIDENT for n in chunk.blocks]
                assert chunk.missing == resident.count(False)
        pins: Counter[int] = Counter()
        attempts: Counter[int] = Counter()
        charges: Counter[int] = Counter()
        for task in self.workers.tasks.values():
            if task.chunks:
                for chunk, charge in zip(task.chunks, task.charges, strict=True):
                    pins.update(chunk.blocks)
                    attempts[id(chunk)] += 1
                    charges[id(chunk)] += charge
        assert self.ledger.decoding == charges.total()
        for number, block in blocks.items():
            assert block.waiting == waiting[number]
            assert block.pins == pins[number]
        for chunk in self.queue.chunks():
            assert chunk.attempts == attempts[id(chunk)]
            assert chunk.charge == charges[id(chunk)]
        self.ledger.validate_outputs(outputs)
