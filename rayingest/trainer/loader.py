"""Iterate over a source of batches, and keep the position that can be saved and resumed.

Owns which `for` loop runs, what the training loop has received, and how long it waits and works.
The source makes the batches, the plan writes states, and `prefetch` copies tensors to a device:
this module knows nothing of the three.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Protocol

import torch
from torch.utils.data import SequentialSampler

from rayingest.errors import ConfigError, EndOfStreamError, IngestError
from rayingest.plan.figures.histogram import Histogram
from rayingest.plan.figures.metrics import Span, Watch, no_span
from rayingest.plan.protocols import ENDLESS, BatchSource
from rayingest.trainer.device import CudaBackend, resolve_device, resolve_pin
from rayingest.trainer.prefetch import (
    AfterCopy,
    Batches,
    DevicePrefetcher,
    HostBatches,
    Position,
    SlotPool,
    Values,
)
from rayingest.trainer.steps import StepBatches, StepSampler

_log = logging.getLogger("rayingest")

_INSTEAD = (
    "make a loader in each process, with its rank and world_size. A loader needs no DataLoader "
    "around it: workers=... decodes in parallel"
)


class PlanView(Protocol):
    """The part of a plan that a loader uses."""

    def steps_in(self, epoch: int) -> int:
        """Return the number of batches in an epoch, equal on all ranks; `ENDLESS` if unknown."""

    @property
    def rank(self) -> int:
        """The share of every global batch that this loader yields, below `world_size`."""

    @property
    def world_size(self) -> int:
        """The number of shares of a global batch."""

    def reached(self, epoch: int, step: int) -> None:
        """Note that the loop has received all before this position: only a state leads back."""

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the position, and the identity of the data and order, as JSON."""

    def position(self, state: dict[str, Any]) -> tuple[int, int]:
        """Return epoch and step of a state; StateError if it is of another order, batch or data."""


class Loader:
    """Yields one rank's batches in order, as dicts of tensors.

    Each `for` loop takes the batches of one epoch. The first loop after `load_state_dict`, and the
    first one after an error of the loader, finish the interrupted epoch; every other loop begins
    the next epoch at its start. Leaving a loop early gives up the rest of its epoch. One loop runs
    at a time; threads may share its iterator, and each batch goes to one of them. Creating an
    iterator does not start a loop; the first `next()` does. (Lightning creates iterators just to
    probe the loader.) A stream without end is one endless epoch: every `for` continues in it, and
    stops where the source has ended for now.

    A loader belongs to the process that made it: it does not pickle, and a fork cannot use it.

    Args:
        source: makes the batches. The loader closes it, also if this constructor fails.
        plan: the order that the source follows.
        device: "cpu", "cuda", "cuda:<index>" or a `torch.device`.
        prefetch: the number of batches to copy to the device ahead of the loop, 0 or more. On the
            CPU only the source runs ahead.
        slots: the pool that the source writes into. None makes one, for sources whose arrays own
            their memory.
        pin_memory: whether a pool made here is pinned; None means: for a CUDA device only.
        epochs: the number of epochs of the run: no batch after them is fetched ahead. None: no
            limit.
        after_copy: by field, a function of its tensor, run on the device on the consumer's stream.
        clock: returns seconds, for `stats`.
        watch: adds its findings to `stats`. The loader closes it.

    Raises:
        ConfigError: a device or an option is not available or not allowed.
    """

    def __init__(
        self,
        source: BatchSource,
        plan: PlanView,
        *,
        device: str | torch.device = "cpu",
        prefetch: int = 2,
        slots: SlotPool | None = None,
        pin_memory: bool | None = None,
        epochs: int | None = None,
        after_copy: AfterCopy | None = None,
        clock: Callable[[], float] = time.perf_counter,
        watch: Watch | None = None,
    ) -> None:
        try:
            self.device = resolve_device(device)
            if prefetch < 0:
                raise ConfigError(f"prefetch={prefetch} is negative; give 0 batches or more")
            pin = resolve_pin(pin_memory, self.device)
            self._slots = SlotPool(pin) if slots is None else slots
            span = no_span if watch is None else watch.span
            batches = _batches(
                source, plan, self.device, prefetch, self._slots, epochs, after_copy, span
            )
        except BaseException:
            source.close()
            raise
        self.epochs = epochs
        self.rank, self.world_size = plan.rank, plan.world_size
        self._source, self._plan, self._batches = source, plan, batches
        # The position after the last batch that the loop received.
        self._position: Position = (0, 0)
        # The batch that `_batches` gives next. None: start the source before the next batch.
        self._due: Position | None = None
        # The epoch of the last loop that yielded. None: the next loop begins at `_position`.
        self._pass_epoch: int | None = None
        # Where a loaded state or an error left off: `set_epoch` of its epoch leads back there. None
        # once a batch was received afterwards.
        self._resume: Position | None = None
        # Held while a batch is received or the position moves: threads may share an iterator.
        self._lock = threading.Lock()
        self._process = os.getpid()
        # The one loop that may run, and why the loops before it must not.
        self._loop_number = 0
        self._pass_ended = ""
        self._timer = _StepTimer(clock, span)
        self.watch = watch
        self._figures = partial(_figures, source, self._timer, batches, self._slots)
        self._close = weakref.finalize(self, _close, source, batches, watch)
        if watch is not None:
            watch.attach(self._figures)

    @property
    def epoch(self) -> int:
        """The epoch of the position: with an epoch's last batch in hand, already the next epoch."""
        return self._position[0]

    @property
    def step(self) -> int:
        """Batches of this epoch that the loop has received, including the one in hand.

        With the last one in hand it is 0, because the position is then the start of the next epoch.
        """
        return self._position[1]

    # The attributes of a DataLoader from which `accelerate.skip_first_batches`, and with it the
    # Trainer of transformers, make one that leaves out the first batches.

    @property
    def dataset(self) -> StepBatches:
        """The batches of this loader as a data set, for frameworks that skip batches."""
        return StepBatches(self)

    @property
    def batch_sampler(self) -> StepSampler:
        """The steps of the next loop, from the start of its epoch, as indices of `dataset`."""
        return StepSampler(self)

    @property
    def sampler(self) -> SequentialSampler:
        """The steps of an epoch in order. Lightning looks here for a sampler that shuffles."""
        return SequentialSampler(self)

    @staticmethod
    def collate_fn(batch: Values) -> Values:
        """Return the batch: it is complete."""
        return batch

    prefetch_factor = None
    """None, as in a DataLoader without workers of its own."""

    def __len__(self) -> int:
        """Return the number of batches in the current epoch; TypeError for a stream without end."""
        steps = self._plan.steps_in(self.epoch)
        if steps == ENDLESS:
            raise TypeError("a loader of a stream without end has no len()")
        return steps

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop begin at the start of this epoch. End a running loop.

        If a state of this epoch was loaded, or an error ended a loop in this epoch, the next loop
        goes on at that position instead: frameworks call `set_epoch` before every loop. A loop that
        begins elsewhere logs a warning, because it gives the position up.

        Raises:
            ConfigError: `epoch` is not a whole number of 0 or more, or the stream has no end.
        """
        try:
            number = operator.index(epoch)
        except TypeError as error:
            raise ConfigError(f"epoch={epoch!r} is not a whole number; give 0 or more") from error
        if number < 0:
            raise ConfigError(f"epoch={epoch!r} is negative; give 0 or more")
        if self._plan.steps_in(0) == ENDLESS:
            raise ConfigError(
                f"set_epoch({number}): a stream without end is one epoch; to continue at a "
                "position, use load_state_dict"
            )
        with self._lock:
            resume = self._resume
            position = resume if resume and resume[0] == number else (number, 0)
            if self._pass_epoch is not None or position != self._position:
                self._move(position, "set_epoch was called")

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last received batch; under 1 KB, equal on all ranks."""
        return self._plan.state(*self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next loop continue at a saved position. End a running loop.

        Raises:
            StateError: `state` is no state, or is of other data, another order or another global
                batch. The loader is then unchanged.
        """
        epoch, step = self._plan.position(state)
        steps = max(self._plan.steps_in(epoch), 1)
        position = (epoch, step) if step < steps else (epoch + 1, 0)
        with self._lock:
            self._move(position, "load_state_dict was called")
            self._resume = position

    def stats(self) -> dict[str, Any]:
        """Return all figures since the loader was made, and a diagnosis of the last ten seconds.

        `batches` received; `wait_seconds` spent waiting for them; `step_seconds` from receiving a
        batch to asking for the next; `wait_share`, waits in the sum of both, 0 to 1; `slots` and
        `slot_bytes` of host memory, `pinned_bytes` of it. `bottleneck`, or "consumer" if there is
        none; `bottleneck_evidence` and `bottleneck_advice` in words; `bottleneck_settings` as
        options. docs/observing.md lists all others.
        """
        figures = self.figures()
        return figures if self.watch is None else {**figures, **self.watch.findings(figures)}

    def figures(self) -> dict[str, Any]:
        """Return the figures of `stats` without the diagnosis."""
        return self._figures()

    def close(self) -> None:
        """Close the source and free everything except batches already yielded. Idempotent."""
        self._close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a loader cannot be pickled or copied: its process owns it; {_INSTEAD}")

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Values]:
        """Create the iterator of the next loop; the source starts on its batches at once.

        Raises:
            IngestError: the loader is closed.
        """
        self._check_usable()
        with self._lock:
            self._end_loop("a newer iterator of this loader exists, and one runs at a time")
            self._timer.begin_loop()
            epoch, step = self._next_position()
            steps = self._plan.steps_in(epoch)
            if steps and self._due != (epoch, step):
                self._due = None
                self._batches.reset()
                self._source.start(epoch, step)
                self._due = (epoch, step)
            self._pass_epoch = None
            self._position = (epoch, step) if steps else (epoch + 1, 0)
            return _Loop(self, self._loop_number, steps)

    def _iter_at(self, position: Position) -> Iterator[Values]:
        """Create the iterator of a loop that begins at this position."""
        with self._lock:
            self._move(position, "a loop began at another step")
        return iter(self)

    def _end_epoch(self, epoch: int) -> None:
        """Let the next loop begin after this epoch, unless it does already."""
        with self._lock:
            if self._next_position()[0] == epoch:
                self._move((epoch + 1, 0), "all batches of its epoch were skipped")

    def _next_epoch(self) -> tuple[int, int]:
        """Return the epoch of the next loop, and the number of steps of that epoch."""
        epoch, _ = self._next_position()
        return epoch, self._plan.steps_in(epoch)

    def _next_position(self) -> Position:
        """Return the position at which the next loop begins."""
        return self._position if self._pass_epoch is None else (self._pass_epoch + 1, 0)

    def _next(self, running: _Loop) -> Values:
        """Return the loop's next batch. An error ends the loop and leaves the position as it is."""
        self._check_process()  # a fork may have copied the lock while another thread held it
        with self._lock:
            self._timer.begin_wait()
            if running.done:
                raise StopIteration
            self._check_usable()
            if running.number != self._loop_number:
                raise RuntimeError(f"this iterator has ended: {self._pass_ended}")
            before = self._position
            try:
                position, values = self._batches.next()
                if position != self._due:
                    raise IngestError(
                        f"the source gave (epoch, step) {position}, but {self._due} is due"
                    )
                self._receive(position, running)
            except EndOfStreamError:
                running.done, self._due = True, None
                raise StopIteration from None
            except BaseException:  # also a signal's: the loop has not got the batch
                running.done, self._due = True, None
                self._position = self._resume = before
                self._pass_epoch = None
                raise
            return values

    def _receive(self, position: Position, running: _Loop) -> None:
        """Note that the loop receives the batch of this position."""
        epoch, step = position
        resume, self._resume = self._resume, None
        if resume not in {None, position}:
            _log.warning(
                "a loop began at epoch %d, step %d, and so gave up the position to resume at, "
                "epoch %d, step %d; set_epoch(%d) keeps it",
                *(*position, *resume, resume[0]),
            )
        if running.steps != ENDLESS:
            self._pass_epoch = epoch
        running.done = step + 1 == running.steps
        self._due = self._position = (epoch + 1, 0) if running.done else (epoch, step + 1)
        self._plan.reached(*self._position)
        self._timer.end_wait(position)

    def _move(self, position: Position, reason: str) -> None:
        self._end_loop(reason)
        self._position = position
        self._pass_epoch = None

    def _end_loop(self, reason: str) -> None:
        self._loop_number += 1
        self._pass_ended = reason

    def _check_usable(self) -> None:
        self._check_process()
        if not self._close.alive:
            raise IngestError("this loader is closed; make a new one from its dataset")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise IngestError(
                "a forked process cannot use the loader of its parent: made in process "
                f"{self._process}, used in process {os.getpid()}; {_INSTEAD}"
            )


class _Loop:
    """The iterator of one loop.

    It refers to its loader, never the other way round: once the user drops both, the source closes.
    """

    def __init__(self, loader: Loader, number: int, steps: int) -> None:
        self._loader = loader
        self.number, self.steps = number, steps
        self.done = not steps

    def __iter__(self) -> Iterator[Values]:
        return self

    def __next__(self) -> Values:
        return self._loader._next(self)


class _StepTimer:
    """Times how long the loop waits for batches, and how long it works on them.

    The loader calls it at both ends of each step; `clock` returns seconds. `span` receives each
    wait and each step.
    """

    def __init__(self, clock: Callable[[], float], span: Span = no_span) -> None:
        self._clock, self._span = clock, span
        self._position = (0, 0)  # epoch and step of the batch in hand
        self._received_at: float | None = None  # None: the loop has no batch in hand
        self._asked_at = 0.0
        self._wait = self._work = 0.0
        self._batches = 0
        self._waits, self._steps = Histogram(), Histogram()

    def begin_loop(self) -> None:
        """Begin a loop: the time since the last batch of the loop before is no step."""
        self._received_at = None

    def begin_wait(self) -> None:
        """The loop asks for a batch: the step on the last one ends."""
        self._asked_at = self._clock()
        if self._received_at is not None:
            took = self._asked_at - self._received_at
            self._work += took
            self._steps.add(took)
            self._span("step", took, "loop", self._position)
            self._received_at = None

    def end_wait(self, position: tuple[int, int]) -> None:
        """The loop receives the batch of this epoch and step."""
        self._received_at, self._position = self._clock(), position
        took = self._received_at - self._asked_at
        self._wait += took
        self._waits.add(took)
        self._span("wait", took, "loop", position)
        self._batches += 1

    def stats(self) -> dict[str, Any]:
        """Return the figures of the loop.

        `batches` received, `wait_seconds`, `step_seconds`, `wait_share` (waits in both, 0 to 1),
        and the duration counts of waits and steps. A step counts when it ends;
        `current_step_seconds` is the age of the batch in hand, 0 if there is none.
        """
        received_at = self._received_at
        total = self._wait + self._work
        return {
            "batches": self._batches,
            "wait_seconds": self._wait,
            "step_seconds": self._work,
            "current_step_seconds": 0.0 if received_at is None else self._clock() - received_at,
            "wait_share": self._wait / total if total else 0.0,
            "wait_durations": self._waits.counts.copy(),
            "step_durations": self._steps.counts.copy(),
        }


def _batches(
    source: BatchSource,
    plan: PlanView,
    device: torch.device,
    prefetch: int,
    slots: SlotPool,
    epochs: int | None,
    after_copy: AfterCopy | None,
    span: Span,
) -> Batches:
    if device.type == "cpu":
        return HostBatches(source.get, after_copy)

    def may_run_ahead(position: Position) -> bool:
        return (
            epochs is None
            or position[0] != epochs - 1
            or position[1] + 1 < plan.steps_in(position[0])
        )

    return DevicePrefetcher(
        source.get,
        CudaBackend(device),
        prefetch,
        after_copy,
        staging=slots,
        ready=getattr(source, "ready", None),
        may_run_ahead=may_run_ahead,
        span=span,
    )


def _figures(
    source: BatchSource, timer: _StepTimer, batches: Batches, slots: SlotPool
) -> dict[str, Any]:
    """Return a loader's figures without a reference to it: the watch must not keep it alive."""
    own = {"slots": slots.slots, "slot_bytes": slots.nbytes, "pinned_bytes": slots.pinned_bytes}
    return {**source.stats(), **timer.stats(), **batches.stats(), **own}


def _close(source: BatchSource, batches: Batches, watch: Watch | None) -> None:
    try:
        source.close()
    finally:
        batches.close()
        if watch is not None:
            watch.close()
