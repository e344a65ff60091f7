"""How long a training loop waited for its batches, and how long it worked on them. Owns seconds, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class StepTimer:
    """Fed by the loader at both ends of each step; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._handed_at: float | None = None
        self._asked_at = 0.0
        self._wait = self._work = 0.0
        self._batches = 0

    def begin(self) -> None:
        """A pass begins: what the caller did since the last batch was no step."""
        self._handed_at = None

    def asked(self) -> None:
        """The loop asks for a batch, and so is done with the last one."""
        self._asked_at = self._clock()
        if self._handed_at is not None:
            self._work += self._asked_at - self._handed_at
            self._handed_at = None

    def handed(self) -> None:
        """The loop is given the batch that it asked for."""
        self._handed_at = self._clock()
        self._wait += self._handed_at - self._asked_at
        self._batches += 1

    def stats(self) -> dict[str, Any]:
        """`batches`, `wait_seconds`, `step_seconds`, and `wait_share` of the first in both, 0 to 1."""
        total = self._wait + self._work
        return {
            "batches": self._batches,
            "wait_seconds": self._wait,
            "step_seconds": self._work,
            "wait_share": self._wait / total if total else 0.0,
        }
