"""The position in a stream as a small piece of JSON that any number of ranks can go on from.

Owns what a state holds and what it is checked against: format version, epoch and step, the identity
of the stream, and a mark of the transforms' code. What the identity is made of is the order kind's
business; a source without end also carries its offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from rayingest.errors import StateError

STATE_VERSION = 2
"""Of the form of states. In version 1, `order` was a number."""

_log = logging.getLogger("rayingest")


class Carried(Protocol):
    """What a source adds to a state, because it cannot be computed from the position."""

    def save(self, step: int) -> dict[str, Any]:
        """Return what to add before a step."""

    def compare(self, state: Mapping[str, Any]) -> list[str]:
        """Return in words what differs in a state; [] if `load` can take it."""

    def load(self, state: Mapping[str, Any], step: int) -> None:
        """Go on from a state, of which nothing differs."""


@dataclass(frozen=True)
class StateCodec:
    """Turns positions into states and back, for one stream.

    `identity`: JSON by name that a state must equal, such as the fingerprint of the data, the order
    and the image backend. `code`: a mark of the transforms' code; other code is warned of, because
    later samples may differ. `steps_in`: the steps of an epoch.
    """

    identity: Mapping[str, Any]
    code: str
    steps_in: Callable[[int], int]
    carried: Carried | None = None

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state after `step` steps of `epoch`: JSON, equal on all ranks.

        Under 1 KB, but for the offsets and fields of a source without end.
        """
        carried = {} if self.carried is None else self.carried.save(step)
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "step": step,
            **self.identity,
            **carried,
            "code": self.code,
        }

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return epoch and step to go on from; the step is less than the epoch's steps.

        A source without end goes on from there. Raises StateError naming all that differs.
        """
        if not isinstance(state, Mapping):
            raise StateError(
                f"a state is a dict as state_dict() returns it, not {type(state).__name__}"
            )
        version = state.get("version")
        if version == 1 and isinstance(state.get("order", 1), int):
            raise StateError(
                "the state has version 1, which this rayingest cannot read: resume it with the "
                "rayingest that saved it, or begin a new run"
            )
        if version != STATE_VERSION:
            raise StateError(
                f"the state's version is {version!r}; this rayingest reads version {STATE_VERSION}"
            )
        differs = list(_differences(state, self.identity))
        if self.carried is not None:
            differs += self.carried.compare(self._usable(state))
        if "code" not in state:
            differs.append("code: the state lacks it")
        if differs:
            raise StateError("the state belongs to another stream; " + _with_remedy(differs, state))
        epoch, step = state.get("epoch"), state.get("step")
        steps = self.steps_in(epoch if is_count(epoch) else 0)
        if not (is_count(epoch) and is_count(step)) or step > steps:
            raise StateError(
                f"epoch {epoch!r}, step {step!r} is not a position in epochs of {steps} steps: "
                f"an epoch is a whole number from 0, a step is 0 to {steps}"
            )
        if state["code"] != self.code:
            _log.warning(
                "the transforms' code has changed since this state was saved: "
                "later samples may differ"
            )
        if self.carried is not None:
            self.carried.load(self._usable(state), step)
        return (epoch + 1, 0) if step == steps else (epoch, step)

    def _usable(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leave out the schema of other code: the fields have to be learned again."""
        return state if state.get("code") == self.code else {**state, "schema": None}


def _differences(state: Mapping[str, Any], identity: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words each entry that a state has otherwise, or that only one of both has."""
    for name, value in identity.items():
        found = state.get(name)
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            # Of another kind of order, every other parameter means something else.
            if found.get("kind") != value["kind"]:
                yield f"kind: the state has {found.get('kind')!r}, this loader {value['kind']!r}"
            else:
                yield from _differences(found, {**dict.fromkeys(found), **value})
        elif found != value:
            yield f"{name}: the state has {found!r}, this loader {value!r}"


def _with_remedy(differs: list[str], state: Mapping[str, Any]) -> str:
    """Join what differs, with what helps where that is the image backend alone."""
    if len(differs) > 1 or not differs[0].startswith("image_backend:"):
        return "; ".join(differs)
    backend = state.get("image_backend")
    return (
        f"{differs[0]}. Images are decoded by another backend: make the loader with "
        f"image_backend={backend!r} to go on"
    )


def is_count(value: Any) -> TypeGuard[int]:
    """Whether this is a whole number, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
