"""The blocks in the object store that this process has references to, and the decoders that keep them at hand.

Handing a block to a task costs a good part of a millisecond, and many tasks take samples from it: so a decoder keeps
what it was given until it is told to let go. What it keeps takes room in the store, given up here or not: so these
books tell since when some decoder has not let go of something.

Calls nobody and decides nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rayingest.plan.dispatch import events as ev

Holder = str
"""The name of a decoder."""


@dataclass(eq=False)
class _Stored:
    """`serial` is never used twice, where a block's number is, when it is read again. `given`: who may have it at hand;
    `kept`: those of them who surely do. `dropped`: when it was given up.
    """

    number: int
    serial: int
    ref: Any
    node: str
    given: set[Holder] = field(default_factory=set)
    kept: set[Holder] = field(default_factory=set)
    dropped: float | None = None


@dataclass(frozen=True)
class Parcel:
    """What a call to a decoder says of blocks: the serials it works on, those that come along (as `refs`, in the same
    order), and those to let go of first.
    """

    holder: Holder
    serials: tuple[int, ...] = ()
    coming: tuple[int, ...] = ()
    refs: tuple[Any, ...] = ()
    leaving: tuple[int, ...] = ()


class Holdings:
    """The books of one stream. `now` is any clock's time."""

    def __init__(self) -> None:
        self._serials = itertools.count()
        self._by_number: dict[int, _Stored] = {}
        self._by_serial: dict[
            int, _Stored
        ] = {}  # also those given up, as long as somebody may have them
        self._dropped: dict[
            int, _Stored
        ] = {}  # these alone, in the order in which they were given up
        self._leaving: dict[Holder, list[int]] = {}  # what to tell them with the next call

    def add(self, number: int, ref: Any, node: str) -> None:
        """A block came into the store, from a reader on this node."""
        stored = _Stored(number, next(self._serials), ref, node)
        self._by_number[number] = self._by_serial[stored.serial] = stored

    def read_on(self, node: str) -> tuple[int, ...]:
        """The blocks in the store that were read there."""
        return tuple(number for number, block in self._by_number.items() if block.node == node)

    def given_to(self, holder: Holder) -> tuple[int, ...]:
        """The blocks in the store that this decoder was sent, so that its node may have a copy."""
        return tuple(number for number, block in self._by_number.items() if holder in block.given)

    def pack(self, holder: Holder, numbers: Sequence[int]) -> Parcel:
        """What a task on these blocks must be given; to be settled when the call has ended."""
        blocks = [self._by_number[number] for number in numbers]
        new = [block for block in blocks if holder not in block.kept]
        for block in new:
            block.given.add(holder)
        return Parcel(
            holder,
            tuple(block.serial for block in blocks),
            tuple(block.serial for block in new),
            tuple(block.ref for block in new),
            tuple(self._leaving.pop(holder, ())),
        )

    def letters(self, but: Collection[Holder] = ()) -> list[Parcel]:
        """What is to be told, one parcel for each decoder but those who will be told otherwise; to be settled too."""
        holders = [holder for holder in self._leaving if holder not in but]
        return [Parcel(holder, leaving=tuple(self._leaving.pop(holder))) for holder in holders]

    def settle(self, parcel: Parcel, arrived: bool) -> None:
        """A call ended; unless it `arrived`, it is not known what the decoder has heard of it."""
        holder = parcel.holder
        if not arrived:
            if parcel.leaving:
                self._leaving.setdefault(holder, []).extend(parcel.leaving)
            for block in map(self._by_serial.get, parcel.serials):
                if block is not None:
                    block.kept.discard(holder)
            return
        for serial in parcel.leaving:
            self._left(serial, holder)
        for serial in parcel.coming:
            block = self._by_serial.get(serial)
            if block is not None:
                block.kept.add(holder)
            else:  # given up, and let go of before it came
                self._leaving.setdefault(holder, []).append(serial)

    def drop(self, numbers: Iterable[int], now: float) -> tuple[int, ...]:
        """Give these up; returns those that were there."""
        gone = [
            block for number in numbers if (block := self._by_number.pop(number, None)) is not None
        ]
        for block in gone:
            block.ref, block.dropped = None, now
            if not block.given:
                del self._by_serial[block.serial]
                continue
            self._dropped[block.serial] = block
            for holder in block.given:
                self._leaving.setdefault(holder, []).append(block.serial)
        return tuple(block.number for block in gone)

    def lose(self, holder: Holder) -> None:
        """A decoder is gone, with all it had."""
        self._leaving.pop(holder, None)
        for block in list(self._by_serial.values()):
            block.kept.discard(holder)
            self._left(block.serial, holder)

    def lingers_since(self) -> float | None:
        """When the first of those blocks was given up that some decoder may still have."""
        return next((block.dropped for block in self._dropped.values()), None)

    def clear(self) -> None:
        """Give up everything."""
        for kept in (self._by_number, self._by_serial, self._dropped, self._leaving):
            kept.clear()

    def _left(self, serial: int, holder: Holder) -> None:
        """The holder has it no more."""
        block = self._by_serial.get(serial)
        if block is not None and holder in block.given:
            block.given.discard(holder)
            if not block.given and block.dropped is not None:
                del self._by_serial[serial], self._dropped[serial]


@dataclass(frozen=True)
class Arrived:
    """A block that came into the store of a node."""

    ref: Any
    node: str


class Answers:
    """One stream's. `blocks`, by the read's number, are there while dispatch is being told of them; `outputs`, by the
    decode's number and the part's, until they are taken or discarded: no task is named that has none left.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, dict[int, Arrived]] = {}
        self.outputs: dict[int, dict[int, Any]] = {}

    def settle(self, discards: Iterable[ev.Discard]) -> list[tuple[int, Arrived]]:
        """Let go of what dispatch discards, in as many parts as it likes; returns the other blocks that came."""
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
        """What a decode made for an output, which is then given up here."""
        parts = self.outputs[output.task]
        part = parts.pop(output.index)
        if not parts:
            del self.outputs[output.task]
        return part

    def read_on(self, node: str) -> list[int]:
        """The blocks that just came from a reader there."""
        return [
            number
            for kept in self.blocks.values()
            for number, block in kept.items()
            if block.node == node
        ]

    def lose(self, numbers: Collection[int]) -> list[int]:
        """These blocks are gone; returns those that had just come."""
        return [
            number
            for kept in self.blocks.values()
            for number in numbers
            if kept.pop(number, None) is not None
        ]
