"""Stand-ins: which sample takes the place of one that cannot be used. A pure function of the plan.

A bad sample's candidates are the samples of its own window in a keyed order: one that is 8 to 15 places behind it in
the epoch's sequence, one 16 to 31, and so on, round the window's end; then all others, in keyed strides. So the first
are in blocks that are needed at about the same time, and a damaged stretch of any length is soon left behind. The
stand-in is the first candidate that is good: neither ranks nor workers, nor when something is found to be bad, have any
part in it.

Owns that order, and what has become of one step's rows. What is bad is found by those who read and decode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from rayingest.errors import DataError, DeadlySampleError
from rayingest.plan.order.keys import fold
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.step_samples import StepSamples

MOST_CANDIDATES = 256
MOST_TRIES = 64
"""So many candidates of one sample are looked at, and so many of them may turn out bad when they are decoded. That the
next would be good is then not to be expected.
"""
_NEAREST = 8

Candidate = tuple[int, int, int, int]
"""Block, row in the block, ordinal, and the first step of the epoch at which nothing of the block is left to take."""


def distances(size: int, key: int) -> Iterator[int]:
    """How far behind a sample its candidates are, in order, in a window of `size` samples. Every other one occurs."""
    span = _NEAREST
    while 2 * span <= size:
        yield span + fold("distance", key, span) % span
        span *= 2
    stride = 1 + fold("stride", key) % size
    while math.gcd(stride, size) > 1:
        stride += 1
    for i in range(1, size):
        yield i * stride % size


def candidates(planner: Planner, samples: StepSamples, row: int) -> Iterator[Candidate]:
    """The candidates for the place of a row's sample, in order."""
    begin, end = int(samples.window_begin[row]), int(samples.window_end[row])
    key = fold("stand-in", planner.order.seed or 0, samples.pass_number, int(samples.ordinal[row]))
    for distance in distances(end - begin, key):
        place = begin + (int(samples.position[row]) - begin + distance) % (end - begin)
        yield planner.replacement(samples, row, place)


@dataclass(frozen=True)
class Known:
    """What has been found so far: what is wrong with blocks that cannot be read, by number, and with samples that ended
    their workers, by ordinal.
    """

    broken: dict[int, DataError] = field(default_factory=dict)
    deadly: dict[int, DataError] = field(default_factory=dict)


class FilledStep:
    """A step's rows while stand-ins take the places of bad samples.

    `own` are the plan's samples, `samples` those to use now: stand-ins are in them, flagged as not valid. `errors` has
    what is wrong with the own sample of each row that has a stand-in. The steps of a stream share what is `known`.
    """

    def __init__(self, planner: Planner, own: StepSamples, known: Known) -> None:
        self.own = self.samples = own
        self.errors: dict[int, DataError] = {}
        self._planner, self._known, self._broken = planner, known, known.broken
        self._candidates: dict[int, Iterator[Candidate]] = {}
        self._tried: dict[int, int] = {}
        for row in (
            np.flatnonzero(np.isin(own.block, list(self._broken))).tolist() if self._broken else ()
        ):
            self.fill(row, self._broken[int(own.block[row])], unreadable=True)

    @property
    def deadly(self) -> tuple[int, ...]:
        """Rows whose samples have ended workers; they are tried all the same: nothing hangs on what is known."""
        deadly = self._known.deadly
        return (
            tuple(np.flatnonzero(np.isin(self.samples.ordinal, list(deadly))).tolist())
            if deadly
            else ()
        )

    def fill(self, row: int, error: DataError, unreadable: bool = False) -> int | DataError:
        """The sample that a row has now is bad, or (`unreadable`) its block: the next candidate takes its place.

        Returns the first step of the epoch at which nothing of the candidate's block is left to take, or the error
        where there is no candidate.
        """
        tried = self._tried.get(row, 0)
        if unreadable:
            self._broken.setdefault(int(self.samples.block[row]), error)
        elif row in self.errors:
            tried = self._tried[row] = tried + 1
        if isinstance(error, DeadlySampleError):
            self._known.deadly[int(self.samples.ordinal[row])] = error
        self.errors.setdefault(row, error)
        if row not in self._candidates:
            self._candidates[row] = islice(
                candidates(self._planner, self.own, row), MOST_CANDIDATES
            )
        if tried < MOST_TRIES:
            for candidate in self._candidates[row]:
                if candidate[0] not in self._broken:
                    self._put(row, candidate)
                    return candidate[-1]
        return DataError(
            f"{self.errors[row].reason}; and no good sample of its window was found to stand in for it: {tried} were "
            f"bad, others cannot be read or there are no more; lastly: {error.reason}"
        )

    def _put(self, row: int, candidate: Candidate) -> None:
        if self.samples is self.own:
            changed = ("block", "row", "ordinal", "expires", "valid")
            self.samples = replace(
                self.own, **{name: getattr(self.own, name).copy() for name in changed}
            )
        samples = self.samples
        samples.block[row], samples.row[row], samples.ordinal[row], samples.expires[row] = candidate
        samples.valid[row] = False
