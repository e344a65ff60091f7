"""The parameters of an order of groups, resolved against the data and its lengths once and for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.bins import Grouping
from rayingest.plan.order.order import Order, default_window
from rayingest.plan.order.subset import View


@dataclass(frozen=True)
class GroupedOrder(Order):
    """An order of groups: `batch` of them a step; windows are of up to `window` samples.

    `window_steps` is how many steps a window makes on the average, `total_length` that of all samples. `steps`,
    `full_steps` and `tail` mean nothing here.
    """

    window: int
    grouping: Grouping
    total_length: int

    def __str__(self) -> str:
        return f"{self.grouping}, windows of {self.window}"

    @property
    def window_samples(self) -> int:
        return self.window

    @property
    def samples_per_step(self) -> int:
        return max(1, self.window // self.window_steps)

    @classmethod
    def over(
        cls,
        view: View,
        lengths: np.ndarray,
        grouping: Grouping,
        *,
        batch: int,
        partial: str,
        seed: int | None = None,
        window: int | None = None,
        lanes: int | None = None,
    ) -> GroupedOrder:
        """The order over a view's samples of these lengths, by ordinal. Raises ConfigError."""
        if lanes not in (None, 1):
            raise ConfigError(f"lanes={lanes}: groups of samples come from one lane; leave it out")
        total = 0
        for ordinals in view.ordinals():
            some = lengths[ordinals]
            total += int(some.sum(dtype=np.int64))
            if grouping.longest is not None and some.max() > grouping.longest:
                raise _too_long(ordinals, some, grouping, grouping.longest)
        if not total:
            raise ConfigError("all samples have length 0: there is nothing to put together")
        samples_per_step = max(1, round(view.num_samples * batch * grouping.limit / total))
        if window is None:
            window = default_window(view, samples_per_step)
        window = max(1, min(window, view.num_samples))
        steps = -(-window // samples_per_step)
        return cls(view.num_samples, batch, partial, seed, 1, steps, window, grouping, total)


def _too_long(
    ordinals: np.ndarray, lengths: np.ndarray, grouping: Grouping, longest: int
) -> ConfigError:
    places = np.flatnonzero(lengths > longest)
    others = f" ({len(places) - 1:,} more around it are too long)" if len(places) > 1 else ""
    return ConfigError(
        f"sample {ordinals[places[0]]} {grouping.too_long(int(lengths[places[0]]))}{others}"
    )
