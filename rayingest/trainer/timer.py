"""How long a training loop waited for its batches, and how long it worked on them. Owns seconds, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rayingest.plan.figures.histogram import Histogram
from rayingest.plan.figures.metrics import Span, no_span


class StepTimer:
    """Fed by the loader at both ends of each step; `clock` gives seconds, `span` is told each wait and each step."""

    def __init__(self, clock: Callable[[], float], span: Span = no_span) -> None:
        self._clock, self._span = clock, span
        self._position = (0, 0)  # of the batch in hand
        self._handed_at: float | None = None
        self._asked_at = 0.0
        self._wait = self._work = 0.0
        self._batches = 0
        self._waits, self._steps = Histogram(), Histogram()

    def begin(self) -> None:
        """A pass begins: what the caller did since the last batch was no step."""
        self._handed_at = None

    def asked(self) -> None:
        """The loop asks for a batch, and so is done with the last one."""
        self._asked_at = self._clock()
        if self._handed_at is not None:
            took = self._asked_at - self._handed_at
            self._work += took
            self._steps.add(took)
            self._span("step", took, "loop", self._position)
            self._handed_at = None

    def handed(self, position: tuple[int, int]) -> None:
        """The loop is given the batch that it asked for, of this epoch and step."""
        self._handed_at, self._position = self._clock(), position
        took = self._handed_at - self._asked_at
        self._wait += took
        self._waits.add(took)
        self._span("wait", took, "loop", position)
        self._batches += 1

    def stats(self) -> dict[str, Any]:
        """`batches`, `wait_seconds`, `step_seconds`, `wait_share` of the first in both, 0 to 1, and counts of each.

        Steps are counted when they end; `step_under_way_seconds` is how long there has been a batch in hand, 0 if none.
        """
        handed_at = self._handed_at
        total = self._wait + self._work
        return {
            "batches": self._batches,
            "wait_seconds": self._wait,
            "step_seconds": self._work,
            "step_under_way_seconds": 0.0 if handed_at is None else self._clock() - handed_at,
            "wait_share": self._wait / total if total else 0.0,
            "wait_durations": self._waits.counts.copy(),
            "step_durations": self._steps.counts.copy(),
        }
