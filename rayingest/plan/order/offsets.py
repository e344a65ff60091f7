"""Bookmarks: where an unbounded source stood before each step, and the states that are made of that.

A source has partitions, which go on at offsets that its user gives, and one of which is next: that is a bookmark, a
line of JSON. Readers find the one behind each step; here they are kept for the steps that may be read again, or be
where a state is taken. Owns what such a state holds, and the numbers of blocks: those of steps, apart for each walk, as
the same step may be another one then.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayingest.errors import DataError, StateError
from rayingest.plan.order.state import STATE_VERSION, is_count

STREAM_VERSION = 1
"""Of the order of records: one of each partition in turn."""
_STEP_BITS = 40

_log = logging.getLogger("rayingest")


def bookmark(turn: int, offsets: Sequence[Any]) -> str:
    """Partition `turn` is next, and each goes on at its offset. TypeError, ValueError for what JSON does not have."""
    return json.dumps([turn, offsets], allow_nan=False)


class Bookmarks:
    """Those of one rank's stream; callable from any thread. Steps count from the source's begin.

    `first` is where the running walk began. `schema` is that of the samples, as JSON, once it is known.
    """

    def __init__(self, partitions: int) -> None:
        self._lock = threading.Lock()
        self._chain = 0
        self._before = {0: bookmark(0, [None] * partitions)}
        self.first = 0
        self.schema: Any = None

    def go_on_from(self, step: int, mark: str) -> None:
        """Forget all; this is where it stood before this step."""
        with self._lock:
            self._begin(step, mark)

    def begin(self, step: int) -> bool:
        """A walk begins at this step: all that was found behind it is found anew. False where it is not known any more,
        as another state was loaded meanwhile.
        """
        with self._lock:
            mark = self._before.get(step)
            if mark is not None:
                self._begin(step, mark)
            return mark is not None

    def _begin(self, step: int, mark: str) -> None:
        self._chain += 1
        self._before = {step: mark}
        self.first = step

    def block(self, step: int) -> int:
        """The number of a step's block."""
        return self._chain << _STEP_BITS | step

    def before(self, block: int) -> tuple[int, str]:
        """A block's step, and the bookmark before it; "" where that is not known."""
        chain, step = block >> _STEP_BITS, step_of(block)
        with self._lock:
            return step, self._before.get(step, "") if chain == self._chain else ""

    def note(self, block: int, mark: str) -> None:
        """What a block's reader found behind it. DataError where a reader before it found something else."""
        step = step_of(block)
        with self._lock:
            if block >> _STEP_BITS != self._chain:
                return
            if self._before.setdefault(step + 1, mark) != mark:
                raise DataError(
                    f"step {step} was read again and has other records: from an offset that it gave, open_at must give "
                    f"the same again; before it was {self._before[step + 1]}, now {mark}",
                    transient=True,
                )

    def reached(self, step: int) -> None:
        """Nobody goes back behind this step."""
        with self._lock:
            for past in [past for past in self._before if past < step]:
                del self._before[past]

    def at(self, step: int) -> str:
        """The bookmark before a step that is reached."""
        with self._lock:
            return self._before[step]

    @property
    def first_is_read(self) -> bool:
        """Whether the walk's first block has been read."""
        with self._lock:
            return self.first + 1 in self._before


def step_of(block: int) -> int:
    """The step whose block this is."""
    return block & ((1 << _STEP_BITS) - 1)


@dataclass(frozen=True)
class BookmarkCodec:
    """Turns steps into states and back: JSON of as many offsets as there are partitions, the same on every rank.

    `decode` and `code` are what they are for `StateCodec`. The schema is in a state since the samples that it was
    learnt from may be gone by then.
    """

    marks: Bookmarks
    names: tuple[str, ...]
    batch: int
    seed: int
    decode: str
    code: str

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        """The state after `step` steps."""
        turn, offsets = json.loads(self.marks.at(step))
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "step": step,
            **self._identity(),
            "turn": self.names[turn],
            "offsets": dict(zip(self.names, offsets, strict=True)),
            "schema": self.marks.schema,
            "code": self.code,
        }

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """(0, step) to go on from; the bookmarks go on from there. StateError naming all that differs."""
        if not isinstance(state, Mapping):
            raise StateError(
                f"a state is a dict as state_dict() gives it, not {type(state).__name__}"
            )
        mine = {"version": STATE_VERSION, "epoch": 0, **self._identity()}
        differs = [
            f"{name}: the state has {state.get(name)!r}, this loader {value!r}"
            for name, value in mine.items()
            if state.get(name) != value
        ]
        step, turn, offsets = state.get("step"), state.get("turn"), state.get("offsets")
        if (
            not isinstance(offsets, Mapping)
            or offsets.keys() != set(self.names)
            or turn not in offsets
        ):
            there = list(offsets) if isinstance(offsets, Mapping) else offsets
            differs.append(f"partitions: the state has {there!r}, this loader {list(self.names)!r}")
        if not is_count(step):
            differs.append(f"step: {step!r} is none")
        changed = state.get("code") != self.code
        schema = None if changed else state.get("schema")
        if None not in (schema, self.marks.schema) and schema != self.marks.schema:
            differs.append(
                "fields: this loader has learnt others; load the state before its first batch"
            )
        if differs:
            raise StateError("the state belongs to another stream; " + "; ".join(differs))
        if changed:
            _log.warning(
                "the transforms' code has changed since this state was saved: later samples may differ"
            )
        assert isinstance(offsets, Mapping)
        assert is_count(step)
        mark = bookmark(self.names.index(str(turn)), [offsets[name] for name in self.names])
        self.marks.go_on_from(step, mark)
        self.marks.schema = schema if self.marks.schema is None else self.marks.schema
        return 0, step

    def _identity(self) -> dict[str, Any]:
        return {
            "stream": STREAM_VERSION,
            "batch": self.batch,
            "seed": self.seed,
            "decode": self.decode,
        }
