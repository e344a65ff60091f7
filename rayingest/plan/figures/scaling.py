"""Decide how many decoders a loader should have, from snapshots of its figures.

Pure: `monitor/autoscale.py` resizes the pool. Owns when decoders are added and removed. Refuses to
decide without evidence: it joins snapshots until they cover enough batches, because one batch may
take longer than one snapshot. The stream of samples does not depend on the number of decoders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayingest.plan.figures.metrics import COUNTERS, STALLS, Snapshot

_WAITS = 0.05
"""The share of its time that the loop may wait without a decoder being added."""
_DECODING = 0.5
"""The share of the wait that must be for decoding: more decoders shorten no other wait."""
_SPARE = 1.2
"""How many times the capacity that the work needs a loader gets."""
_LEAST_BATCHES = 3
"""With fewer batches the first one counts too much: it takes longer than others."""


@dataclass(frozen=True)
class ScalingPolicy:
    """Bounds the number of decoders by `least` and `most`, and says how fast it changes.

    One conclusion adds decoders. Removing takes `patience` conclusions in a row, because a wait
    costs more than an idle CPU.
    """

    least: int
    most: int
    patience: int = 3

    def target(self, seen: Snapshot, have: int) -> int:
        """Return the number of decoders that this snapshot calls for, if `have` are requested.

        Returns `have` if the snapshot is no reason to change.
        """
        if have < self.least:
            return self.least
        waited = seen["wait_seconds"]
        busy = waited + seen["step_seconds"]
        if busy <= 0:
            return have
        work = seen["decode_seconds"]
        if waited / busy <= _WAITS:
            # This number would have done the same work without a wait.
            enough = math.ceil(_SPARE * work / busy)
            return max(self.least, min(have, enough))
        stalls = {cause: seen[f"stall_{cause}_seconds"] for cause in STALLS}
        decoding = stalls["decode"] >= _DECODING * sum(stalls.values()) > 0
        if not decoding or int(seen["decoders"]) != have:
            # More decoders do not help, or the decoders requested last have not started yet.
            return have
        needed = math.ceil(_SPARE * work / max(seen["step_seconds"], 1e-9))
        return min(self.most, max(have + 1, min(needed, 2 * have)))


class Scaler:
    """Applies a policy to one loader: collects snapshots, and counts conclusions in a row."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy
        self._evidence = Snapshot(0.0, {})  # since the last conclusion
        self._fewer_in_a_row = 0  # conclusions that fewer decoders are enough
        self._highest_target = 0  # the largest target among these conclusions

    def decide(self, seen: Snapshot, have: int) -> int:
        """Return how many decoders the loader should have; `seen` is since the last call."""
        # Snapshots with different numbers of running decoders are no common evidence.
        as_before = seen["decoders"] == self._evidence["decoders"]
        self._evidence = _join(self._evidence, seen) if as_before else seen
        if self._evidence["batches"] < _LEAST_BATCHES:
            return max(have, self._policy.least)
        target = self._policy.target(self._evidence, have)
        self._evidence = Snapshot(0.0, {})
        if target >= have:
            self._fewer_in_a_row = self._highest_target = 0
            return target
        self._fewer_in_a_row += 1
        self._highest_target = max(self._highest_target, target)
        if self._fewer_in_a_row < self._policy.patience:
            return have
        target, self._fewer_in_a_row, self._highest_target = self._highest_target, 0, 0
        return target


def _join(before: Snapshot, after: Snapshot) -> Snapshot:
    """Return one snapshot of both periods, of which `after` follows `before`."""
    figures = {
        name: value + before[name] if name in COUNTERS else value
        for name, value in after.figures.items()
    }
    return Snapshot(before.seconds + after.seconds, figures)
