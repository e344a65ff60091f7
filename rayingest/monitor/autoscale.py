"""Resize a pool to the number of decoders that its loader needs.

Decides nothing: the decision is in `plan.figures.scaling`.
"""

from __future__ import annotations

import logging
from typing import Protocol

from rayingest.plan.figures.metrics import Snapshot
from rayingest.plan.figures.scaling import Scaler, ScalingPolicy

_log = logging.getLogger("rayingest")


class _Pool(Protocol):
    workers: int

    def resize(self, workers: int) -> None: ...


class Autoscale:
    """Resizes one pool between `least` and `most` decoders; call it with snapshots of its loader.

    The pool must serve that loader alone: a snapshot of one loader says nothing about another.
    """

    def __init__(self, pool: _Pool, least: int, most: int) -> None:
        self._pool, self._scaler = pool, Scaler(ScalingPolicy(least, most))

    def __call__(self, seen: Snapshot) -> None:
        have = self._pool.workers
        wanted = self._scaler.decide(seen, have)
        if wanted != have:
            _log.info("resize the pool from %d to %d decoders", have, wanted)
            self._pool.resize(wanted)
