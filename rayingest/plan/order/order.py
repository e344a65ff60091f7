"""The order's parameters: what the user asked for, resolved against the data once and for all.

Nothing here depends on ranks, workers or machines, so that the stream does not either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.manifest import Population

ORDER_VERSION = 5
"""Version 1 is the order over all samples, in epochs that are once through them; version 2 has others beside it.
Version 3 has orders of groups of samples, version 4 those of mixtures, version 5 weighted draws.
"""
PARTIALS = ("drop", "pad", "short")

_WINDOW_BATCHES = 16
_WINDOW_BYTES = 512 << 20
_ONE_LANE_BYTES = 64 << 20
_LANES_BYTES = 2 << 30
_STAGGER = 2_654_435_769
"""2**32 over the golden ratio: multiples of it, modulo 2**32, spread evenly."""


@dataclass(frozen=True)
class Order:
    """All that the order of an epoch is a function of, besides the manifest and the epoch.

    `seed` None means file order. `batch` is the global batch, `lanes` divides it; `window_steps` is how many steps one
    lane's window lasts.
    """

    samples: int
    batch: int
    partial: str
    seed: int | None
    lanes: int
    window_steps: int

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
        """The order for this data. `window` counts samples over all lanes. Raises ConfigError."""
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
                f"{samples} samples are less than one global batch of {batch}: nothing would be left; "
                "make the batch smaller, or take partial='pad' or 'short'"
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
                f"lanes={lanes} does not divide the global batch of {batch}: each step takes as many"
            )
        elif lanes > samples:
            raise ConfigError(f"lanes={lanes} is more than the {samples} samples there are")
        most = -(-samples // batch)  # covers every lane; more would be the same order
        return cls(samples, batch, partial, seed, lanes, min(most, -(-window // batch)))

    @property
    def lane_batch(self) -> int:
        """Samples that each lane gives to a step."""
        return self.batch // self.lanes

    @property
    def window_samples(self) -> int:
        """Samples of a window, all lanes together."""
        return self.window_steps * self.batch

    @property
    def samples_per_step(self) -> int:
        """Samples of a step, all ranks together."""
        return self.batch

    @property
    def full_steps(self) -> int:
        """Steps of a cycle in which every row is a sample of its own."""
        return self.samples // self.batch

    @property
    def tail(self) -> int:
        """Samples left after the full steps."""
        return self.samples % self.batch

    @property
    def steps(self) -> int:
        """Steps of a cycle, on every rank."""
        return self.full_steps + (self.partial != "drop" and self.tail > 0)

    @cached_property
    def lane_begin(self) -> np.ndarray:
        """int64[lanes + 1]: where each lane begins in the epoch's sequence; the last entry is its end."""
        bounds = np.arange(self.lanes + 1, dtype=object) * self.samples // self.lanes
        return bounds.astype(np.int64)

    @cached_property
    def lane_samples(self) -> np.ndarray:
        """int64[lanes]"""
        return np.diff(self.lane_begin)

    @cached_property
    def first_window_cut(self) -> np.ndarray:
        """int64[lanes]: steps by which each lane's first window is shorter, so that lanes change windows in turn."""
        turn = np.arange(self.lanes, dtype=object) * _STAGGER % (1 << 32)
        cut = (turn * self.window_steps // (1 << 32)).astype(np.int64)
        return np.where(self.window_steps * self.lane_batch >= self.lane_samples, 0, cut)

    def windows(
        self, lane: np.ndarray, step: np.ndarray | int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Number, begin and end (positions in the lane) of the windows that these lanes' steps lie in; int64 each."""
        rows, samples, cut = self.lane_batch, self.lane_samples[lane], self.first_window_cut[lane]
        number = (step + cut) // self.window_steps
        begin = np.maximum(0, number * self.window_steps - cut) * rows
        covered = self.window_steps * rows >= samples
        joins = ~covered & (number > 0) & (samples - begin < rows)
        number = np.where(covered, 0, number - joins)
        begin = np.maximum(0, number * self.window_steps - cut) * rows
        end = ((number + 1) * self.window_steps - cut) * rows
        return number, begin, np.where(covered | (samples - end < rows), samples, end)


def default_window(data: Population, samples_per_step: int, share: float = 1.0) -> int:
    """Samples that are mixed together where nobody says how many; `share`: of the memory that this may take."""
    mean = max(1.0, data.total_bytes / data.num_samples)
    return max(_WINDOW_BATCHES * samples_per_step, int(share * _WINDOW_BYTES / mean))


def default_lanes(data: Population, batch: int, window: int, share: float = 1.0) -> int:
    """How many parts of the data are read side by side where nobody says how many; `share` as for the window."""
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
