"""Kind "stream": records without an end; step s is the s-th batch of records.

Owns which rows of a step are a rank's, and that a bad record's replacement comes from the same
block. A block holds a rank's rows of one step. Readers find the records; where they begin is known
from the offsets.
"""

from __future__ import annotations

import numpy as np

from rayingest.plan.order.kinds import OrderRequest
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.offsets import Offsets
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import ALONE, Kind, Planner, RankSlice, Rows, Steps, bounds
from rayingest.plan.order.sequence import Located
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import Subset
from rayingest.plan.protocols import ENDLESS

VERSION = 1
"""Of the order of records: one of each partition in turn."""


class StreamSequence:
    """The sequence of the only pass: step after step. `first`: a block's first row in its step."""

    manifest = Manifest.join("", [], [], [], [])
    subsets: tuple[Subset, ...] = ()

    def __init__(self, offsets: Offsets, batch: int, first: int) -> None:
        self._offsets, self._batch, self._first = offsets, batch, first

    def locate(self, passes: int | np.ndarray, positions: np.ndarray) -> Located:
        step, row = np.divmod(positions, self._batch)
        block = np.array([self._offsets.block(one) for one in step.tolist()], np.int64)
        return Located(block, row - self._first, positions)


class StreamBatcher:
    """Step s has rows [s G, (s + 1) G) of the stream, and a window of a rank's rows alone."""

    most_steps = 1

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def steps(self, pass_number: int) -> Steps:
        return Steps(ENDLESS * self._batch, self._batch, "drop")

    def rows(self, pass_number: int, step: int, count: int, numbers: np.ndarray) -> Rows:
        position = step * self._batch + numbers
        expires, begin, end = (
            np.full(len(numbers), value) for value in (step + 1, position[0], position[-1] + 1)
        )
        return Rows(position, np.ones(len(numbers), bool), expires, begin, end)

    def block_expires(self, samples: StepSamples, row: int, position: int, step: int) -> int | None:
        return None

    def reads_per_block(self, world_size: int) -> float:
        return float(world_size)


def share(batch: int, ranks: RankSlice) -> tuple[int, int]:
    """Return the rows [begin, end) of a step that a rank's blocks hold.

    That is one row for a rank without rows: it gives the fields of its empty batches.
    """
    begin, end = bounds(batch, ranks.rank, ranks.world_size)
    return (begin, end) if begin < end else (0, 1)


def plan(offsets: Offsets, batch: int, seed: int, ranks: RankSlice = ALONE) -> Planner:
    """Return a rank's planner of a stream. `seed` keys the samples' random numbers."""
    order = Order(ENDLESS, batch, "drop", None, 1, 1)
    begin, _ = share(batch, ranks)
    sequence, batcher = StreamSequence(offsets, batch, begin), StreamBatcher(batch)
    kind = Kind("stream", VERSION, identity={"seed": seed})
    return Planner(kind, order, sequence, batcher, ranks)


def build(request: OrderRequest) -> Planner:
    """Return the planner of a request with `offsets`."""
    batch, seed = request.parameters["batch"], request.parameters["seed"]
    return plan(request.options["offsets"], batch, seed, request.ranks)
