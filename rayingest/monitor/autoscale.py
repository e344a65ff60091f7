"""Giving a pool as many decoders as its loader needs. Decides nothing: `plan.scaling` does."""

from __future__ import annotations

import logging
from typing import Protocol

from rayingest.plan.figures.metrics import Snapshot
from rayingest.plan.figures.scaling import Scale, Scaling

_log = logging.getLogger("rayingest")


class _Pool(Protocol):
    workers: int

    def resize(self, workers: int) -> None: ...


class Rescale:
    """Called with what the pool's one loader did for a while."""

    def __init__(self, pool: _Pool, least: int, most: int) -> None:
        self._pool, self._scaling = pool, Scaling(Scale(least, most))

    def __call__(self, seen: Snapshot) -> None:
        have = self._pool.workers
        wanted = self._scaling.decide(seen, have)
        if wanted != have:
            _log.info("%d decoders from now on, so far %d", wanted, have)
            self._pool.resize(wanted)
