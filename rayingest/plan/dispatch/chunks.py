"""Define the chunk: rows of one step that one task decodes together.

A chunk is the unit that dispatch plans with. A large step is cut into several chunks, so that
several decoders share it; chunks of several small steps go into one task.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np

Key = tuple[int, int]
"""A chunk's place in the order: (step, first row)."""
FIRST: Key = (-1, 0)
"""Before every chunk."""
NEVER: Key = (1 << 62, 0)
"""After every chunk."""
CRASHES_TO_SPLIT = 2
"""A chunk that ended this many workers is decoded in halves from then on."""
CRASHES_TO_BLAME = 4
"""A single row that ended this many workers is blamed. `CRASHES_TO_SPLIT` suffice where the worker
was killed for its time: no accident makes a decode that late, and each try takes long.
"""


class ChunkState(enum.Enum):
    """Where a chunk is on its way; README.md draws the changes."""

    WAITING = enum.auto()
    DECODING = enum.auto()
    DONE = enum.auto()


@dataclass(eq=False, slots=True)
class Chunk:
    """Hold the rows of one chunk and how far they are. Chunks compare by their keys."""

    step: int
    # Places in the rank's batch, ascending, never empty; and the block of each of them.
    rows: np.ndarray
    row_blocks: np.ndarray
    # What each row costs to decode: the cost of the step over its samples.
    row_cost: float
    state: ChunkState = ChunkState.WAITING
    # While WAITING: how many of `blocks` are not in the store. Else stale.
    missing: int = 0
    # Tasks that decode it now, and the sum of what they are charged with for it. The first that
    # answers wins. A chunk that is DECODING and not obsolete has at least one, or is made to wait.
    attempts: int = 0
    charge: int = 0
    # The size that a decoder reported when the output exceeded its budget; 0: none did.
    measured_bytes: int = 0
    # Tries that failed through no fault of the data, and workers that ended while they had it.
    tries: int = 0
    crashes: int = 0
    # Whether one of these workers was killed because a decode took too long.
    timed_out: bool = False
    # Its output was evicted once. It is decoded in a task of its own from then on: parts of one
    # task are one object, whose bytes come free together.
    alone: bool = False
    # No step needs it: it was delivered, replaced, or belongs to an earlier start.
    obsolete: bool = False
    # While DONE with an output: the task and part that made it and its bytes; else -1, -1, 0.
    task: int = -1
    index: int = -1
    output_bytes: int = 0
    # While DONE without an output: the error to deliver in its step's place.
    error: BaseException | None = None
    key: Key = field(init=False)
    # The blocks of its rows, ascending, each once.
    blocks: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.step, int(self.rows[0])
        self.blocks = tuple(sorted(set(self.row_blocks.tolist())))

    def __lt__(self, other: Chunk) -> bool:
        return self.key < other.key

    @property
    def cost(self) -> float:
        """What it costs to decode, in rows."""
        return self.row_cost * len(self.rows)

    @property
    def suspect(self) -> bool:
        """Whether it may have ended a worker; then no other chunk shares its task and the blame."""
        return self.crashes > 0

    @property
    def orphaned(self) -> bool:
        """Whether it is needed and was begun, but no task decodes it any more."""
        return self.state is ChunkState.DECODING and not self.attempts and not self.obsolete

    def select(self, chosen: np.ndarray, crashes: int) -> Chunk:
        """Return a new waiting chunk of the chosen rows (bool[len(rows)], at least one)."""
        return Chunk(
            self.step,
            self.rows[chosen],
            self.row_blocks[chosen],
            self.row_cost,
            tries=self.tries,
            crashes=crashes,
            timed_out=self.timed_out,
            alone=self.alone,
        )

    def finish(self, error: BaseException | None = None) -> None:
        """Make the chunk DONE, with an error in its output's place if there is one."""
        self.state, self.error = ChunkState.DONE, error

    def validate(self) -> None:
        """Assert what holds of a chunk in the step queue by itself."""
        assert not self.obsolete
        assert len(self.rows) > 0
        assert self.attempts >= 0
        assert self.charge >= 0
        assert self.attempts or not self.charge
        assert self.attempts or self.state is not ChunkState.DECODING
        assert (self.task >= 0) == (self.index >= 0)
        assert self.task < 0 or self.state is ChunkState.DONE
        assert self.task < 0 or self.error is None
        assert self.output_bytes == 0 or self.task >= 0
        assert self.error is None or self.state is ChunkState.DONE
