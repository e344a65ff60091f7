"""Which tasks take too long, judged by what their like took of late. Times come from outside: no clock here."""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np

_SEEN = 128
_FEW = 8
_QUANTILE = 0.9


class Stragglers:
    """One kind of task. A task is overdue after `factor` times what nine in ten took, and never before `least` seconds.

    Until enough have been seen, after `unknown` seconds.
    """

    def __init__(self, factor: float = 4.0, least: float = 1.0, unknown: float = 10.0) -> None:
        self._factor, self._least, self._unknown = factor, least, unknown
        self._seen: deque[float] = deque(maxlen=_SEEN)
        self._limit = unknown
        self._begun: dict[int, float] = {}

    def begin(self, task: int, now: float) -> None:
        """The task begins."""
        self._begun[task] = now

    def end(self, task: int, now: float, done: bool = True) -> None:
        """The task ended; what it took counts if it was `done`."""
        begun = self._begun.pop(task, None)
        if begun is None or not done:
            return
        self._seen.append(now - begun)
        if len(self._seen) >= _FEW:
            self._limit = max(self._least, self._factor * float(np.quantile(self._seen, _QUANTILE)))

    def overdue(self, now: float) -> list[int]:
        """Tasks under way for longer than the limit, the oldest first."""
        return self.begun_before(now - self._limit)

    def begun_before(self, then: float) -> list[int]:
        """Tasks that are under way since before then, the oldest first: they began in this order."""
        return [
            task
            for task, _ in itertools.takewhile(lambda item: item[1] < then, self._begun.items())
        ]
