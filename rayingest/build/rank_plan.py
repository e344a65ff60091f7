"""The part of a rank's plan that its loader uses: steps, states, and words about the stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rayingest.plan.order.planner import Planner
from rayingest.plan.order.state import StateCodec


@dataclass(frozen=True)
class RankPlan:
    """A rank's plan as its loader sees it.

    `describe` logs what a user should know of the stream, given the bytes that it may have in
    flight. A stream without end gives `on_reached`: it is called with each step that the training
    loop has received, so that older offsets can go.
    """

    planner: Planner
    codec: StateCodec
    describe: Callable[[int], None]
    on_reached: Callable[[int], None] | None = None

    @property
    def rank(self) -> int:
        return self.planner.rank

    @property
    def world_size(self) -> int:
        return self.planner.world_size

    @property
    def is_endless(self) -> bool:
        """Whether there is one epoch that never ends."""
        return self.planner.is_endless

    def steps_in(self, epoch: int) -> int:
        return self.planner.steps_in(epoch)

    def reached(self, epoch: int, step: int) -> None:
        if self.on_reached is not None:
            self.on_reached(step)

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        return self.codec.state(epoch, step)

    def position(self, state: dict[str, Any]) -> tuple[int, int]:
        return self.codec.position(state)
