"""Choose the samples that replace bad ones: a pure function of the plan.

The candidates for a bad sample are the samples of its own window in a keyed order: one that is 8 to
15 positions after it in the pass's sequence, one 16 to 31, and so on, round the end of the window;
then all others, in keyed strides. So the first candidates are in blocks that are needed at about
the same time, and a damaged stretch of any length is soon left behind. The replacement is the first
good candidate, whatever ranks, workers or timing are.

Owns that order, and the state of one step's rows. Readers and decoders find the bad samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from rayingest.errors import DataError, DeadlySampleError
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.randomness import fold
from rayingest.plan.order.step_samples import StepSamples

MOST_CANDIDATES = 256
MOST_TRIES = 64
"""At most this many candidates of one sample are looked at, and at most this many are decoded and
found bad: the next one is then not likely to be good.
"""
_NEAREST = 8

Candidate = tuple[int, int, int, int]
"""Block, row in the block, ordinal, and `expires` as in `StepSamples`."""


def distances(size: int, key: int) -> Iterator[int]:
    """Yield how far after a sample its candidates are, in a window of `size` samples.

    Every other sample of the window occurs.
    """
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
    """Yield the candidates that may replace a row's sample, in order."""
    begin, end = int(samples.window_begin[row]), int(samples.window_end[row])
    key = fold("stand-in", planner.order.seed or 0, samples.pass_number, int(samples.ordinal[row]))
    for distance in distances(end - begin, key):
        place = begin + (int(samples.position[row]) - begin + distance) % (end - begin)
        yield planner.replacement(samples, row, place)


@dataclass(frozen=True)
class Known:
    """The errors found so far.

    `broken`: of unreadable blocks, by number. `deadly`: of samples that end workers, by ordinal.
    """

    broken: dict[int, DataError] = field(default_factory=dict)
    deadly: dict[int, DataError] = field(default_factory=dict)


class FilledStep:
    """A step's rows while replacements take the places of bad samples.

    `own` are the plan's samples. `samples` are those to use now: replacements are among them, not
    `valid`. `errors` has, by row, what is wrong with the own sample of each replaced row. The steps
    of a stream share what is `known`.
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
        """Rows whose samples have ended workers; they are tried all the same."""
        deadly = self._known.deadly
        return (
            tuple(np.flatnonzero(np.isin(self.samples.ordinal, list(deadly))).tolist())
            if deadly
            else ()
        )

    def fill(self, row: int, error: DataError, unreadable: bool = False) -> int | DataError:
        """Replace a row's sample, which is bad, or (`unreadable`) its block, by the next candidate.

        Returns the candidate's `expires`, or the error if no candidate is left.
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
            f"{self.errors[row].reason}; no good sample of its window can replace it: "
            f"{tried} replacements were bad, the others cannot be read or do not exist; "
            f"the last error: {error.reason}"
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
