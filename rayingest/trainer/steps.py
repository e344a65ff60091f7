"""Show a loader as torch's DataLoader shows itself: a data set, and a sampler of its indices.

`accelerate.skip_first_batches` makes a DataLoader of both, and leaves out the sampler's first
indices. An index is a position, and any position costs nothing to reach, so a batch that is skipped
is neither read nor decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rayingest.trainer.prefetch import Position, Values


class EpochLoops(Protocol):
    """The part of a loader that a sampler and a data set of its steps use."""

    def __len__(self) -> int:
        """Return the number of steps of the current epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next loop."""

    def _next_epoch(self) -> tuple[int, int]:
        """Return the epoch of the next loop, and the number of steps of that epoch."""

    def _iter_at(self, position: Position) -> Iterator[Values]:
        """Create the iterator of a loop that begins at this position."""

    def _end_epoch(self, epoch: int) -> None:
        """Let the next loop begin after this epoch, unless it does already."""


class StepSampler:
    """Yields the positions of a loader's next loop, from the start of the epoch to its end.

    It begins at the start of the epoch also where a state within the epoch was loaded: the number
    of batches to skip counts from there.
    """

    def __init__(self, loader: EpochLoops) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[Position]]:
        epoch, steps = self._loader._next_epoch()
        for step in range(steps):
            yield [(epoch, step)]
        self._loader._end_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the loader's next loop."""
        self._loader.set_epoch(epoch)


class StepBatches:
    """The batches of a loader by position. Any position may come first; the others follow in order.

    It has no length: a framework that asks for one wants the number of samples.
    """

    def __init__(self, loader: EpochLoops) -> None:
        self._loader = loader
        self._loop: Iterator[Values] = iter(())
        self._due: Position | None = None

    def __getitems__(self, positions: list[Position]) -> Values:
        """Return the batch at the one position of the list, as the loader yields it."""
        (position,) = positions
        if position != self._due:
            self._loop = self._loader._iter_at(position)
        self._due = None  # after an error, the loop begins again
        batch = next(self._loop)
        self._due = (position[0], position[1] + 1)
        return batch
