"""How many decoders a loader should have: decided from what it did for a while, never without evidence.

Pure. Owns when to add and when to remove; who does it is another's business. The stream does not depend on it.
Evidence is of as many looks as it takes: a batch may take longer than the time from one look to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayingest.plan.figures.metrics import COUNTED, STALLS, Snapshot

_WAITS = 0.05
_DECODING = 0.5
"""Of the waits, so much must be for decoding: more decoders remove no other wait."""
_SPARE = 1.2
_LEAST_BATCHES = 3
"""With fewer a conclusion would be one of the first batch, which takes longer than others."""


@dataclass(frozen=True)
class Scale:
    """From `least` to `most` decoders. A change needs `patience` conclusions in a row that agree: one to add, more to
    remove, as a wait costs more than an idle CPU.
    """

    least: int
    most: int
    patience: int = 3

    def wanted(self, seen: Snapshot, have: int) -> int:
        """How many there should be where `have` are asked for, by this snapshot alone; `have` where it says nothing."""
        if have < self.least:
            return self.least
        waited = seen["wait_seconds"]
        busy = waited + seen["step_seconds"]
        if busy <= 0:
            return have
        work = seen["decode_seconds"]
        if waited / busy <= _WAITS:
            idle = math.ceil(
                _SPARE * work / busy
            )  # what would have done the same work without a wait
            return max(self.least, min(have, idle))
        stalls = {cause: seen[f"stall_{cause}_seconds"] for cause in STALLS}
        decoding = stalls["decode"] >= _DECODING * sum(stalls.values()) > 0
        if not decoding or int(seen["decoders"]) != have:
            return have  # more would not help, or those asked for last are still to come
        needed = math.ceil(_SPARE * work / max(seen["step_seconds"], 1e-9))
        return min(self.most, max(have + 1, min(needed, 2 * have)))


class Scaling:
    """What was seen of one loader since the last conclusion, and the conclusions so far."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._evidence = Snapshot(0.0, {})
        self._agreed = 0  # conclusions in a row that fewer would do
        self._fewest = 0  # and how many the most demanding of them wanted

    def decide(self, seen: Snapshot, have: int) -> int:
        """How many decoders there should be from now on; `seen` is what happened since the last call."""
        as_before = seen["decoders"] == self._evidence["decoders"]
        self._evidence = _joined(self._evidence, seen) if as_before else seen
        if self._evidence["batches"] < _LEAST_BATCHES:
            return max(have, self._scale.least)
        wanted = self._scale.wanted(self._evidence, have)
        self._evidence = Snapshot(0.0, {})
        if wanted >= have:
            self._agreed = self._fewest = 0
            return wanted
        self._agreed += 1
        self._fewest = max(self._fewest, wanted)
        if self._agreed < self._scale.patience:
            return have
        wanted, self._agreed, self._fewest = self._fewest, 0, 0
        return wanted


def _joined(before: Snapshot, after: Snapshot) -> Snapshot:
    """Both as one, the second behind the first."""
    figures = {
        name: value + before[name] if name in COUNTED else value
        for name, value in after.figures.items()
    }
    return Snapshot(before.seconds + after.seconds, figures)
