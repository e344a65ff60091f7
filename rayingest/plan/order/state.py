"""The position in the stream, as one small piece of JSON that any number of ranks can go on from.

Owns what a saved state holds and what it is checked against: format version, epoch, step, fingerprint of the data, the
order's parameters, the decode path, and a mark of the transforms' code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from rayingest.errors import StateError
from rayingest.plan.order.epoch_length import Calendar
from rayingest.plan.order.order import Order

STATE_VERSION = 1

_log = logging.getLogger("rayingest")


@dataclass(frozen=True)
class StateCodec:
    """Turns positions into states and back, for one stream.

    `decode` names what decodes (a state of another is refused: its bytes could differ); `code` marks the transforms'
    code (another is warned of: it may or may not matter). `view` names what is left out of the data, "" for nothing; a
    `calendar` says how long an epoch is, None: once through the data. `lengths` is a hash of the lengths by which
    samples are brought together, "" where they are not; `grouping` says how they are made groups of, and `steps_in` how
    many steps an epoch then has. `mixture` names that and the orders of its sources, `weights` is a
    hash of those by which samples are drawn.
    """

    fingerprint: str
    order: Order
    decode: str
    code: str
    view: str = ""
    calendar: Calendar | None = None
    lengths: str = ""
    grouping: str = ""
    mixture: str = ""
    weights: str = ""
    steps_in: Callable[[int], int] | None = None

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        """The state after `step` steps of `epoch`: JSON, under 1 KB, the same on every rank."""
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "step": step,
            **self._identity(),
            "code": self.code,
        }

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """(epoch, step) to go on from; step < steps of an epoch. Raises StateError naming all that differs."""
        if not isinstance(state, Mapping):
            raise StateError(
                f"a state is a dict as state_dict() gives it, not {type(state).__name__}"
            )
        version = state.get("version")
        if version != STATE_VERSION:
            raise StateError(
                f"the state's version is {version!r}; this rayingest reads version {STATE_VERSION}"
            )
        absent = dict.fromkeys(("view", "epoch_steps", "lengths", "grouping", "mixture", "weights"))
        mine = {**absent, **self._identity()}
        differs = [
            f"{name}: the state has {state.get(name)!r}, this loader {value!r}"
            for name, value in mine.items()
            if state.get(name) != value
        ]
        if "code" not in state:
            differs.append("code: the state lacks it")
        if differs:
            raise StateError(
                "the state belongs to another stream; " + "; ".join(differs) + self._remedy(state)
            )
        epoch, step = state.get("epoch"), state.get("step")
        steps = self._steps(epoch if is_count(epoch) else 0)
        if not (is_count(epoch) and is_count(step)) or step > steps:
            raise StateError(
                f"epoch {epoch!r}, step {step!r} is no position in epochs of {steps} steps"
            )
        if state.get("code") != self.code:
            _log.warning(
                "the transforms' code has changed since this state was saved: later samples may differ"
            )
        return (epoch + 1, 0) if step == steps else (epoch, step)

    def _steps(self, epoch: int) -> int:
        if self.steps_in is not None:
            return self.steps_in(epoch)
        return self.order.steps if self.calendar is None else self.calendar.epoch_steps

    def _remedy(self, state: Mapping[str, Any]) -> str:
        """What helps where the state differs in nothing but how images are decoded."""
        if {**state, **self._identity()} != {**state, "decode": self.decode}:
            return ""
        return f". Images are decoded otherwise: make the loader with image_backend={state.get('decode')!r} to go on"

    def _identity(self) -> dict[str, Any]:
        order = self.order
        named = {
            name: getattr(self, name)
            for name in ("view", "lengths", "grouping", "mixture", "weights")
        }
        beside: dict[str, Any] = {name: value for name, value in named.items() if value}
        if self.calendar is not None and not self.calendar.is_plain:
            beside["epoch_steps"] = self.calendar.epoch_steps
        return {
            "fingerprint": self.fingerprint,
            "order": order_version(
                bool(beside), bool(self.grouping), bool(self.mixture), bool(self.weights)
            ),
            "samples": order.samples,
            "batch": order.batch,
            "partial": order.partial,
            "seed": order.seed,
            "lanes": order.lanes,
            "window_steps": order.window_steps,
            **beside,
            "decode": self.decode,
        }


def order_version(beside: bool, grouped: bool, mixed: bool = False, weighted: bool = False) -> int:
    """The least order version that has what a stream uses: what is `beside` version 1, groups, mixtures, weights."""
    return 5 if weighted else 4 if mixed else 3 if grouped else 2 if beside else 1


def is_count(value: Any) -> TypeGuard[int]:
    """Whether this is a whole number, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
