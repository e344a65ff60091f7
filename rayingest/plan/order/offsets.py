"""Offsets: where a source without end stood before each step.

A source has partitions, which go on at offsets that its user gives, and one of which is next: that
is a *mark*, a line of JSON. Readers find the mark after each step; here the marks are kept for the
steps that may be read again, or at which a state may be taken. Owns what a state holds of them, and
the numbers of blocks: those of steps, apart for each walk, because the same step may be another
block then.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rayingest.errors import DataError

_STEP_BITS = 40


def encode_mark(turn: int, offsets: Sequence[Any]) -> str:
    """Return the mark at which partition `turn` is next and each goes on at its offset.

    Raises TypeError or ValueError for an offset that JSON does not have.
    """
    return json.dumps([turn, offsets], allow_nan=False)


class Offsets:
    """The marks of one rank's stream, by step from the source's begin; callable from any thread.

    `names` are those of the partitions. `first` is the step at which the running walk began.
    `schema` is that of the samples, as JSON, once it is known: a state holds it, because the
    samples from which it was learned may be gone by then.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._lock = threading.Lock()
        self._walk = 0
        self._before = {0: encode_mark(0, [None] * len(self.names))}
        self.first = 0
        self.schema: Any = None

    # The walk

    def go_on_from(self, step: int, mark: str) -> None:
        """Forget all marks but this one, before this step."""
        with self._lock:
            self._begin(step, mark)

    def begin(self, step: int) -> bool:
        """Begin a walk at this step: all marks after it are found again.

        Returns False if the mark of the step is gone because another state was loaded meanwhile.
        """
        with self._lock:
            mark = self._before.get(step)
            if mark is not None:
                self._begin(step, mark)
            return mark is not None

    def _begin(self, step: int, mark: str) -> None:
        self._walk += 1
        self._before = {step: mark}
        self.first = step

    def block(self, step: int) -> int:
        """Return the number of a step's block."""
        return self._walk << _STEP_BITS | step

    def before(self, block: int) -> tuple[int, str]:
        """Return a block's step, and the mark before it; "" for an unknown mark."""
        walk, step = block >> _STEP_BITS, step_of(block)
        with self._lock:
            return step, self._before.get(step, "") if walk == self._walk else ""

    def note(self, block: int, mark: str) -> None:
        """Note the mark that a reader found after a block.

        Raises DataError where an earlier reader of the block found another mark.
        """
        step = step_of(block)
        with self._lock:
            if block >> _STEP_BITS != self._walk:
                return
            if self._before.setdefault(step + 1, mark) != mark:
                raise DataError(
                    f"step {step} was read again and has other records: the offsets after it were "
                    f"{self._before[step + 1]} before, and are {mark} now; open_at must return the "
                    "same records for the same offset",
                    transient=True,
                )

    def reached(self, step: int) -> None:
        """Forget the marks before a step that the loop has reached."""
        with self._lock:
            for past in [past for past in self._before if past < step]:
                del self._before[past]

    def at(self, step: int) -> str:
        """Return the mark before a step that the loop has reached."""
        with self._lock:
            return self._before[step]

    @property
    def first_is_read(self) -> bool:
        """Whether the walk's first block has been read."""
        with self._lock:
            return self.first + 1 in self._before

    # States

    def save(self, step: int) -> dict[str, Any]:
        """Return what a state holds of the stream before a step."""
        turn, offsets = json.loads(self.at(step))
        return {
            "turn": self.names[turn],
            "offsets": dict(zip(self.names, offsets, strict=True)),
            "schema": self.schema,
        }

    def compare(self, state: Mapping[str, Any]) -> list[str]:
        """Return in words what differs in a state; [] if `load` can take it."""
        turn, offsets, schema = (state.get(name) for name in ("turn", "offsets", "schema"))
        differs = []
        if state.get("epoch") != 0:
            differs.append(
                f"epoch: the state has {state.get('epoch')!r}, a stream has epoch 0 alone"
            )
        if (
            not isinstance(offsets, Mapping)
            or offsets.keys() != set(self.names)
            or turn not in offsets
        ):
            found = list(offsets) if isinstance(offsets, Mapping) else offsets
            differs.append(f"partitions: the state has {found!r}, this loader {list(self.names)!r}")
        if None not in (schema, self.schema) and schema != self.schema:
            differs.append(
                "fields: this loader has learned others; load the state before its first batch"
            )
        return differs

    def load(self, state: Mapping[str, Any], step: int) -> None:
        """Go on from a state, of which nothing differs, at its step."""
        offsets = [state["offsets"][name] for name in self.names]
        self.go_on_from(step, encode_mark(self.names.index(state["turn"]), offsets))
        self.schema = state.get("schema") if self.schema is None else self.schema


def step_of(block: int) -> int:
    """Return the step whose block this is."""
    return block & ((1 << _STEP_BITS) - 1)
