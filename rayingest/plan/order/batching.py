"""Which rows of the global batch are a rank's, and which places of which lanes they are.

Owns the tail policies (`drop`, `pad`, `short`) and the ranks' slices; knows no data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.order import Order


@dataclass(frozen=True)
class Share:
    """A rank's rows of one step: lane and position in the lane (int64), and whether the row is valid (bool).

    Rows that are not valid repeat a sample of the same lane.
    """

    lane: np.ndarray
    position: np.ndarray
    valid: np.ndarray

    def __len__(self) -> int:
        return len(self.lane)


def check_ranks(batch: int, rank: int, world_size: int, uneven: bool) -> None:
    """Raises ConfigError unless this rank of this world can take its slice of every global batch."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of world size {world_size}: ranks are 0 to world size - 1")
    if batch % world_size and not uneven:
        fits = [w for w in range(1, min(batch, 4096) + 1) if batch % w == 0]
        near = sorted(sorted(fits, key=lambda w: (abs(w - world_size), w))[:6])
        raise ConfigError(
            f"a global batch of {batch} does not divide over {world_size} ranks; world sizes near that do: "
            f"{', '.join(map(str, near))}; or take uneven=True, and ranks differ by at most one row"
        )


def bounds(rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """The slice [begin, end) of `rows` rows that is this rank's."""
    return rank * rows // world_size, (rank + 1) * rows // world_size


def share(order: Order, step: int, rank: int, world_size: int) -> Share:
    """This rank's rows of `step` (0 <= step < order.steps)."""
    if step < order.full_steps or order.partial == "pad":
        begin, end = bounds(order.batch, rank, world_size)
        rows = np.arange(begin, end, dtype=np.int64)
        lane = rows // order.lane_batch
        position = step * order.lane_batch + rows - lane * order.lane_batch
        return (
            _repeat_past_end(order, lane, position)
            if step >= order.full_steps
            else _own(lane, position)
        )
    left = order.lane_samples - order.full_steps * order.lane_batch
    begin, end = bounds(order.tail, rank, world_size)
    lane = np.repeat(np.arange(order.lanes, dtype=np.int64), left)[begin:end]
    before = np.cumsum(left) - left
    position = (
        order.full_steps * order.lane_batch + np.arange(begin, end, dtype=np.int64) - before[lane]
    )
    return _own(lane, position)


def _own(lane: np.ndarray, position: np.ndarray) -> Share:
    return Share(lane, position, np.ones(len(lane), bool))


def _repeat_past_end(order: Order, lane: np.ndarray, position: np.ndarray) -> Share:
    """A position p >= n of a lane of n samples repeats position n - 1 - ((p - n) mod n)."""
    samples = order.lane_samples[lane]
    past = position >= samples
    return Share(
        lane, np.where(past, samples - 1 - (position - samples) % samples, position), ~past
    )
