"""Time the training loop: how long it waits for batches, and how long it works on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rayingest.plan.figures.histogram import Histogram
from rayingest.plan.figures.metrics import Span, no_span


class StepTimer:
    """The loader calls it at both ends of each step; `clock` returns seconds.

    `span` receives each wait and each step.
    """

    def __init__(self, clock: Callable[[], float], span: Span = no_span) -> None:
        self._clock, self._span = clock, span
        self._position = (0, 0)  # epoch and step of the batch in hand
        self._received_at: float | None = None  # None: the loop has no batch in hand
        self._asked_at = 0.0
        self._wait = self._work = 0.0
        self._batches = 0
        self._waits, self._steps = Histogram(), Histogram()

    def begin_pass(self) -> None:
        """Begin a pass: the time since the last batch of the pass before is no step."""
        self._received_at = None

    def begin_wait(self) -> None:
        """The loop asks for a batch: the step on the last one ends."""
        self._asked_at = self._clock()
        if self._received_at is not None:
            took = self._asked_at - self._received_at
            self._work += took
            self._steps.add(took)
            self._span("step", took, "loop", self._position)
            self._received_at = None

    def end_wait(self, position: tuple[int, int]) -> None:
        """The loop receives the batch of this epoch and step."""
        self._received_at, self._position = self._clock(), position
        took = self._received_at - self._asked_at
        self._wait += took
        self._waits.add(took)
        self._span("wait", took, "loop", position)
        self._batches += 1

    def stats(self) -> dict[str, Any]:
        """Return the figures of the loop.

        `batches` received, `wait_seconds`, `step_seconds`, `wait_share` (waits in both, 0 to 1),
        and the duration counts of waits and steps. A step counts when it ends;
        `current_step_seconds` is the age of the batch in hand, 0 if there is none.
        """
        received_at = self._received_at
        total = self._wait + self._work
        return {
            "batches": self._batches,
            "wait_seconds": self._wait,
            "step_seconds": self._work,
            "current_step_seconds": 0.0 if received_at is None else self._clock() - received_at,
            "wait_share": self._wait / total if total else 0.0,
            "wait_durations": self._waits.counts.copy(),
            "step_durations": self._steps.counts.copy(),
        }
