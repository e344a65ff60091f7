"""How many decoders a loader should have: decided from what it did for a while, never without evidence.

Pure. Owns when to add and when to remove; who does it is another's business. The stream does not depend on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayingest.plan.metrics import STALLS, Snapshot

_WAITS = 0.05
_DECODING = 0.5
"""Of the waits, so much must be for decoding: more decoders remove no other wait."""
_SPARE = 1.2
_LEAST_BATCHES = 3


@dataclass(frozen=True)
class Scale:
    """From `least` to `most` decoders. A change needs `patience` conclusions in a row that agree: one to add, more to
    remove, as a wait costs more than an idle CPU.
    """

    least: int
    most: int
    patience: int = 3

    def wanted(self, seen: Snapshot, have: int) -> int:
        """How many there should be, by this snapshot alone; `have` where it says nothing."""
        if have < self.least:
            return self.least
        waited = seen["wait_seconds"]
        busy = waited + seen["step_seconds"]
        if seen["batches"] < _LEAST_BATCHES or busy <= 0 or int(seen["decoders"]) != have:
            return have  # too little is seen, or those asked for last are still to come
        stalls = {cause: seen[f"stall_{cause}_seconds"] for cause in STALLS}
        work = seen["decode_seconds"]
        if waited / busy > _WAITS:
            decoding = stalls["decode"] >= _DECODING * sum(stalls.values()) > 0
            needed = math.ceil(_SPARE * work / max(seen["step_seconds"], 1e-9)) if decoding else have
            return min(self.most, max(have + 1, min(needed, 2 * have))) if decoding else have
        idle = math.ceil(_SPARE * work / busy)  # what would have done the same work without a wait
        return max(self.least, min(have, idle))


class Scaling:
    """The conclusions so far of one loader."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._agreed = 0  # conclusions in a row that fewer would do
        self._fewest = 0  # and how many the most demanding of them wanted

    def decide(self, seen: Snapshot, have: int) -> int:
        """How many decoders there should be from now on."""
        wanted = self._scale.wanted(seen, have)
        if wanted >= have:
            self._agreed = self._fewest = 0
            return wanted
        self._agreed += 1
        self._fewest = max(self._fewest, wanted)
        if self._agreed < self._scale.patience:
            return have
        wanted, self._agreed, self._fewest = self._fewest, 0, 0
        return wanted
