"""Walk over a stream's steps from a start on: planned, taken up by dispatch, not yet delivered.

Owns the replacements of bad samples in these steps. Each walk has its own, because dispatch may
still report on the walk before.
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
    """The steps from a position up to, but not including, epoch `epochs`; None: without end.

    `known` remembers the bad samples of earlier walks.
    """

    def __init__(
        self, stream: Stream, epoch: int, step: int, epochs: int | None, known: Known
    ) -> None:
        self._stream, self._position, self._epochs = stream, (epoch, step), epochs
        self._known = known
        self._steps: deque[FilledStep] = deque()
        self._first = 0  # the number of `_steps[0]`, counted from the start
        self._begins = {epoch: -step}  # the number of each epoch's first step

    def start(self) -> ev.Start:
        """Return the event that starts dispatch on these steps."""
        return ev.Start(self._work(), self._replace if self._stream.work.skip else None)

    def samples(self, step: int) -> StepSamples:
        """Return the samples of a step as they are now; steps are counted from the start."""
        return self._steps[step - self._first].samples

    def take(self) -> FilledStep:
        """Remove and return the first step."""
        self._first += 1
        return self._steps.popleft()

    def _work(self) -> Iterator[ev.StepWork]:
        for samples in self._stream.steps(*self._position, self._epochs):
            filled = FilledStep(self._stream.planner, samples, self._known)
            self._steps.append(filled)
            yield ev.StepWork(
                filled.samples.block,
                filled.samples.expires + self._begin(filled.own.epoch),
                samples.size,
                filled.deadly,
                None if self._epochs is not None else self._begin(filled.own.epoch + 1),
            )

    def _replace(
        self, step: int, row: int, error: DataError, unreadable: bool
    ) -> tuple[int, int] | DataError:
        filled = self._steps[step - self._first]
        expires = filled.fill(row, error, unreadable)
        if isinstance(expires, DataError):
            return expires
        return int(filled.samples.block[row]), expires + self._begin(filled.own.epoch)

    def _begin(self, epoch: int) -> int:
        """Return the number of the first step of an epoch; negative before the start.

        The epoch is one that the walk has reached, or the next one.
        """
        if epoch not in self._begins:
            self._begins[epoch] = self._begins[epoch - 1] + self._stream.planner.steps_in(epoch - 1)
        return self._begins[epoch]
