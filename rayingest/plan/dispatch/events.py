"""Define what dispatch takes and gives: events name facts, commands name deeds.

Neither knows Ray. Steps are counted from the last `Start`, across the ends of epochs. Blocks have
the manifest's numbers. Dispatch numbers its tasks, and uses no number twice.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayingest.errors import DataError

FindReplacement = Callable[[int, int, DataError, bool], tuple[int, int] | DataError]
"""Find another sample for a row: (step, row, error, unreadable) -> (block, expires) or error.

`error` is why the row's present sample is bad; `unreadable` says that its whole block is. Returns
the block of the sample that takes its place and the block's `expires` as in `StepWork`, or the
error to deliver where no sample is left.
"""


class IllegalEventError(ValueError):
    """An event that cannot happen in dispatch's present state; the state is as before the event."""


class WorkerFailure(enum.Enum):
    """How dispatch lost a worker; the value is the reason in words, for messages."""

    CRASHED = "it exited unexpectedly"
    TIMED_OUT = "it was killed because a decode took longer than decode_timeout"
    OUT_OF_MEMORY = "it was killed because its node ran low on memory"
    NODE_LOST = "its node cannot be reached"
    REMOVED = "it was removed because fewer decoders are needed"

    @property
    def blames_task(self) -> bool:
        """Whether no other cause is known, so that a sample of the task may have ended it."""
        return self in (WorkerFailure.CRASHED, WorkerFailure.TIMED_OUT)

    @property
    def counts_as_try(self) -> bool:
        """Whether its tasks used up a try: otherwise they could be done again for ever."""
        return self.blames_task or self is WorkerFailure.OUT_OF_MEMORY


@dataclass(frozen=True)
class StepWork:
    """Describe one step to make.

    `block`: the block of each sample (int64[n]). `expires`: for each of them the step from
    which on the steps not yet taken up cannot need the block (int64[n]). `cost`: what the step
    costs to decode, in rows; None: its number of samples. Packed rows cost alike, however many
    samples they hold. `deadly`: rows whose samples have ended workers before. `pass_end`: the first
    step after the step's pass, where the loop may end with this pass; None: it goes on in any case.
    """

    block: np.ndarray
    expires: np.ndarray
    cost: int | None = None
    deadly: tuple[int, ...] = ()
    pass_end: int | None = None

    def __len__(self) -> int:
        return len(self.block)


@dataclass(frozen=True)
class Part:
    """Name rows of one step that one task decodes: their places in the rank's batch, ascending."""

    step: int
    rows: np.ndarray


# Events


@dataclass(frozen=True)
class Start:
    """The consumer wants these steps, in order; all steps asked for before are obsolete.

    `find_replacement` replaces bad samples; without it the error of a bad sample is delivered in
    the place of its step.
    """

    steps: Iterator[StepWork]
    find_replacement: FindReplacement | None = None


@dataclass(frozen=True)
class LimitRaised:
    """`max_bytes` is this from now on: no less than before."""

    max_bytes: int


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
    failure: WorkerFailure


@dataclass(frozen=True)
class ReadDone:
    """A read put blocks into the store; `nbytes` has their sizes, in the order of the command.

    The blocks behind them were left out. `left_out` has the sizes of the first of these, each of
    which alone would exceed the read's budget; the sizes of the rest are unknown, or they do not
    exist yet. Blocks left out are still to be read.
    """

    task: int
    nbytes: tuple[int, ...]
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReadFailed:
    """A read ended without its blocks. `final`: the data is at fault, another try cannot help."""

    task: int
    error: BaseException
    final: bool


@dataclass(frozen=True)
class PartDone:
    """The result of one part of a decode: its bytes in the store, or the error in its place.

    `bad`: rows left out because their samples are bad, as (place in the part, error), ascending.
    `left_out`: the part would exceed the decode's budget, or comes after one that would. It is not
    in the store; `nbytes` is what it would take, 0 where that is not known.
    """

    nbytes: int
    error: BaseException | None = None
    bad: tuple[tuple[int, DataError], ...] = ()
    left_out: bool = False


@dataclass(frozen=True)
class DecodeDone:
    """A decode ended, with one result a part, in the order of the command.

    `seconds` is how long it worked; dispatch sizes later tasks by it.
    """

    task: int
    parts: tuple[PartDone, ...]
    seconds: float


@dataclass(frozen=True)
class DecodeFailed:
    """A decode ended without a result, through no fault of its data."""

    task: int
    error: BaseException


@dataclass(frozen=True)
class BlocksLost:
    """These blocks are no longer in the store."""

    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Freed:
    """The store has this many released bytes back."""

    nbytes: int


@dataclass(frozen=True)
class Overdue:
    """A task takes much longer than others of its kind. May come any number of times for a task."""

    task: int


@dataclass(frozen=True)
class BatchTaken:
    """The consumer took a batch, so another may be delivered."""


Event = (
    Start
    | LimitRaised
    | WorkerJoined
    | WorkerLost
    | ReadDone
    | ReadFailed
    | DecodeDone
    | DecodeFailed
    | BlocksLost
    | Freed
    | Overdue
    | BatchTaken
)

# Commands


@dataclass(frozen=True)
class Read:
    """Have a worker read these blocks into the store, while they take at most `budget` bytes.

    `step` is the first step that needs one of them, None where no step taken up does.
    """

    task: int
    worker: str
    blocks: tuple[int, ...]
    budget: int
    step: int | None = None


@dataclass(frozen=True)
class Decode:
    """Have a worker decode these parts, while their outputs take at most `budget` bytes.

    `blocks` are exactly those that the parts' samples are in. `suspect`: every part of the task has
    ended a decoder before.
    """

    task: int
    worker: str
    parts: tuple[Part, ...]
    blocks: tuple[int, ...]
    budget: int
    suspect: bool = False


@dataclass(frozen=True)
class Drop:
    """Release these blocks."""

    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Discard:
    """Release items that a task brought: blocks of a read, or numbers of parts of a decode."""

    task: int
    items: tuple[int, ...]


@dataclass(frozen=True)
class ReportFreed:
    """Send `Freed` once the store has back this many bytes that other commands release."""

    nbytes: int


@dataclass(frozen=True)
class Output:
    """Name where some rows of a step are: in part `index` of a decode task."""

    task: int
    index: int
    rows: np.ndarray


@dataclass(frozen=True)
class Deliver:
    """Give this step to the consumer and release its outputs; or raise `error`, of `row`."""

    step: int
    outputs: tuple[Output, ...]
    error: BaseException | None = None
    row: int = -1


@dataclass(frozen=True)
class Fail:
    """End the stream: it cannot go on, because of `reason`.

    `blocks` are those concerned, `error` is the last cause where there is one, `row` (step, row)
    the row at fault where it is known.
    """

    reason: str
    blocks: tuple[int, ...]
    error: BaseException | None = None
    row: tuple[int, int] | None = None


Command = Read | Decode | Drop | Discard | ReportFreed | Deliver | Fail
