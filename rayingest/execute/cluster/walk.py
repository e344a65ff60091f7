"""The walk over a stream from one start on: the steps that dispatch took up and that are not yet delivered.

Owns who stands in for whom in them, each walk for itself: dispatch may still hear of the walk before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from rayingest.errors import DataError
from rayingest.execute.stream import Stream
from rayingest.plan.dispatch import events as ev
from rayingest.plan.order.replacements import FilledStep, Known
from rayingest.plan.order.step_samples import StepSamples


class Walk:
    """From a position up to and without epoch `epochs`, or for ever; `known` is what walks before found."""

    def __init__(
        self, stream: Stream, epoch: int, step: int, epochs: int | None, known: Known
    ) -> None:
        self._stream, self._position, self._epochs, self._known = (
            stream,
            (epoch, step),
            epochs,
            known,
        )
        self._steps: deque[FilledStep] = deque()
        self._first = 0
        self._begins = {epoch: -step}  # steps from the start to the begin of each epoch

    def start(self) -> ev.Start:
        """What dispatch is told."""
        return ev.Start(self._work(), self._stand_in if self._stream.work.skip else None)

    def samples(self, step: int) -> StepSamples:
        """What a step is made of now; steps are counted from the start."""
        return self._steps[step - self._first].samples

    def take(self) -> FilledStep:
        """The first step, which is in the walk no more."""
        self._first += 1
        return self._steps.popleft()

    def _work(self) -> Iterator[ev.StepWork]:
        for samples in self._stream.steps(*self._position, self._epochs):
            filled = FilledStep(self._stream.planner, samples, self._known)
            self._steps.append(filled)
            yield ev.StepWork(
                filled.samples.block,
                filled.samples.expires + self._passed(filled),
                samples.size,
                filled.deadly,
            )

    def _stand_in(
        self, step: int, row: int, error: DataError, unreadable: bool
    ) -> tuple[int, int] | DataError:
        filled = self._steps[step - self._first]
        expires = filled.fill(row, error, unreadable)
        if isinstance(expires, DataError):
            return expires
        return int(filled.samples.block[row]), expires + self._passed(filled)

    def _passed(self, filled: FilledStep) -> int:
        """Steps from the start to the begin of the step's epoch; less than 0 where the start is in it."""
        epoch = filled.own.epoch
        if epoch not in self._begins:
            self._begins[epoch] = self._begins[epoch - 1] + self._stream.planner.steps_in(epoch - 1)
        return self._begins[epoch]
