"""Which blocks are in the store, who needs each of them next, and what they cost.

Owns the bytes charged for blocks and the choice of what to give up: of two blocks, the one needed later (Belady, "A
study of replacement algorithms", 1966), which can be known here because the future is planned. Decides nothing itself.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rayingest.plan.dispatch.chunks import NEVER, Key, Piece

_MARGIN = 0.25
"""Added to what blocks took so far, unless that is what the index said: less where columns are left out, for example,
more where they were compressed.
"""


class BlockState(enum.Enum):
    """Where a block is."""

    ABSENT = enum.auto()
    READING = enum.auto()
    RESIDENT = enum.auto()
    BROKEN = enum.auto()


@dataclass(eq=False)
class Block:
    """`uses`: all and only the waiting pieces that need it; `next_use` the first, found by the heap `keys`, in which
    those that wait no longer are left. `pins`: decodes that hold it.

    `until`: from this step on, steps not yet walked do not need it. `nbytes` is its size while resident, `known` once
    it was read; `readers` are the reads of it under way, each charged by itself.
    """

    number: int
    state: BlockState = BlockState.ABSENT
    nbytes: int = 0
    known: int = 0
    until: int = 0
    uses: dict[Key, Piece] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)
    next_use: Key = NEVER
    pins: int = 0
    readers: int = 0
    reads: int = 0
    tries: int = 0
    error: BaseException | None = None

    @property
    def awaited(self) -> bool:
        """Whether a read of it is under way, and it is not there yet."""
        return self.state is BlockState.READING


class Sizes(Protocol):
    """Bytes by a block's number."""

    def __getitem__(self, number: int) -> int: ...


class Residency:
    """The blocks that the walked part of the plan speaks of."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._ratio, self._largest_ratio = (
            1.0,
            0.0,
        )  # of sizes to the index's figures, expected and seen
        self.measured = False
        self.blocks: dict[int, Block] = {}
        self.held = 0
        self.largest = 0
        self.rereads = 0
        self._wanted: list[tuple[Key, int]] = []
        self._expiring: list[tuple[int, int]] = []

    def size(self, number: int) -> int:
        """Bytes that this block takes, or is expected to take at most: the index's figure, corrected by those seen."""
        block = self.blocks.get(number)
        if block is not None and block.known:
            return block.known
        return max(1, math.ceil(self._sizes[number] * self._ratio))

    def most(self) -> int:
        """Bytes that the largest block is expected to take: of all, or where these are not known, of those so far."""
        return (
            self.size(int(self._sizes.argmax()))
            if isinstance(self._sizes, np.ndarray)
            else self.largest
        )

    def need(self, piece: Piece, until: Iterable[int]) -> BaseException | None:
        """A new piece waits for its blocks; `until` has one entry a block.

        Returns the error of a block that is known to be broken; then the piece does not wait.
        """
        for number, last in zip(piece.blocks, until, strict=True):
            block = self.blocks.get(number)
            if block is None:
                block = self.blocks[number] = Block(number)
                self.largest = max(self.largest, self.size(number))
            if last > block.until:
                block.until = last
                heapq.heappush(self._expiring, (last, number))
        return self.wait(piece)

    def wait(self, piece: Piece) -> BaseException | None:
        """The piece is waiting (again): its blocks are in use by it.

        Returns the error of a block that is known to be broken; then the piece does not wait.
        """
        blocks = [self.blocks[number] for number in piece.blocks]
        error = next((block.error for block in blocks if block.error is not None), None)
        if error is not None:
            return error
        key = piece.key
        piece.missing = 0
        for block in blocks:
            block.uses[key] = piece
            heapq.heappush(block.keys, key)
            block.next_use = block.keys[0]
            if block.state is not BlockState.RESIDENT:
                piece.missing += 1
            if block.state is BlockState.ABSENT:
                self._want(block)
        return None

    def stop_waiting(self, piece: Piece) -> None:
        """The piece no longer waits."""
        for number in piece.blocks:
            block = self.blocks[number]
            uses, keys = block.uses, block.keys
            del uses[piece.key]
            while keys and keys[0] not in uses:
                heapq.heappop(keys)
            block.next_use = keys[0] if keys else NEVER

    def pin(self, piece: Piece) -> None:
        """A decode of the piece begins, and holds its blocks."""
        for number in piece.blocks:
            self.blocks[number].pins += 1

    def unpin(self, piece: Piece) -> None:
        """The decode ended."""
        for number in piece.blocks:
            self.blocks[number].pins -= 1

    def next_wanted(self) -> Block | None:
        """The absent block that is needed first."""
        while self._wanted:
            key, number = self._wanted[0]
            block = self.blocks.get(number)
            if block is not None and block.state is BlockState.ABSENT and block.uses:
                if block.next_use == key:
                    return block
                heapq.heapreplace(self._wanted, (block.next_use, number))
            else:
                heapq.heappop(self._wanted)
        return None

    def wanted_bytes(self, piece: Piece) -> int:
        """Bytes of the piece's blocks that nobody reads yet."""
        return sum(self.size(n) for n in piece.blocks if self.blocks[n].state is BlockState.ABSENT)

    def awaited_by(self, number: int) -> Key:
        """The first piece that waits for a read of this block that is under way; NEVER where there is none."""
        block = self.blocks.get(number)
        return block.next_use if block is not None and block.awaited else NEVER

    def begin_read(self, block: Block, room: int) -> int:
        """A read of the block begins; returns what it is charged with, its expected size, or the `room` for it."""
        if block.state is BlockState.ABSENT:
            self.rereads += block.reads > 0
            block.reads += 1
        block.state = BlockState.READING
        block.readers += 1
        charge = min(self.size(block.number), room)
        self.held += charge
        return charge

    def end_read(self, number: int, charge: int) -> Block | None:
        """A read of the block ended, however; returns the block where it is still awaited."""
        self.held -= charge
        block = self.blocks.get(number)
        if block is None:
            return None
        block.readers -= 1
        return block if block.state is BlockState.READING else None

    def arrive(self, block: Block, nbytes: int) -> list[Piece]:
        """A block is in the store; returns the pieces that now lack nothing."""
        self.held += nbytes
        block.state, block.nbytes, block.tries = BlockState.RESIDENT, nbytes, 0
        self._see(block, nbytes)
        for piece in block.uses.values():
            piece.missing -= 1
        return [piece for piece in block.uses.values() if not piece.missing]

    def break_off(self, block: Block, error: BaseException) -> list[Piece]:
        """A block cannot be read, ever; returns the pieces that waited for it and no longer wait."""
        self.vanish(block)
        block.state, block.error = BlockState.BROKEN, error
        pieces = list(block.uses.values())
        for piece in pieces:
            self.stop_waiting(piece)
        return pieces

    def vanish(self, block: Block) -> None:
        """A block is no longer in the store, or its reads came to nothing, or it was given up."""
        if block.state is BlockState.RESIDENT:
            for piece in block.uses.values():
                piece.missing += 1
        self.held -= block.nbytes
        block.state, block.nbytes = BlockState.ABSENT, 0
        if block.uses:
            self._want(block)

    def _see(self, block: Block, nbytes: int) -> None:
        block.known = nbytes
        self._largest_ratio = max(
            self._largest_ratio, nbytes / max(1, int(self._sizes[block.number]))
        )
        expected = self._largest_ratio * (1 + _MARGIN)
        self._ratio = expected if self._largest_ratio > 1 else min(1.0, expected)
        if not self.measured:
            self.largest = math.ceil(self.largest * min(1.0, self._ratio))
        self.measured = True
        self.largest = max(self.largest, nbytes)

    def put_off(self, block: Block, nbytes: int = 0) -> None:
        """A read ended before it came to this block, or had no room for what it takes."""
        if nbytes:
            self._see(block, nbytes)
        block.reads -= 1
        self.rereads -= block.reads > 0
        if not block.readers:
            self.vanish(block)

    def victims(self, key: Key) -> list[Block]:
        """Resident blocks that nothing holds and that are needed later than `key`, the latest first."""
        free = [
            (block.next_use, block.number)
            for block in self.blocks.values()
            if block.next_use > key and block.state is BlockState.RESIDENT and not block.pins
        ]
        free.sort(reverse=True)
        return [self.blocks[number] for _, number in free]

    def expired(self, walked: int) -> list[int]:
        """Blocks that may have become useless because the walk came this far; each is named at least once."""
        numbers = []
        while self._expiring and self._expiring[0][0] <= walked:
            number = heapq.heappop(self._expiring)[1]
            if number in self.blocks:
                numbers.append(number)
        return numbers

    def forget(self, number: int, walked: int) -> int:
        """Forget the block if nothing will need it any more; returns its bytes if it was in the store until now."""
        block = self.blocks.get(number)
        if block is None or block.uses or block.pins or block.until > walked or block.readers:
            return 0
        del self.blocks[number]
        self.held -= block.nbytes
        return block.nbytes

    def restart(self, until: int) -> None:
        """No piece waits any more. Blocks in the store or on their way stay until the new walk has come to `until`."""
        self._wanted.clear()
        gone = {BlockState.ABSENT, BlockState.BROKEN}
        self.blocks = {
            n: block
            for n, block in self.blocks.items()
            if block.state not in gone or block.pins or block.readers
        }
        self._expiring = [(until, number) for number in self.blocks]
        for block in self.blocks.values():
            block.uses.clear()
            block.keys.clear()
            block.next_use, block.until = NEVER, until

    def _want(self, block: Block) -> None:
        heapq.heappush(self._wanted, (block.next_use, block.number))
