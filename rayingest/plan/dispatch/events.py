"""What dispatch is told and what it orders. Events name facts, commands name deeds; neither knows Ray.

Steps are counted from the last `Start`, across epoch ends; blocks are numbered as in the manifest; tasks are numbered
by dispatch, no number twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayingest.errors import DataError
from rayingest.plan.dispatch.failures import WorkerFailure

FindReplacement = Callable[[int, int, DataError, bool], tuple[int, int] | DataError]
"""(step, row, error, unreadable): the sample that this row has now is bad, or, where `unreadable`, its block.

Gives the block of the sample that takes its place, and its `until` as in `StepWork`; or the error where none is left.
"""


@dataclass(frozen=True)
class StepWork:
    """One step to make: the block that each of its samples is in (int64[n]), and the step at which no step that is yet
    to come can need that block (int64[n]).

    `size` is what its cost is told in, the samples where nothing is said: packed rows cost alike, however many samples
    they hold. `deadly`: rows whose samples have ended workers before.
    """

    block: np.ndarray
    until: np.ndarray
    size: int | None = None
    deadly: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.block)


@dataclass(frozen=True)
class Part:
    """Rows of one step (their numbers in the rank's batch, ascending), decoded together."""

    step: int
    rows: np.ndarray


# Events


@dataclass(frozen=True)
class Start:
    """Make these steps, in order; whatever was under way before is of no use any more.

    Bad samples are replaced as `replacement` says; without it, their errors stand in their steps' places.
    """

    steps: Iterator[StepWork]
    replacement: FindReplacement | None = None


@dataclass(frozen=True)
class WorkerJoined:
    """A worker takes tasks, up to `slots` at a time."""

    worker: str
    role: Literal["reader", "decoder"]
    slots: int


@dataclass(frozen=True)
class WorkerLost:
    """A worker is gone, with all its tasks."""

    worker: str
    loss: WorkerFailure


@dataclass(frozen=True)
class ReadDone:
    """A read put its blocks into the store; their sizes, in the order of the command.

    Those that come next were `left`, which take so much: all would go beyond the room that the read was given. They are
    still to be read, and so are others behind them, where there are no more yet.
    """

    task: int
    nbytes: tuple[int, ...]
    left: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReadFailed:
    """A read ended without its blocks. `final`: the data is at fault, reading again would not help."""

    task: int
    error: BaseException
    final: bool


@dataclass(frozen=True)
class PartDone:
    """One part of a decode: bytes in the store, or the error that stands in its place.

    Rows whose samples are `bad` are not in it: their places in the part, ascending, and what is wrong with each. A part
    that is `left` would go beyond the room that the decode was given, or comes after one that would: it is not there,
    and `nbytes` is what it takes, 0 where that is not known.
    """

    nbytes: int
    error: BaseException | None = None
    bad: tuple[tuple[int, DataError], ...] = ()
    left: bool = False


@dataclass(frozen=True)
class DecodeDone:
    """A decode ended; one result a part, in the order of the command. `seconds` of work is for sizing later tasks."""

    task: int
    parts: tuple[PartDone, ...]
    seconds: float


@dataclass(frozen=True)
class DecodeFailed:
    """A decode ended without any result, through no fault of its data."""

    task: int
    error: BaseException


@dataclass(frozen=True)
class BlocksLost:
    """These blocks are no longer in the store."""

    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Freed:
    """The store has so many bytes back that had been given up."""

    nbytes: int


@dataclass(frozen=True)
class Overdue:
    """A task takes much longer than its like. May be told again and again."""

    task: int


@dataclass(frozen=True)
class Taken:
    """The consumer took a batch, so that there is room for another."""


Event = (
    Start
    | WorkerJoined
    | WorkerLost
    | ReadDone
    | ReadFailed
    | DecodeDone
    | DecodeFailed
    | BlocksLost
    | Freed
    | Overdue
    | Taken
)

# Commands


@dataclass(frozen=True)
class Read:
    """Have a reader put these blocks into the store, as far as they take no more than `nbytes` together. `step`: that
    needs one of them first, None where none does now.
    """

    task: int
    worker: str
    blocks: tuple[int, ...]
    nbytes: int
    step: int | None = None


@dataclass(frozen=True)
class Decode:
    """Have a decoder make these parts, which take samples from exactly these blocks, as far as they take no more than
    `nbytes` together. `suspect`: all of them have ended decoders before.
    """

    task: int
    worker: str
    parts: tuple[Part, ...]
    blocks: tuple[int, ...]
    nbytes: int
    suspect: bool = False


@dataclass(frozen=True)
class Drop:
    """Give up these blocks."""

    blocks: tuple[int, ...]


@dataclass(frozen=True)
class GiveUp:
    """So many bytes are given up by the other commands; the store frees them in its own time: tell when it has."""

    nbytes: int


@dataclass(frozen=True)
class Discard:
    """What a task brought of these (blocks of a read, numbers of parts of a decode) is not needed any more."""

    task: int
    items: tuple[int, ...]


@dataclass(frozen=True)
class Output:
    """Where some rows of a step are: part `index` of a decode task."""

    task: int
    index: int
    rows: np.ndarray


@dataclass(frozen=True)
class Deliver:
    """Hand this step to the consumer and give up the outputs; or raise the error, of this row, in its place."""

    step: int
    outputs: tuple[Output, ...]
    error: BaseException | None = None
    row: int = -1


@dataclass(frozen=True)
class Fail:
    """Give up: this cannot go on. `blocks` say where, `error` is the last cause, if there is one; `row`, with its step
    first, is the one at fault where that is known.
    """

    reason: str
    blocks: tuple[int, ...]
    error: BaseException | None = None
    row: tuple[int, int] | None = None


Command = Read | Decode | Drop | GiveUp | Discard | Deliver | Fail
