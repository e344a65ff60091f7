"""Divide the rows of a pass into steps, and the rows of a step between ranks.

Owns the tail policies (`drop`, `pad`, `short`) and the ranks' slices. Knows no data: a row may be a
sample, a packed row, or a batch of limited size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayingest.errors import ConfigError

PARTIALS = ("drop", "pad", "short")


@dataclass(frozen=True)
class Steps:
    """The steps of a pass of `rows` rows, `batch` a step.

    `partial` decides about the rows after the last full step. "drop": they are left out. "pad":
    one more step, filled up with repeats. "short": one more step of these rows alone.
    """

    rows: int
    batch: int
    partial: str

    @property
    def full(self) -> int:
        """The number of steps in which every row is its own."""
        return self.rows // self.batch

    @property
    def tail(self) -> int:
        """The number of rows after the full steps."""
        return self.rows % self.batch

    @property
    def count(self) -> int:
        """The number of steps, the same on every rank."""
        return self.full + (self.partial != "drop" and self.tail > 0)

    def rows_of(self, step: int) -> int:
        """Return the number of rows of a step over all ranks, repeats included."""
        return self.batch if step < self.full or self.partial == "pad" else self.tail


def repeat_backwards(
    position: np.ndarray, count: int | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Map positions past the end to repeats: the last ones, backwards, round and round.

    Of `count` items, position p >= count repeats item count - 1 - ((p - count) mod count). Returns
    the items (int64), and whether each is itself and no repeat (bool).
    """
    valid = position < count
    return np.where(valid, position, count - 1 - (position - count) % count), valid


def bounds(rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return a rank's slice [begin, end) of `rows` rows."""
    return rank * rows // world_size, (rank + 1) * rows // world_size


def check_ranks(batch: int, rank: int, world_size: int, uneven: bool) -> None:
    """Raise ConfigError unless this rank of this world can take its slice of every global batch."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of world size {world_size}: ranks are 0 to world size - 1")
    if batch % world_size and not uneven:
        fits = [w for w in range(1, min(batch, 4096) + 1) if batch % w == 0]
        near = sorted(sorted(fits, key=lambda w: (abs(w - world_size), w))[:6])
        raise ConfigError(
            f"a global batch of {batch} does not divide over {world_size} ranks; "
            f"world sizes that divide it: {', '.join(map(str, near))}; "
            "or pass uneven=True, and ranks differ by at most one row"
        )


def reads_per_block(batch: int, lanes: int, world_size: int) -> float:
    """Return how often a block is read in a pass: more than once where ranks share a lane."""
    rows, touched = batch // lanes, 0
    for rank in range(world_size):
        begin, end = bounds(batch, rank, world_size)
        if end > begin:
            touched += (end - 1) // rows - begin // rows + 1
    return touched / lanes
