"""Steps of a plan with bad samples and unreadable blocks, and their expected result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rayingest.errors import DataError
from rayingest.plan.dispatch import events as ev
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.replacements import FilledStep, Known, candidates


class SkippingSteps:
    """An epoch's steps for dispatch, from `first` on; which ordinals are bad and which blocks
    broken is the truth.
    """

    def __init__(self, planner: Planner, bad: set[int], broken: set[int], first: int = 0) -> None:
        self.planner, self.bad, self.broken, self.first = planner, bad, broken, first
        self.filled: list[FilledStep] = []
        self.known = Known()

    def steps(self) -> Iterator[ev.StepWork]:
        """What dispatch is given."""
        for step in range(self.first, self.planner.steps_per_epoch):
            filled = FilledStep(self.planner, self.planner.step_samples(0, step), self.known)
            self.filled.append(filled)
            yield ev.StepWork(
                filled.samples.block, filled.samples.expires - self.first, deadly=filled.deadly
            )

    def replacement(
        self, step: int, row: int, error: DataError, unreadable: bool
    ) -> tuple[int, int] | DataError:
        """What dispatch asks."""
        filled = self.filled[step]
        assert unreadable == (int(filled.samples.block[row]) in self.broken), (
            "a block was blamed for a sample"
        )
        expires = filled.fill(row, error, unreadable)
        return (
            expires
            if isinstance(expires, DataError)
            else (int(filled.samples.block[row]), expires - self.first)
        )

    def bad_places(self, part: ev.Part) -> Sequence[int]:
        """Of a part about to be decoded, the places of bad samples."""
        ordinals = self.filled[part.step].samples.ordinal[part.rows]
        return np.flatnonzero(np.isin(ordinals, list(self.bad))).tolist()

    def rows(self, step: int) -> list[tuple[int, bool]]:
        """(ordinal, valid) of the rows that a step has now."""
        samples = self.filled[step - self.first].samples
        return list(zip(samples.ordinal.tolist(), samples.valid.tolist(), strict=True))[
            : samples.rows
        ]

    def all_have_stand_ins(self) -> bool:
        """Whether every window has a good sample, without which a bad one is an error."""
        try:
            for step in range(self.planner.steps_per_epoch):
                self.expected(step)
        except StopIteration:
            return False
        return True

    def expected(self, step: int) -> list[tuple[int, bool]]:
        """(ordinal, valid) that a step's rows must end with: the sample itself, or its first good
        candidate.
        """
        return expected_rows(self.planner, step, self.bad, self.broken)


def expected_rows(
    planner: Planner, step: int, bad: set[int], broken: set[int]
) -> list[tuple[int, bool]]:
    """The same, from nothing but the plan."""
    samples = planner.step_samples(0, step)
    rows = []
    for row in range(samples.rows):
        ordinal, valid = int(samples.ordinal[row]), bool(samples.valid[row])
        if ordinal in bad or int(samples.block[row]) in broken:
            found = (
                c
                for c in candidates(planner, samples, row)
                if c[0] not in broken and c[2] not in bad
            )
            ordinal, valid = next(found)[2], False
        rows.append((ordinal, valid))
    return rows
