"""What a loader takes: CPU time and memory of this process and of its pool's workers, wherever these run.

Owns the sums. The workers are asked, and never waited for while the loop runs.
"""

from __future__ import annotations

import time
from typing import Any

import ray

from rayingest.execute.cluster.pool import Pool
from rayingest.execute.cluster.usage import Usage, own_usage

_EVERY_SECONDS = 1.0
_ANSWER_SECONDS = 5.0


class Meter:
    """From when it is made until it is `read`; `pool` None for a loader that has none."""

    def __init__(self, pool: Pool | None) -> None:
        self._actors = [] if pool is None else [member.actor for member in pool.members]
        self._asked = [self._ask()]
        self._own = [own_usage()]
        self._looked = time.monotonic()
        if self._actors:  # what they do from now on is counted, and nothing before
            ray.wait(self._asked[0], num_returns=len(self._actors), timeout=_ANSWER_SECONDS)

    def look(self) -> None:
        """Ask what is in use now, where the last time is a second ago."""
        now = time.monotonic()
        if now - self._looked >= _EVERY_SECONDS:
            self._looked = now
            self._look()

    def read(self) -> Usage:
        """CPU seconds since it was made, and the most memory in use at a time; without workers that do not answer."""
        self._look()
        workers = [_answers(list(refs)) for refs in zip(*self._asked, strict=True)]
        each = [self._own, *(found for found in workers if found)]
        cpu = sum(found[-1].cpu_seconds - found[0].cpu_seconds for found in each)
        return Usage(cpu, sum(max(one.memory_bytes for one in found) for found in each))

    def _look(self) -> None:
        self._own.append(own_usage())
        self._asked.append(self._ask())

    def _ask(self) -> list[Any]:
        return [actor.usage.remote() for actor in self._actors]


def _answers(refs: list[Any]) -> list[Usage]:
    """Those of one worker that came, in order."""
    came, _ = ray.wait(refs, num_returns=len(refs), timeout=_ANSWER_SECONDS)
    found = []
    for ref in came:
        try:
            found.append(ray.get(ref))
        except ray.exceptions.RayError:  # it has ended meanwhile
            continue
    return found
