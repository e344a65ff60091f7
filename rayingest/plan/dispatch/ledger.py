"""Charge every byte of a stream in the object store against `max_bytes`, part by part.

Owns the sums, the objects that decodes put into the store, and the cap on a new charge. Refuses to
choose what is evicted: `eviction` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass
class _OutputObject:
    """One object in the store: all outputs of one decode task. It goes with its last part."""

    nbytes: int
    # Parts that a chunk still needs; at least one.
    parts: int
    # Whether a chunk needs every part that it ever had.
    whole: bool


class Ledger:
    """Hold the five parts of `max_bytes`; their sum is what one stream takes in the store."""

    def __init__(self, max_bytes: int, inline_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._inline_bytes = inline_bytes
        # The charges of all running read tasks. A read is charged before its blocks arrive.
        self.reading = 0
        # The sizes of all blocks in the store, and of no other.
        self.resident = 0
        # The charges of all running decode tasks. A decode is charged before its outputs arrive.
        self.decoding = 0
        # The sizes of the objects in `_objects`.
        self.outputs = 0
        # Bytes released that the store has not reported as freed.
        self.released = 0
        # The objects of which a chunk that is DONE needs a part, by the task that made them.
        self._objects: dict[int, _OutputObject] = {}

    @property
    def blocks(self) -> int:
        """Bytes of blocks: `reading` and `resident`."""
        return self.reading + self.resident

    @property
    def decoded(self) -> int:
        """Bytes of decoded rows: `decoding` and `outputs`."""
        return self.decoding + self.outputs

    @property
    def total(self) -> int:
        """Bytes charged now: the five parts together."""
        return self.blocks + self.decoded + self.released

    def cap(self, expected: int) -> int:
        """Return what to charge a task that expects this many bytes: no more than are free."""
        return min(expected, max(0, self.max_bytes - self.total))

    def exceeds_by(self, nbytes: int) -> int:
        """Return by how many bytes a further charge would exceed `max_bytes`; <= 0: it fits."""
        return self.total + nbytes - self.max_bytes

    def begin_read(self, charge: int) -> None:
        """Charge a block of a read task that begins."""
        self.reading += charge

    def end_read(self, charge: int) -> None:
        """Take back the charge of a block of a read task that ended."""
        self.reading -= charge

    def add_block(self, nbytes: int) -> None:
        """Charge a block that is in the store."""
        self.resident += nbytes

    def remove_block(self, nbytes: int) -> None:
        """Take back the charge of a block that is no longer in the store."""
        self.resident -= nbytes

    def begin_decode(self, charge: int) -> None:
        """Charge a chunk of a decode task that begins."""
        self.decoding += charge

    def end_decode(self, charge: int) -> None:
        """Take back the charge of a chunk of a decode task that ended."""
        self.decoding -= charge

    def add_outputs(self, task: int, sizes: Sequence[int], useless: int) -> int:
        """Charge the object of a decode: parts of these sizes, `useless` of them not needed.

        Returns the bytes to release at once: all of them if no part is needed, else 0.
        """
        if useless == len(sizes):
            return sum(sizes)
        self._objects[task] = _OutputObject(sum(sizes), len(sizes) - useless, not useless)
        self.outputs += sum(sizes)
        return 0

    def remove_output(self, task: int) -> int:
        """Take one needed part from a task's object.

        Returns the bytes to release: the whole object's if it was the last part, else 0.
        """
        held = self._objects[task]
        held.parts, held.whole = held.parts - 1, False
        if held.parts:
            return 0
        del self._objects[task]
        self.outputs -= held.nbytes
        return held.nbytes

    def is_whole(self, task: int) -> bool:
        """Return whether a chunk needs every part that the task's object ever had."""
        return self._objects[task].whole

    def clear_outputs(self) -> list[int]:
        """Remove all objects; returns their sizes, in the order in which they came."""
        sizes = [held.nbytes for held in self._objects.values()]
        self._objects.clear()
        self.outputs = 0
        return sizes

    def release(self, nbytes: int) -> bool:
        """Charge bytes as released; returns whether the store must report when they are free.

        An object of less than `inline_bytes` does not lie in the store, and is free at once.
        """
        lingers = nbytes >= self._inline_bytes
        self.released += nbytes if lingers else 0
        return lingers

    def free(self, nbytes: int) -> None:
        """Take back the charge of released bytes that the store has back."""
        self.released -= nbytes

    def validate(self) -> None:
        """Assert what holds of the ledger by itself."""
        assert min(self.reading, self.resident, self.decoding, self.released) >= 0
        assert self.outputs == sum(held.nbytes for held in self._objects.values())
        assert all(held.parts > 0 for held in self._objects.values())

    def validate_outputs(self, parts: Mapping[int, int]) -> None:
        """Assert that the objects have just these numbers of needed parts, by task."""
        assert {task: held.parts for task, held in self._objects.items()} == dict(parts)
