"""What reads and decodes brought, from their answers until dispatch has said what is of use, and taken it.

Owns the references of outputs, and for the moment those of blocks. Calls nobody and decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from rayingest.plan.dispatch import events as ev


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
