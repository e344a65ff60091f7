"""The training loop's side: passes over a source of batches, and the position that can be saved and resumed.

Owns which pass is running and what the loop has received. Refuses to know how batches are made (the source), what a
state says (the plan), and how tensors reach a device (`prefetch`).
"""

from __future__ import annotations

import operator
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Protocol

import torch

from rayingest.errors import ConfigError, EndOfStreamError, IngestError
from rayingest.plan.figures.metrics import Span, Watch, no_span
from rayingest.plan.protocols import ENDLESS, BatchSource
from rayingest.trainer.device import CudaBackend, resolve_device, resolve_pin
from rayingest.trainer.prefetch import (
    AfterCopy,
    Batches,
    DevicePrefetcher,
    HostBatches,
    Position,
    Values,
)
from rayingest.trainer.slots import SlotPool
from rayingest.trainer.timer import StepTimer


class PlanView(Protocol):
    """What a loader needs to know of the plan."""

    def steps_in(self, epoch: int) -> int:
        """Batches in an epoch, the same on every rank; `ENDLESS` where nobody knows."""

    @property
    def rank(self) -> int:
        """Which share of every global batch this loader gives."""

    @property
    def world_size(self) -> int:
        """How many shares there are."""

    def reached(self, epoch: int, step: int) -> None:
        """The loop has received all that is before this position: it will not go back without a state."""

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        """JSON for a position, and for what it is a position in."""

    def position(self, state: dict[str, Any]) -> tuple[int, int]:
        """Epoch and step of a state; StateError where it belongs to another order, batch or data."""


class Loader:
    """One rank's batches as dicts of tensors, in order.

    Each `for` is one pass: the first after `load_state_dict` finishes the interrupted epoch, every other begins the
    next epoch from its start; leaving a pass early gives up the rest of its epoch. One pass runs at a time. An iterator
    that is asked for nothing is no pass: frameworks make some, to see whether it can be done. An endless epoch is the
    only one: every `for` goes on in it, and ends where the source does for now.

    Args:
        source: where batches come from; the loader closes it, also when this call fails.
        plan: the order that the source follows.
        device: "cpu", "cuda", "cuda:<index>" or a `torch.device`.
        prefetch: batches whose copies to the device are issued ahead; on the CPU the source alone runs ahead.
        slots: the pool that the source writes into; None makes one, for sources whose arrays own their memory.
        pin_memory: pin that pool where it is made here; None does for a CUDA device.
        epochs: how many epochs there will be: nothing is fetched past them before it is asked for. None: no end.
        after_copy: by field, a function of its tensor, run on the device on the consumer's stream.
        clock: seconds, for `stats`.
        watch: who draws conclusions for `stats` from the figures; closed with the loader.

    Raises:
        ConfigError: a device or an option that cannot be had.
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
                raise ConfigError(f"prefetch={prefetch}: a number of batches, 0 or more")
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
        self._position: Position = (0, 0)  # of what the loop has received
        self._due: Position | None = (
            None  # what `_batches` gives next; None: the source must be started
        )
        self._pass_epoch: int | None = (
            None  # of the last pass asked; None: the next one begins at `_position`
        )
        self._pass_number = 0  # of the one pass that may run
        self._pass_ended = ""  # why those before it may not
        self._timer = StepTimer(clock, span)
        self.watch = watch
        self._figures = partial(_figures, source, self._timer, batches, self._slots)
        self._close = weakref.finalize(self, _close, source, batches, watch)
        if watch is not None:
            watch.attach(self._figures)

    @property
    def epoch(self) -> int:
        """The epoch of the position: after an epoch's last batch it is the next one."""
        return self._position[0]

    @property
    def step(self) -> int:
        """Batches of this epoch that the loop has received, the one in hand counted."""
        return self._position[1]

    def __len__(self) -> int:
        """Batches in the epoch of the position. TypeError where nobody knows."""
        steps = self._plan.steps_in(self.epoch)
        if steps == ENDLESS:
            raise TypeError("a loader of a stream has no len(): nobody knows when it ends")
        return steps

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch, from its start. A pass under way ends.

        Raises:
            ConfigError: not an epoch.
        """
        try:
            number = operator.index(epoch)
        except TypeError as error:
            raise ConfigError(f"epoch={epoch!r}: a whole number, 0 or more") from error
        if number < 0:
            raise ConfigError(f"epoch={epoch!r}: a whole number, 0 or more")
        if self._plan.steps_in(0) == ENDLESS:
            raise ConfigError(
                f"set_epoch({number}): a stream is one epoch; a state says where to go on in it"
            )
        self._move((number, 0), "set_epoch was called")

    def state_dict(self) -> dict[str, Any]:
        """The position of what the loop has received, as under 1 KB of JSON, the same on every rank."""
        return self._plan.state(*self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on behind a saved position. A pass under way ends; called again, the last call holds.

        Raises:
            StateError: no state, or one of other data, order or global batch. Nothing has changed then.
        """
        epoch, step = self._plan.position(state)
        steps = max(self._plan.steps_in(epoch), 1)
        self._move((epoch, step) if step < steps else (epoch + 1, 0), "load_state_dict was called")

    def stats(self) -> dict[str, Any]:
        """The figures since the loader was made, and what they say of the last ten seconds.

        `batches` received; `wait_seconds` spent waiting for them; `step_seconds` between receiving one and asking for
        the next; `wait_share` of the first in both, 0 to 1; `slots` and `slot_bytes` of host memory, `pinned_bytes`
        of it. `bottleneck`: what is short, "consumer" where nothing is; `bottleneck_evidence`, `bottleneck_advice` in
        words, `bottleneck_settings` as options. All others are in docs/observing.md.
        """
        figures = self.figures()
        return figures if self.watch is None else {**figures, **self.watch.findings(figures)}

    def figures(self) -> dict[str, Any]:
        """The source's figures and the loop's own, since the loader was made, without conclusions."""
        return self._figures()

    def close(self) -> None:
        """Close the source and give back everything but the batches already handed out. Idempotent."""
        self._close()

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
        """Begin a pass: its batches are made from now on, and it counts once one is asked for.

        Raises:
            IngestError: the loader is closed.
        """
        self._check_open()
        self._end_pass("a newer iterator of this loader was made, and one runs at a time")
        self._timer.begin()
        epoch, step = self._position if self._pass_epoch is None else (self._pass_epoch + 1, 0)
        steps = self._plan.steps_in(epoch)
        if steps and self._due != (epoch, step):
            self._due = None
            self._batches.reset()
            self._source.start(epoch, step)
            self._due = (epoch, step)
        self._pass_epoch = None
        self._position = (epoch, step) if steps else (epoch + 1, 0)
        return _Pass(self, self._pass_number, steps)

    def _next(self, running: _Pass) -> Values:
        """The pass's next batch; whatever goes wrong ends the pass, and the position stays."""
        self._timer.asked()
        if running.done:
            raise StopIteration
        self._check_open()
        if running.number != self._pass_number:
            raise RuntimeError(f"this iterator is over: {self._pass_ended}")
        if self._pass_epoch is None and running.steps != ENDLESS:
            self._pass_epoch = self.epoch
        try:
            position, values = self._batches.next()
            if position != self._due:
                raise IngestError(
                    f"the source gave (epoch, step) {position} where {self._due} was due"
                )
        except BaseException as error:
            running.done = True
            self._due = None
            if isinstance(error, EndOfStreamError):
                raise StopIteration from None
            raise
        epoch, step = position
        running.done = step + 1 == running.steps
        self._due = self._position = (epoch + 1, 0) if running.done else (epoch, step + 1)
        self._plan.reached(*self._position)
        self._timer.handed(position)
        return values

    def _move(self, position: Position, why: str) -> None:
        self._end_pass(why)
        self._position = position
        self._pass_epoch = None

    def _end_pass(self, why: str) -> None:
        self._pass_number += 1
        self._pass_ended = why

    def _check_open(self) -> None:
        if not self._close.alive:
            raise IngestError("this loader is closed; make a new one from its data set")


class _Pass:
    """The iterator of one pass. It keeps its loader, never the other way round: both dropped, the source is closed."""

    def __init__(self, loader: Loader, number: int, steps: int) -> None:
        self._loader = loader
        self.number, self.steps = number, steps
        self.done = not steps

    def __iter__(self) -> Iterator[Values]:
        return self

    def __next__(self) -> Values:
        return self._loader._next(self)


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
    source: BatchSource, timer: StepTimer, batches: Batches, slots: SlotPool
) -> dict[str, Any]:
    """A loader's, for those who must not keep it alive."""
    own = {"slots": slots.slots, "slot_bytes": slots.nbytes, "pinned_bytes": slots.pinned_bytes}
    return {**source.stats(), **timer.stats(), **batches.stats(), **own}


def _close(source: BatchSource, batches: Batches, watch: Watch | None) -> None:
    try:
        source.close()
    finally:
        batches.close()
        if watch is not None:
            watch.close()
