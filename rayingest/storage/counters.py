"""What a process counts of its reads from storage."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Counters:
    """What was counted: tries after a failure, and ranges found, or not, in the cache on disk."""

    retries: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            *(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True))
        )

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            *(mine - its for mine, its in zip(astuple(self), astuple(other), strict=True))
        )
