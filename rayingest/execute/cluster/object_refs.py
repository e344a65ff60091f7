"""Keep the references to objects in the store: blocks, and the results of reads and decodes.

Owns every object reference of a stream. Calls no actor and decides nothing.

Sending a block to a task costs a good part of a millisecond, and many tasks take samples from the
same block. So a decoder keeps the blocks it received until a message releases them. A block that a
decoder keeps occupies the store, even after this process has dropped it. So the table records when
the oldest block was dropped that a decoder may still keep.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rayingest.plan.dispatch import events as ev

Holder = str
"""The name of a decoder."""


@dataclass(frozen=True)
class BlockMessage:
    """The part of a call to a decoder that concerns blocks, all named by their serials.

    Attributes:
        uses: the blocks that the task needs.
        sent: the blocks whose data comes with the call, in the order of its arguments.
        released: the blocks that the decoder must drop first.
    """

    uses: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()
    released: tuple[int, ...] = ()


@dataclass(eq=False)
class _Stored:
    """A block in the store, or one that was dropped and that a decoder may still keep.

    Attributes:
        number: the block's number; a block that is read again has it again.
        serial: names this copy of the block; never used twice.
        holders: the decoders that may have the block.
        confirmed: the holders that surely have it, so a task need not send it.
        dropped: when the reference was dropped; None while it is kept.
    """

    number: int
    serial: int
    ref: Any
    node: str
    holders: set[Holder] = field(default_factory=set)
    confirmed: set[Holder] = field(default_factory=set)
    dropped: float | None = None


class BlockRefs:
    """The table of block references of one stream. `now` is the time of any clock."""

    def __init__(self) -> None:
        self._serials = itertools.count()
        self._by_number: dict[int, _Stored] = {}
        # Also the dropped blocks that a decoder may still keep.
        self._by_serial: dict[int, _Stored] = {}
        # The dropped blocks alone, the earliest first.
        self._dropped: dict[int, _Stored] = {}
        # Serials that the next message to a decoder must release.
        self._to_release: dict[Holder, list[int]] = {}

    def add(self, number: int, ref: Any, node: str) -> None:
        """Add a block that a reader on this node put into the store."""
        stored = _Stored(number, next(self._serials), ref, node)
        self._by_number[number] = self._by_serial[stored.serial] = stored

    def read_on(self, node: str) -> tuple[int, ...]:
        """Return the blocks in the store that were read on this node."""
        return tuple(number for number, block in self._by_number.items() if block.node == node)

    def sent_to(self, holder: Holder) -> tuple[int, ...]:
        """Return the stored blocks that were sent to this decoder: its node may have a copy."""
        return tuple(number for number, block in self._by_number.items() if holder in block.holders)

    def message(self, holder: Holder, numbers: Sequence[int]) -> tuple[BlockMessage, list[Any]]:
        """Return the message of a task on these blocks, and the references to send with it.

        Call `settle` when the call has ended.
        """
        blocks = [self._by_number[number] for number in numbers]
        new = [block for block in blocks if holder not in block.confirmed]
        for block in new:
            block.holders.add(holder)
        message = BlockMessage(
            tuple(block.serial for block in blocks),
            tuple(block.serial for block in new),
            tuple(self._to_release.pop(holder, ())),
        )
        return message, [block.ref for block in new]

    def release_messages(self) -> list[tuple[Holder, BlockMessage]]:
        """Return a message for each decoder that must release blocks. Settle each of them."""
        due, self._to_release = self._to_release, {}
        return [(holder, BlockMessage(released=tuple(serials))) for holder, serials in due.items()]

    def settle(self, holder: Holder, message: BlockMessage, arrived: bool) -> None:
        """Record that a call has ended; unless it `arrived`, the decoder may not have seen it."""
        if not arrived:
            if message.released:
                self._to_release.setdefault(holder, []).extend(message.released)
            for block in map(self._by_serial.get, message.uses):
                if block is not None:
                    block.confirmed.discard(holder)
            return
        for serial in message.released:
            self._remove_holder(serial, holder)
        for serial in message.sent:
            block = self._by_serial.get(serial)
            if block is not None:
                block.confirmed.add(holder)
            else:  # dropped, and released by all holders, before this copy arrived
                self._to_release.setdefault(holder, []).append(serial)

    def drop(self, numbers: Iterable[int], now: float) -> tuple[int, ...]:
        """Drop the references to these blocks; return the blocks that there were."""
        gone = [
            block for number in numbers if (block := self._by_number.pop(number, None)) is not None
        ]
        for block in gone:
            block.ref, block.dropped = None, now
            if not block.holders:
                del self._by_serial[block.serial]
                continue
            self._dropped[block.serial] = block
            for holder in block.holders:
                self._to_release.setdefault(holder, []).append(block.serial)
        return tuple(block.number for block in gone)

    def remove_decoder(self, holder: Holder) -> None:
        """Remove a decoder that has ended, and with it all that it kept."""
        self._to_release.pop(holder, None)
        for block in list(self._by_serial.values()):
            block.confirmed.discard(holder)
            self._remove_holder(block.serial, holder)

    def lingers_since(self) -> float | None:
        """Return when the oldest block that a decoder may still keep was dropped; None if none."""
        return next((block.dropped for block in self._dropped.values()), None)

    def clear(self) -> None:
        """Drop everything."""
        for kept in (self._by_number, self._by_serial, self._dropped, self._to_release):
            kept.clear()

    def _remove_holder(self, serial: int, holder: Holder) -> None:
        block = self._by_serial.get(serial)
        if block is not None and holder in block.holders:
            block.holders.discard(holder)
            if not block.holders and block.dropped is not None:
                del self._by_serial[serial], self._dropped[serial]


@dataclass(frozen=True)
class NewBlock:
    """A block that has just come into the store of a node."""

    ref: Any
    node: str


class Results:
    """The results of one stream's reads and decodes, until dispatch has decided what to keep.

    Attributes:
        blocks: by task and block number; here only while dispatch handles the result.
        outputs: by task and part number, until dispatch takes or discards them. A task without
            remaining outputs has no entry.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, dict[int, NewBlock]] = {}
        self.outputs: dict[int, dict[int, Any]] = {}

    def settle(self, discards: Iterable[ev.Discard]) -> list[tuple[int, NewBlock]]:
        """Drop what dispatch discards; return the other new blocks and forget them here."""
        for discard in discards:
            kept = self.blocks.get(discard.task) or self.outputs.get(discard.task) or {}
            for item in discard.items:
                kept.pop(item, None)
            if not kept:
                self.outputs.pop(discard.task, None)
        blocks = [block for kept in self.blocks.values() for block in kept.items()]
        self.blocks.clear()
        return blocks

    def take(self, output: ev.Output) -> Any:
        """Return the value of an output, and drop it here."""
        parts = self.outputs[output.task]
        part = parts.pop(output.index)
        if not parts:
            del self.outputs[output.task]
        return part

    def read_on(self, node: str) -> list[int]:
        """Return the new blocks that were read on this node."""
        return [
            number
            for kept in self.blocks.values()
            for number, block in kept.items()
            if block.node == node
        ]

    def lose(self, numbers: Collection[int]) -> list[int]:
        """Drop blocks that are lost; return the ones among them that were new."""
        return [
            number
            for kept in self.blocks.values()
            for number in numbers
            if kept.pop(number, None) is not None
        ]
