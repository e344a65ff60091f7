"""The planner: for any epoch and step, a rank's samples. A pure function with small caches inside.

Owns what the orders of all kinds have in common: epochs and passes, the ranks' slices, the tail,
and the rule for ranks without rows. It is given a *batcher*, which says at which positions of a
pass the rows of a step are, and a *sequence*, which says which sample lies at a position. Any step
can be asked for at any time; asking for steps in order, and for several at once, is cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.sequence import Sequence
from rayingest.plan.order.step_samples import Layout, StepSamples
from rayingest.plan.order.subset import Subset
from rayingest.plan.protocols import ENDLESS

REPEAT = 1 << 40
"""The r-th repeat of a sample in pass p has the random numbers of pass p + r * 2**40."""


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


@dataclass(frozen=True)
class EpochLength:
    """Which steps of which passes an epoch is: passes of `pass_steps` in epochs of `epoch_steps`.

    As a rule an epoch is a pass. With another length, epochs follow each other along the passes,
    and an epoch may end inside a pass.
    """

    pass_steps: int
    epoch_steps: int

    @classmethod
    def resolve(
        cls, steps: Steps, *, samples: int | None = None, passes: int | None = None
    ) -> EpochLength:
        """Return epochs of `samples` samples, in whole batches, or of `passes` passes.

        Raises ConfigError for samples that are less than a batch, or whose batches differ in size.
        """
        if samples is None:
            return cls(steps.count, steps.count * (passes or 1))
        if steps.partial != "drop":
            raise ConfigError(
                f"epoch(samples={samples}) needs full batches, and with partial={steps.partial!r} "
                "the last batch of a pass may not be full: pass partial='drop' or epoch(passes=...)"
            )
        if samples < steps.batch:
            raise ConfigError(
                f"epoch(samples={samples}) is less than one global batch of {steps.batch}: "
                "give at least one batch, or make the batch smaller"
            )
        return cls(steps.count, samples // steps.batch)

    @property
    def is_one_pass(self) -> bool:
        """Whether an epoch is a pass."""
        return self.epoch_steps == self.pass_steps

    def locate(self, epoch: int, step: int) -> tuple[int, int]:
        """Return the pass that a step of an epoch is in, and its step there."""
        return divmod(epoch * self.epoch_steps + step, self.pass_steps)

    def step_of(self, epoch: int, pass_number: int, step: int) -> int:
        """Return a pass's step counted from the begin of an epoch; less than 0 before it."""
        return pass_number * self.pass_steps + step - epoch * self.epoch_steps


class RankSlice(NamedTuple):
    """The slice of every global batch that is a rank's; `uneven`: ranks may differ by a row."""

    rank: int = 0
    world_size: int = 1
    uneven: bool = False


ALONE = RankSlice()
"""The slice of the only rank."""


@dataclass(frozen=True)
class Rows:
    """Some rows of consecutive steps, equally many a step, by their positions in the sequence.

    The arrays are those of `StepSamples`, one step after the other; `expires` is a step of the
    pass. `passes`: the pass of each position, where that is not the step's. `count`: how many rows
    of the batch the entries make, where that is not their number. The last four, and `count`, are
    for a single step.
    """

    position: np.ndarray
    valid: np.ndarray
    expires: np.ndarray
    window_begin: np.ndarray
    window_end: np.ndarray
    passes: np.ndarray | None = None
    source: np.ndarray | None = None
    count: int | None = None
    length: np.ndarray | None = None
    layout: Layout | None = None
    size: int | None = None


class Batcher(Protocol):
    """Says at which positions of a pass's sequence the rows of its steps are."""

    most_steps: int
    """How many consecutive steps `rows` can be asked for."""

    def steps(self, pass_number: int) -> Steps:
        """Return the steps of a pass."""

    def rows(self, pass_number: int, step: int, count: int, numbers: np.ndarray) -> Rows:
        """Return these rows of `count` steps of a pass, from `step` on.

        `numbers` (int64, ascending) count the rows of a step over all ranks, below `Steps.rows_of`.
        More than one step is asked for only where all are full.
        """

    def block_expires(self, samples: StepSamples, row: int, position: int, step: int) -> int | None:
        """Return the first step of the pass after the block of a position in a row's window.

        `step` is that of the row in the pass; the result is later. None where blocks are kept as
        long as the window, as the row's own `expires` says.
        """

    def reads_per_block(self, world_size: int) -> float:
        """Return how often a block is read in a pass, by all ranks together."""


@dataclass(frozen=True)
class Kind:
    """What an order kind says of itself.

    `name` and `version` are in states; a change of the order is a new version. `identity`: its own
    parameters, which a state must agree with. `words`: said of the order after its seed and
    windows. `row`: what the rows of a step are. `varies`: whether passes differ in their number of
    steps. `no_skip`: why bad samples cannot be replaced, "" where they can.
    """

    name: str
    version: int = 1
    identity: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    row: str = "samples each"
    varies: bool = False
    no_skip: str = ""


class Planner:
    """One rank's part of an order of some kind.

    An epoch is a pass, or as `epoch_length` says. Raises ConfigError for a rank that has no slice.
    """

    def __init__(
        self,
        kind: Kind,
        order: Order,
        sequence: Sequence,
        batcher: Batcher,
        ranks: RankSlice = ALONE,
        epoch_length: EpochLength | None = None,
    ) -> None:
        check_ranks(order.batch, *ranks)
        self.kind, self.order, self.sequence, self.batcher = kind, order, sequence, batcher
        self.rank, self.world_size = ranks.rank, ranks.world_size
        self._epoch_length = epoch_length

    # What there is to know of the plan

    @property
    def manifest(self) -> Manifest:
        """The data, of all sources side by side."""
        return self.sequence.manifest

    @property
    def subsets(self) -> tuple[Subset, ...]:
        """The samples of each source."""
        return self.sequence.subsets

    @property
    def num_samples(self) -> int:
        """The number of samples of all sources."""
        return sum(subset.num_samples for subset in self.subsets)

    @property
    def identity(self) -> dict[str, Any]:
        """The order as a state names it: what a position is a position in, besides the data."""
        order, kind = self.order, self.kind
        length = self._epoch_length
        epoch = {} if length is None or length.is_one_pass else {"epoch_steps": length.epoch_steps}
        return {
            "kind": kind.name,
            "version": kind.version,
            "samples": order.samples,
            "batch": order.batch,
            "partial": order.partial,
            "seed": order.seed,
            "lanes": order.lanes,
            "window_steps": order.window_steps,
            **kind.identity,
            **epoch,
        }

    def describe(self) -> str:
        """Return the order in words, without its kind."""
        order, words = self.order, "file order"
        if order.seed is not None:
            window = f"{order.window_samples:,} samples ({order.window_steps:,} steps)"
            words = f"seed {order.seed}, windows of {window}, {order.lanes} lane(s)"
        return words + self.kind.words

    def describe_steps(self) -> str:
        """Return in words how many steps an epoch has, and of what."""
        steps, kind = self.batcher.steps(0), self.kind
        epoch = "in the first epoch" if kind.varies else "per epoch"
        dropped = steps.tail if steps.partial == "drop" and not kind.varies else 0
        words = f"{self.steps_in(0):,} {epoch}, {steps.batch:,} {kind.row}; partial {steps.partial}"
        return f"{words}, {dropped:,} samples dropped" if dropped else words

    def reads_per_block(self) -> float:
        """Return how often a block is read in a pass, all ranks together."""
        return self.batcher.reads_per_block(self.world_size)

    # Steps

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the first epoch, and of all others unless the kind `varies`."""
        return self.steps_in(0)

    def steps_in(self, epoch: int) -> int:
        """Return the steps of an epoch, the same on every rank; `ENDLESS` if it never ends."""
        length = self._epoch_length
        return self.batcher.steps(epoch).count if length is None else length.epoch_steps

    @property
    def is_endless(self) -> bool:
        """Whether the first epoch never ends."""
        return self.steps_in(0) == ENDLESS

    def own_rows(self, rows: int) -> np.ndarray:
        """Return the numbers of this rank's rows among the `rows` of a step; int64."""
        return np.arange(*bounds(rows, self.rank, self.world_size), dtype=np.int64)

    def step_samples(self, epoch: int, step: int) -> StepSamples:
        """Return the samples of a step. Raises IndexError if the epoch has no such step."""
        return self.run(epoch, step, 1)[0]

    def run(self, epoch: int, step: int, count: int) -> list[StepSamples]:
        """Return the samples of this step and of up to `count - 1` steps after it.

        Many small steps take hardly longer than one. Raises IndexError as `step_samples`.
        """
        epoch_steps = self.steps_in(epoch)
        if not 0 <= step < epoch_steps:
            raise IndexError(f"step {step} of an epoch of {epoch_steps} steps")
        pass_number, at = self._locate(epoch, step)
        steps = self.batcher.steps(pass_number)
        count = max(1, min(count, self.batcher.most_steps, epoch_steps - step, steps.full - at))
        numbers = self.own_rows(steps.rows_of(at))
        if len(numbers):
            rows = self.batcher.rows(pass_number, at, count, numbers)
        else:
            rows = self._no_rows(pass_number, at)
            count = 1
        return self._split(epoch, step, pass_number, count, rows)

    def replacement(
        self, samples: StepSamples, row: int, position: int
    ) -> tuple[int, int, int, int]:
        """Return block, row in the block, ordinal and `expires` of a sample in a row's window.

        `position` lies between the `window_begin` and the `window_end` of that row.
        """
        number = samples.pass_number
        if samples.passes is not None:
            number = int(samples.passes[row]) % REPEAT
        block, row_in_block, ordinal, _ = self.sequence.locate(number, np.array([position]))
        _, step = self._locate(samples.epoch, samples.step)
        expires = self.batcher.block_expires(samples, row, position, step)
        if expires is None:
            expires = int(samples.expires[row])
        else:
            expires += self._shift(samples.epoch, samples.pass_number)
        return int(block[0]), int(row_in_block[0]), int(ordinal[0]), expires

    def _no_rows(self, pass_number: int, step: int) -> Rows:
        """A rank without rows names the step's first one: its fields give the batch its columns."""
        rows = self.batcher.rows(pass_number, step, 1, np.zeros(1, np.int64))
        layout = None if rows.layout is None else rows.layout.without_rows()
        return replace(rows, count=0, layout=layout)

    def _split(
        self, epoch: int, step: int, pass_number: int, count: int, rows: Rows
    ) -> list[StepSamples]:
        """Return the rows of `count` steps as the samples of each."""
        numbers = pass_number if rows.passes is None else rows.passes
        block, row, ordinal, repeat = self.sequence.locate(numbers, rows.position)
        passes = rows.passes if repeat is None else numbers + repeat * REPEAT
        expires = rows.expires + self._shift(epoch, pass_number)
        each = len(rows.position) // count
        result = []
        for number in range(count):
            own = slice(number * each, (number + 1) * each)
            result.append(
                StepSamples(
                    epoch,
                    step + number,
                    pass_number,
                    each if rows.count is None else rows.count,
                    block[own],
                    row[own],
                    ordinal[own],
                    rows.valid[own],
                    expires[own],
                    rows.position[own],
                    rows.window_begin[own],
                    rows.window_end[own],
                    length=rows.length,
                    layout=rows.layout,
                    size=rows.size,
                    source=None if rows.source is None else rows.source[own],
                    passes=None if passes is None else passes[own],
                )
            )
        return result

    def _locate(self, epoch: int, step: int) -> tuple[int, int]:
        """Return the pass that a step of an epoch is in, and its step there."""
        length = self._epoch_length
        return (epoch, step) if length is None else length.locate(epoch, step)

    def _shift(self, epoch: int, pass_number: int) -> int:
        """Return a pass's first step, counted in an epoch."""
        length = self._epoch_length
        return 0 if length is None else length.step_of(epoch, pass_number, 0)


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
