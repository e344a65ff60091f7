"""Pieces: the rows of a step that are decoded together.

The unit that dispatch plans with. A big step is cut into several pieces, so that several decoders share it; several
small steps' pieces travel in one task.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np

Key = tuple[int, int]
"""A piece's place in the order: (step, first row)."""
FIRST: Key = (-1, 0)
NEVER: Key = (1 << 62, 0)
DEATHS_TO_PART = 2
DEATHS_TO_BLAME = 4
"""Workers that end while they have a piece until it is tried in halves, and until a single row is to blame. No accident
makes a decode late, and waiting for it takes long: there `DEATHS_TO_PART` do for blame.
"""


class PieceState(enum.Enum):
    """Where a piece is on its way."""

    WAITING = enum.auto()
    DECODING = enum.auto()
    DONE = enum.auto()


@dataclass(eq=False, slots=True)
class Piece:
    """Rows of one step that are decoded together: their numbers in the rank's batch, and the block of each.

    `missing` counts those of its blocks that are not in the store while it is waiting. `attempts` are the tasks under
    way that make it, and `charged` what their outputs are charged with; the first answer wins. `nbytes` is its output
    when done, `known` what it was found to take where there was no room for it. `gone`: no step needs it any more.
    `deaths`: workers that ended while they had it; `late`: one of them was ended because it took too long. `alone`: its
    output was given up for room, and is not made together with others again, which may be in its way. Pieces compare by
    their place in the order. What it costs goes by its `size`: so much for `each` row.
    """

    step: int
    rows: np.ndarray
    row_blocks: np.ndarray
    each: float
    state: PieceState = PieceState.WAITING
    missing: int = 0
    attempts: int = 0
    charged: int = 0
    nbytes: int = 0
    known: int = 0
    tries: int = 0
    deaths: int = 0
    late: bool = False
    alone: bool = False
    gone: bool = False
    task: int = -1
    index: int = -1
    error: BaseException | None = None
    key: Key = field(init=False)
    blocks: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.step, int(self.rows[0])
        self.blocks = tuple(sorted(set(self.row_blocks.tolist())))

    def __lt__(self, other: Piece) -> bool:
        return self.key < other.key

    @property
    def size(self) -> float:
        return self.each * len(self.rows)

    @property
    def suspect(self) -> bool:
        """Whether it may have ended a worker: then it is decoded alone, so that nothing else is blamed for it."""
        return self.deaths > 0

    @property
    def abandoned(self) -> bool:
        """Whether nobody makes it any more, though it was begun and is needed."""
        return self.state is PieceState.DECODING and not self.attempts and not self.gone

    def part(self, chosen: np.ndarray, deaths: int = 0) -> Piece:
        """A new piece of the chosen rows (bool, one a row)."""
        rows, blocks = self.rows[chosen], self.row_blocks[chosen]
        made = Piece(
            self.step, rows, blocks, self.each, tries=self.tries, deaths=deaths, late=self.late
        )
        made.alone = self.alone
        return made
