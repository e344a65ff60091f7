"""The calendar: which steps of which times through the data an epoch is.

An order has cycles without end, each once through its samples. As a rule an epoch is a cycle. It may be any number of
steps too: then epochs follow each other along the cycles, and neither knows where the other ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayingest.errors import ConfigError
from rayingest.plan.order.order import Order


@dataclass(frozen=True)
class Calendar:
    """Cycles of `cycle_steps` steps, told in epochs of `epoch_steps`."""

    cycle_steps: int
    epoch_steps: int

    @classmethod
    def resolve(
        cls, order: Order, *, samples: int | None = None, passes: int | None = None
    ) -> Calendar:
        """Epochs of `samples` samples, rounded down to whole batches, or of `passes` cycles. Raises ConfigError."""
        if samples is None:
            return cls(order.steps, order.steps * (passes or 1))
        if order.partial != "drop":
            raise ConfigError(
                f"epoch(samples={samples}) counts whole batches, and partial={order.partial!r} gives others at the end "
                "of the data: take partial='drop', or epoch(passes=...)"
            )
        if samples < order.batch:
            raise ConfigError(
                f"epoch(samples={samples}) is less than one global batch of {order.batch}"
            )
        return cls(order.steps, samples // order.batch)

    @property
    def is_plain(self) -> bool:
        """Whether an epoch is a cycle."""
        return self.epoch_steps == self.cycle_steps

    def locate(self, epoch: int, step: int) -> tuple[int, int]:
        """The cycle that a step of an epoch is in, and its step there."""
        return divmod(epoch * self.epoch_steps + step, self.cycle_steps)

    def step_in(self, epoch: int, cycle: int, step: int) -> int:
        """A step of a cycle, counted from the begin of an epoch; less than 0 before it, and on beyond its end."""
        return cycle * self.cycle_steps + step - epoch * self.epoch_steps
