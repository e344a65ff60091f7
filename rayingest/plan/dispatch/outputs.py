"""What decodes made and the store holds. All that a task makes is one object, which goes with the last of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class _Object:
    """`parts`: how many of its parts are still of use; `whole`: all that it ever had are."""

    nbytes: int
    parts: int
    whole: bool


class Outputs:
    """The objects, by the task that made them; `nbytes` is what they take together."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._objects: dict[int, _Object] = {}

    def add(self, task: int, parts: Sequence[int], useless: int) -> int:
        """A task made parts of these sizes, some of them useless; returns the bytes to give up, where all are."""
        if useless == len(parts):
            return sum(parts)
        self._objects[task] = _Object(sum(parts), len(parts) - useless, not useless)
        self.nbytes += sum(parts)
        return 0

    def release(self, task: int) -> int:
        """A part of the task is of no use any more; returns the bytes to give up, the object's where it is the last."""
        made = self._objects[task]
        made.parts, made.whole = made.parts - 1, False
        if made.parts:
            return 0
        del self._objects[task]
        self.nbytes -= made.nbytes
        return made.nbytes

    def is_whole(self, task: int) -> bool:
        """Whether all that the task made is of use still."""
        return self._objects[task].whole

    def clear(self) -> list[int]:
        """Nothing is of any use any more; returns the objects' sizes."""
        sizes = [made.nbytes for made in self._objects.values()]
        self._objects.clear()
        self.nbytes = 0
        return sizes
