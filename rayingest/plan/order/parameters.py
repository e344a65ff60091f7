"""The parameters of an order: what the user asked for, resolved against the data once.

Owns the names of the parameters that all kinds share, and the rules for their defaults. Nothing
here depends on ranks, workers or machines, so that the stream does not either.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayingest.errors import ConfigError
from rayingest.plan.order.manifest import Population

PARTIALS = ("drop", "pad", "short")
"""What to do with the rows after the last full step of a pass: see `planner.Steps`."""
_WINDOW_BATCHES = 16
_WINDOW_BYTES = 512 << 20
_ONE_LANE_BYTES = 64 << 20
_LANES_BYTES = 2 << 30


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
