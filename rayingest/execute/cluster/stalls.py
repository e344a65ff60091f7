"""How long the training loop waited for the batch that was due, by what that lacked at each moment.

Owns these seconds. Told by two threads: by the consumer when it begins and ends to wait, by the feeder of all else.
"""

from __future__ import annotations

from collections.abc import Callable

from rayingest.plan.figures.metrics import STALLS


class Stalls:
    """`clock` gives seconds. `lack`: what the batch lacks now, "workers" to begin with."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(STALLS, 0.0)
        self._waiting_since: float | None = None
        self._looked = clock()
        self.lack = "workers"

    def stats(self) -> dict[str, float]:
        """`stall_<cause>_seconds` for all causes."""
        return {f"stall_{cause}_seconds": seconds for cause, seconds in self._seconds.items()}

    def wait(self) -> None:
        """The consumer begins to wait."""
        self._waiting_since = self._clock()

    def served(self) -> None:
        """It has what it waited for."""
        self._waiting_since = None

    def passed(self, lack: str) -> None:
        """Until now the batch lacked what was said the last time, from now on this; "" for nothing that is known."""
        now, since = self._clock(), self._waiting_since
        if since is not None and self.lack:
            self._seconds[self.lack] += max(0.0, now - max(since, self._looked))
        self._looked, self.lack = now, lack
