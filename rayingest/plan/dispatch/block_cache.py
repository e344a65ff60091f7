"""Track which blocks are in the store, which chunk needs each of them next, and how large they are.

Owns the state of every block, its charges in the ledger, and the order of eviction: the block that
is needed latest goes first (Belady, "A study of replacement algorithms", 1966), which is optimal
and can be known here, because the future is planned. Refuses to decide what is read or evicted.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rayingest.plan.dispatch.chunks import NEVER, Chunk, Key
from rayingest.plan.dispatch.ledger import Ledger

_MARGIN = 0.25
"""Added to the largest correction seen. Where every block took what the index says, none is needed.

Blocks take less than the index says where columns are left out, and more where they are compressed.
"""


class BlockState(enum.Enum):
    """Where a block is; README.md draws the changes."""

    ABSENT = enum.auto()
    READING = enum.auto()
    RESIDENT = enum.auto()
    BROKEN = enum.auto()


@dataclass(eq=False)
class Block:
    """Hold what is known of one block."""

    number: int
    state: BlockState = BlockState.ABSENT
    # Its size while RESIDENT, else 0: what the ledger is charged with for it.
    nbytes: int = 0
    # Its size when it was last seen; 0: it was never seen.
    measured_bytes: int = 0
    # From this step on, steps not taken up yet do not need it.
    expires: int = 0
    # All and only the WAITING chunks that need it, by their keys.
    waiting: dict[Key, Chunk] = field(default_factory=dict)
    # A heap that has the key of every chunk in `waiting`; others in it are stale.
    keys: list[Key] = field(default_factory=list)
    # The least key in `waiting`; NEVER where there is none.
    next_use: Key = NEVER
    # Running decodes that use it: it must not be evicted.
    pins: int = 0
    # Running reads of it, each charged by itself. While READING there is at least one.
    readers: int = 0
    # Times that it was read or is being read, but for hedges and reads that left it out.
    reads: int = 0
    # Reads that failed since it was last RESIDENT.
    tries: int = 0
    # Why it cannot be read, ever: set if and only if it is BROKEN.
    error: BaseException | None = None

    @property
    def awaited(self) -> bool:
        """Whether it is being read and not in the store yet."""
        return self.state is BlockState.READING


class Sizes(Protocol):
    """Map a block's number to its size in bytes as the index has it."""

    def __getitem__(self, number: int) -> int: ...


class BlockCache:
    """Hold the blocks that the steps taken up need, and those that decodes or reads still use."""

    def __init__(self, sizes: Sizes, ledger: Ledger) -> None:
        self._sizes, self._ledger = sizes, ledger
        # Expected size = the index's size times this; see `_observe`.
        self._correction = 1.0
        # The largest of (size seen / the index's size).
        self._largest_ratio = 0.0
        # Whether any block's size was seen.
        self.measured = False
        self.blocks: dict[int, Block] = {}
        # The largest size that a block taken up so far took, or was expected to take.
        self.largest = 0
        # Reads of blocks that had been read before.
        self.rereads = 0
        # A heap that has every ABSENT block with a waiting chunk, by a key no later than its
        # `next_use` was when it was pushed; others in it are stale.
        self._wanted: list[tuple[Key, int]] = []
        # A heap that has every block whose `expires` is beyond the horizon; others are stale.
        self._expiring: list[tuple[int, int]] = []

    def expected_bytes(self, number: int) -> int:
        """Return the block's size if it was seen, else the corrected size of the index, >= 1."""
        block = self.blocks.get(number)
        if block is not None and block.measured_bytes:
            return block.measured_bytes
        return max(1, math.ceil(self._sizes[number] * self._correction))

    def largest_expected_bytes(self) -> int:
        """Return the expected size of the largest block of the index.

        Where the index has no array of sizes, of the largest block taken up so far.
        """
        if isinstance(self._sizes, np.ndarray):
            return self.expected_bytes(int(self._sizes.argmax()))
        return self.largest

    def add(self, chunk: Chunk, expires: Iterable[int]) -> BaseException | None:
        """Make a new chunk wait for its blocks, whose `expires` are given in their order.

        Returns the error of a block that is BROKEN; then the chunk does not wait.
        """
        for number, until in zip(chunk.blocks, expires, strict=True):
            block = self.blocks.get(number)
            if block is None:
                block = self.blocks[number] = Block(number)
                self.largest = max(self.largest, self.expected_bytes(number))
            if until > block.expires:
                block.expires = until
                heapq.heappush(self._expiring, (until, number))
        return self.wait(chunk)

    def wait(self, chunk: Chunk) -> BaseException | None:
        """Make a chunk wait for its blocks, all of which are known.

        Returns the error of a block that is BROKEN; then the chunk does not wait.
        """
        blocks = [self.blocks[number] for number in chunk.blocks]
        error = next((block.error for block in blocks if block.error is not None), None)
        if error is not None:
            return error
        chunk.missing = 0
        for block in blocks:
            block.waiting[chunk.key] = chunk
            heapq.heappush(block.keys, chunk.key)
            block.next_use = block.keys[0]
            if block.state is not BlockState.RESIDENT:
                chunk.missing += 1
            if block.state is BlockState.ABSENT:
                self._want(block)
        return None

    def stop_waiting(self, chunk: Chunk) -> None:
        """Make a waiting chunk wait no longer."""
        for number in chunk.blocks:
            block = self.blocks[number]
            del block.waiting[chunk.key]
            while block.keys and block.keys[0] not in block.waiting:
                heapq.heappop(block.keys)
            block.next_use = block.keys[0] if block.keys else NEVER

    def pin(self, chunk: Chunk) -> None:
        """Keep the chunk's blocks for a decode of it that begins."""
        for number in chunk.blocks:
            self.blocks[number].pins += 1

    def unpin(self, chunk: Chunk) -> None:
        """Let go of the chunk's blocks after a decode of it."""
        for number in chunk.blocks:
            self.blocks[number].pins -= 1

    def next_wanted(self) -> Block | None:
        """Return the ABSENT block that a waiting chunk needs first."""
        while self._wanted:
            key, number = self._wanted[0]
            block = self.blocks.get(number)
            if block is not None and block.state is BlockState.ABSENT and block.waiting:
                if block.next_use == key:
                    return block
                heapq.heapreplace(self._wanted, (block.next_use, number))
            else:
                heapq.heappop(self._wanted)
        return None

    def absent_bytes(self, chunk: Chunk) -> int:
        """Return the expected size of the chunk's ABSENT blocks together."""
        absent = (n for n in chunk.blocks if self.blocks[n].state is BlockState.ABSENT)
        return sum(map(self.expected_bytes, absent))

    def awaited_by(self, number: int) -> Key:
        """Return the key of the first chunk that waits for a read of this block.

        NEVER where no chunk does, or the block is not being read.
        """
        block = self.blocks.get(number)
        return block.next_use if block is not None and block.awaited else NEVER

    def begin_read(self, block: Block) -> int:
        """Begin a read of an ABSENT block, or a further one; returns what it is charged with."""
        if block.state is BlockState.ABSENT:
            self.rereads += block.reads > 0
            block.reads += 1
        block.state = BlockState.READING
        block.readers += 1
        charge = self._ledger.cap(self.expected_bytes(block.number))
        self._ledger.begin_read(charge)
        return charge

    def end_read(self, number: int, charge: int) -> Block | None:
        """End a read of a block, however it ended; returns the block if it is still READING."""
        self._ledger.end_read(charge)
        block = self.blocks.get(number)
        if block is None:
            return None
        block.readers -= 1
        return block if block.awaited else None

    def arrive(self, block: Block, nbytes: int) -> list[Chunk]:
        """Make a block RESIDENT; returns the chunks that miss no block now."""
        self._ledger.add_block(nbytes)
        block.state, block.nbytes, block.tries = BlockState.RESIDENT, nbytes, 0
        self._observe(block, nbytes)
        for chunk in block.waiting.values():
            chunk.missing -= 1
        return [chunk for chunk in block.waiting.values() if not chunk.missing]

    def break_off(self, block: Block, error: BaseException) -> list[Chunk]:
        """Make a block BROKEN; returns the chunks that waited for it, which wait no longer."""
        self.remove(block)
        block.state, block.error = BlockState.BROKEN, error
        chunks = list(block.waiting.values())
        for chunk in chunks:
            self.stop_waiting(chunk)
        return chunks

    def remove(self, block: Block) -> None:
        """Make a block ABSENT: it was evicted or lost, or its reads failed."""
        if block.state is BlockState.RESIDENT:
            for chunk in block.waiting.values():
                chunk.missing += 1
        self._ledger.remove_block(block.nbytes)
        block.state, block.nbytes = BlockState.ABSENT, 0
        if block.waiting:
            self._want(block)

    def leave_out(self, block: Block, nbytes: int = 0) -> None:
        """Take back a read of a READING block that left it out; `nbytes` is its size if known."""
        if nbytes:
            self._observe(block, nbytes)
        if not block.readers:  # else a hedge may still bring it
            block.reads -= 1
            self.rereads -= block.reads > 0
            self.remove(block)

    def evictable(self, key: Key) -> list[Block]:
        """Return the RESIDENT blocks without pins needed later than `key`, the latest first."""
        free = [
            (block.next_use, block.number)
            for block in self.blocks.values()
            if block.next_use > key and block.state is BlockState.RESIDENT and not block.pins
        ]
        free.sort(reverse=True)
        return [self.blocks[number] for _, number in free]

    def expired(self, horizon: int) -> list[int]:
        """Return blocks that no step from `horizon` on needs; each is returned at least once."""
        numbers = []
        while self._expiring and self._expiring[0][0] <= horizon:
            number = heapq.heappop(self._expiring)[1]
            if number in self.blocks:
                numbers.append(number)
        return numbers

    def forget(self, number: int, horizon: int) -> int:
        """Forget a block that nothing uses and no step from `horizon` on needs.

        Returns the bytes that it has in the store, which are to be released; else 0.
        """
        block = self.blocks.get(number)
        if block is None or block.waiting or block.pins or block.readers:
            return 0
        if block.expires > horizon:
            return 0
        del self.blocks[number]
        self._ledger.remove_block(block.nbytes)
        return block.nbytes

    def restart(self, expires: int) -> None:
        """Forget all waiting chunks and all failures. Blocks in the store or being read stay.

        They stay until `expires`, a step of the new start: a start near the last one finds its
        blocks again.
        """
        self._wanted.clear()
        unused = {BlockState.ABSENT, BlockState.BROKEN}
        self.blocks = {
            number: block
            for number, block in self.blocks.items()
            if block.state not in unused or block.pins or block.readers
        }
        self._expiring = [(expires, number) for number in self.blocks]
        for block in self.blocks.values():
            block.waiting.clear()
            block.keys.clear()
            block.next_use, block.expires = NEVER, expires
            block.tries = 0
            if block.error is not None:  # a decode or another read of it runs
                block.error = None
                block.state = BlockState.READING if block.readers else BlockState.ABSENT

    def validate(self, horizon: int) -> None:
        """Assert what holds of blocks by themselves; `State.validate` adds chunks and tasks."""
        assert self._ledger.resident == sum(block.nbytes for block in self.blocks.values())
        wanted = {number for _, number in self._wanted}
        expiring = set(self._expiring)
        for number, block in self.blocks.items():
            assert block.number == number
            assert block.next_use == min(block.waiting, default=NEVER)
            assert set(block.waiting) <= set(block.keys)
            assert min(block.pins, block.readers, block.reads) >= 0
            assert block.readers or not block.awaited
            assert (block.nbytes > 0) == (block.state is BlockState.RESIDENT)
            assert (block.error is not None) == (block.state is BlockState.BROKEN)
            if block.waiting:
                assert block.state is not BlockState.BROKEN
                assert block.state is not BlockState.ABSENT or number in wanted
            assert block.expires <= horizon or (block.expires, number) in expiring

    def _observe(self, block: Block, nbytes: int) -> None:
        """Take in a block's size, and correct what is expected of those not seen yet."""
        block.measured_bytes = nbytes
        ratio = nbytes / max(1, int(self._sizes[block.number]))
        self._largest_ratio = max(self._largest_ratio, ratio)
        expected = self._largest_ratio * (1 + _MARGIN)
        # Up to the index's size needs no margin: the index may be exact.
        self._correction = expected if self._largest_ratio > 1 else min(1.0, expected)
        if not self.measured:
            # Until now `largest` was the index's figure: it is corrected, but never upwards.
            self.largest = math.ceil(self.largest * min(1.0, self._correction))
        self.measured = True
        self.largest = max(self.largest, nbytes)

    def _want(self, block: Block) -> None:
        heapq.heappush(self._wanted, (block.next_use, block.number))
