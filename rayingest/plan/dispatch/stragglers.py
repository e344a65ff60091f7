"""Find the tasks that take much longer than others of their kind. The caller gives the time."""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np

_WINDOW = 128
"""Tasks whose durations count: the last ones that were done."""
_MIN_SEEN = 8
"""Fewer durations than this say nothing; until then the `unknown` limit holds."""
_QUANTILE = 0.9


class Stragglers:
    """Watch the tasks of one kind.

    A task is overdue after `factor` times the duration that 90 % of the last tasks kept within, and
    never before `least` seconds. Until enough tasks were done, it is after `unknown` seconds.
    """

    def __init__(self, factor: float = 4.0, least: float = 1.0, unknown: float = 10.0) -> None:
        self._factor, self._least = factor, least
        self._durations: deque[float] = deque(maxlen=_WINDOW)
        # Seconds after which a task is overdue.
        self._limit = unknown
        # When each running task began, in the order in which they began.
        self._begun: dict[int, float] = {}

    def begin(self, task: int, now: float) -> None:
        """Take in that a task begins. Calls come in the order of `now`."""
        self._begun[task] = now

    def end(self, task: int, now: float, done: bool = True) -> None:
        """Take in that a task ends; its duration counts only if it was `done`."""
        begun = self._begun.pop(task, None)
        if begun is None or not done:
            return
        self._durations.append(now - begun)
        if len(self._durations) >= _MIN_SEEN:
            usual = float(np.quantile(self._durations, _QUANTILE))
            self._limit = max(self._least, self._factor * usual)

    def overdue(self, now: float) -> list[int]:
        """Return the tasks that run for longer than the limit, the oldest first."""
        return self.begun_before(now - self._limit)

    def begun_before(self, then: float) -> list[int]:
        """Return the tasks that run since before `then`, the oldest first."""
        old = itertools.takewhile(lambda item: item[1] < then, self._begun.items())
        return [task for task, _ in old]
