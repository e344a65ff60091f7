"""A source's samples one behind the other, time after time through them, as a mixture takes them.

The order is that of version 1 with steps of one sample from each lane, the last of them short: draw k is sample k mod N
of cycle floor(k / N). Lanes come in the order of their bit-reversed numbers, so that any few draws in a row are from
lanes all over the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.order import Order, default_lanes, default_window
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.subset import View


@dataclass(frozen=True)
class Draws:
    """Samples by draws; int64 arrays of one length.

    `cycle` is which time through the source a sample is taken; `block` to `window_end` are as in `StepSamples`. `end`
    is the first draw from which on nothing of the sample's window is left to take.
    """

    cycle: np.ndarray
    block: np.ndarray
    row: np.ndarray
    ordinal: np.ndarray
    place: np.ndarray
    window_begin: np.ndarray
    window_end: np.ndarray
    end: np.ndarray


class Succession(Planner):
    """The draws of one source, of all of a manifest's samples or a `view`."""

    def __init__(self, manifest: Manifest, order: Order, view: View | None = None) -> None:
        super().__init__(manifest, order, view=view)
        reversed_ = _bit_reversed(order.lanes)
        self._lanes = np.concatenate(
            [reversed_, reversed_[order.lane_samples[reversed_] > order.full_steps]]
        )

    def lanes(self, draws: np.ndarray) -> np.ndarray:
        """The lane that each draw is from; int64."""
        order = self.order
        index = draws % order.samples
        past = index - order.full_steps * order.batch
        return np.asarray(self._lanes[np.where(past < 0, index % order.batch, order.batch + past)])

    def draw(self, draws: np.ndarray) -> Draws:
        """The samples of these draws."""
        samples = self.order.samples
        cycle, index = np.divmod(draws, samples)
        found = np.empty((7, len(draws)), np.int64)
        for one in np.unique(cycle).tolist():
            chosen = np.flatnonzero(cycle == one)
            *where, end = self._of_cycle(one, index[chosen], draws[chosen])
            found[:, chosen] = *where, one * samples + np.minimum(end, samples)
        return Draws(cycle, *found)

    def _of_cycle(self, cycle: int, index: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, ...]:
        """What `Draws` has of them; `end` is counted from the begin of the cycle."""
        order = self.order
        lane, position = self.lanes(draws), index // order.batch
        in_order = np.lexsort((position, lane))
        steps = position[in_order]
        found = np.empty((4, len(index)), np.int64)
        found[:, in_order] = self._places(cycle, lane[in_order], steps, steps)
        place, until, begin, end = found
        block, row, ordinal = self.locate(cycle, place)
        until = (
            until * order.batch
            if order.seed is not None
            else self.view.first_place[block] + self.view.samples[block]
        )
        return block, row, ordinal, place, begin, end, until


def source_order(
    view: View,
    *,
    samples_per_step: float,
    share: float,
    seed: int | None,
    window: int | None = None,
    lanes: int | None = None,
) -> Order:
    """The order of a source that has about so many samples in a step, `share` (0 to 1) of them. Raises ConfigError."""
    rows = max(1, round(samples_per_step))
    if window is None:
        window = default_window(view, rows, share)
    if seed is None:
        lanes = 1
    elif lanes is None:
        lanes = default_lanes(view, 1 << (rows.bit_length() - 1), window, share)
    return Order.resolve(view, batch=lanes, partial="short", seed=seed, window=window, lanes=lanes)


def _bit_reversed(count: int) -> np.ndarray:
    """int64[count]: the numbers below `count` in the order of their bits, read from the last to the first."""
    bits = max(1, (count - 1).bit_length())
    reversed_ = [int(f"{number:0{bits}b}"[::-1], 2) for number in range(count)]
    return np.argsort(reversed_)
