"""The parameters of an order: what the user asked for, resolved against the data once.

Nothing here depends on ranks, workers or machines, so that the stream does not either. `Order` has
the parameters of every kind; `Lanes` is the arithmetic of lanes and windows; `EpochLength` says
which steps of which passes an epoch is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.manifest import Population
from rayingest.plan.order.tails import PARTIALS, Steps

_WINDOW_BATCHES = 16
_WINDOW_BYTES = 512 << 20
_ONE_LANE_BYTES = 64 << 20
_LANES_BYTES = 2 << 30
_STAGGER = 2_654_435_769
"""2**32 over the golden ratio: multiples of it, modulo 2**32, spread evenly."""


@dataclass(frozen=True)
class Order:
    """The parameters that the orders of all kinds have.

    `samples`: samples of a pass. `batch`: rows of a step over all ranks. `seed`: None means file
    order. `lanes`: parts of the sequence that are read side by side. `window_steps`: steps that a
    window lasts. `window`: samples of a window, where that is not `batch` a step.
    """

    samples: int
    batch: int
    partial: str
    seed: int | None
    lanes: int
    window_steps: int
    window: int | None = None

    @classmethod
    def resolve(
        cls,
        data: Population,
        *,
        batch: int,
        partial: str = "drop",
        seed: int | None = None,
        window: int | None = None,
        lanes: int | None = None,
    ) -> Order:
        """Return the order in lanes and windows for this data. Raises ConfigError.

        `window` counts samples over all lanes. The data choose a `window` or `lanes` of None.
        """
        samples = data.num_samples
        if batch < 1:
            raise ConfigError(f"batch({batch}): a global batch has at least 1 sample")
        if partial not in PARTIALS:
            raise ConfigError(
                f"partial={partial!r}: choose one of {', '.join(map(repr, PARTIALS))}"
            )
        if samples < 1:
            raise ConfigError("the data holds no samples")
        if partial == "drop" and samples < batch:
            raise ConfigError(
                f"{samples} samples are less than one global batch of {batch}: with "
                "partial='drop' no step is left; make the batch smaller, or pass partial='pad' "
                "or 'short'"
            )
        if window is not None and window < 1:
            raise ConfigError(f"window={window}: a window holds at least 1 sample")
        if seed is None:
            return cls(samples, batch, partial, None, 1, 1)
        if window is None:
            window = default_window(data, batch)
        if lanes is None:
            lanes = default_lanes(data, batch, window)
        elif lanes < 1 or batch % lanes:
            raise ConfigError(
                f"lanes={lanes} does not divide the global batch of {batch}: a step takes the same "
                "number of samples from every lane; give a divisor of the batch"
            )
        elif lanes > samples:
            raise ConfigError(
                f"lanes={lanes} is more than the {samples} samples of the data; give fewer lanes"
            )
        most = -(-samples // batch)  # covers every lane; a longer window is the same order
        return cls(samples, batch, partial, seed, lanes, min(most, -(-window // batch)))

    @property
    def window_samples(self) -> int:
        """Samples of a window, all lanes together."""
        return self.window_steps * self.batch if self.window is None else self.window

    @property
    def samples_per_step(self) -> int:
        """Samples of a step over all ranks, on average."""
        return max(1, self.window_samples // self.window_steps)


class Lanes:
    """The lanes of an order, and the windows that each of them is cut into.

    Lane l owns positions [floor(l N / L), floor((l + 1) N / L)) of a pass's sequence. A window
    lasts `window_steps` steps; the first one of a lane is shorter by a part of that, unless one
    window covers the lane, so that lanes do not change windows together. What is left of a lane
    and makes less than a step joins the window before it.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.rows = order.batch // order.lanes
        """Samples that each lane gives to a step."""
        self.steps = Steps(order.samples, order.batch, order.partial)

    @cached_property
    def begin(self) -> np.ndarray:
        """int64[lanes + 1]: where each lane begins in the sequence; the last entry is its end."""
        order = self.order
        # Python integers: the product may be more than 2**63.
        bounds = np.arange(order.lanes + 1, dtype=object) * order.samples // order.lanes
        return bounds.astype(np.int64)

    @cached_property
    def samples(self) -> np.ndarray:
        """int64[lanes]: the samples of each lane."""
        return np.diff(self.begin)

    @cached_property
    def first_window_cut(self) -> np.ndarray:
        """int64[lanes]: steps by which each lane's first window is shorter."""
        order = self.order
        turn = np.arange(order.lanes, dtype=object) * _STAGGER % (1 << 32)
        cut = (turn * order.window_steps // (1 << 32)).astype(np.int64)
        return np.where(order.window_steps * self.rows >= self.samples, 0, cut)

    def windows(
        self, lane: np.ndarray, step: np.ndarray | int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return number, begin and end of the windows that these steps of these lanes lie in.

        Begin and end are positions in the lane. All int64.
        """
        length, rows = self.order.window_steps, self.rows
        samples, cut = self.samples[lane], self.first_window_cut[lane]
        number = (step + cut) // length
        begin = np.maximum(0, number * length - cut) * rows
        covered = length * rows >= samples
        joins = ~covered & (number > 0) & (samples - begin < rows)
        number = np.where(covered, 0, number - joins)
        begin = np.maximum(0, number * length - cut) * rows
        end = ((number + 1) * length - cut) * rows
        return number, begin, np.where(covered | (samples - end < rows), samples, end)


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


def default_window(data: Population, samples_per_step: int, share: float = 1.0) -> int:
    """Return the samples of a window: 16 steps, or as many as fill 512 MiB times `share`."""
    mean = max(1.0, data.total_bytes / data.num_samples)
    return max(_WINDOW_BATCHES * samples_per_step, int(share * _WINDOW_BYTES / mean))


def default_lanes(data: Population, batch: int, window: int, share: float = 1.0) -> int:
    """Return the number of lanes: a power of two that divides the batch, at least 1.

    At most max(64, batch / 32), and so few that a block of each fits into 2 GiB times `share`.
    """
    samples = data.num_samples
    if samples < batch or (window >= samples and data.total_bytes <= _ONE_LANE_BYTES):
        return 1
    most = max(64, batch // 32)
    lanes = 1
    while lanes * 2 <= most and batch % (lanes * 2) == 0:
        lanes *= 2
    largest = int(data.nbytes.max())
    while lanes > 1 and lanes * largest > share * _LANES_BYTES:
        lanes //= 2
    return lanes
