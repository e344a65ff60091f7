"""Build chunks and steps by hand, and give dispatch events one by one to compare its commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.chunks import Chunk
from rayingest.plan.dispatch.dispatch import Dispatch
from rayingest.plan.dispatch.limits import Limits

FAR = 100
"""An `expires` beyond all steps of a script: blocks with it are dropped for room alone."""


def make_chunk(step: int, *blocks: int, first: int = 0, **fields: Any) -> Chunk:
    """Return a chunk with one row for each of these blocks, from row `first` on."""
    rows = np.arange(first, first + len(blocks))
    return Chunk(step, rows, np.array(blocks), fields.pop("row_cost", 1.0), **fields)


def make_step(*blocks: int, until: int = FAR, **fields: Any) -> ev.StepWork:
    """Return a step with one row for each of these blocks, all needed `until` then."""
    return ev.StepWork(np.array(blocks), np.full(len(blocks), until), **fields)


def part(step: int, *rows: int) -> ev.Part:
    """Return a part as `plain` shows it."""
    return ev.Part(step, rows)  # type: ignore[arg-type]


def output(task: int, index: int, *rows: int) -> ev.Output:
    """Return an output as `plain` shows it."""
    return ev.Output(task, index, rows)  # type: ignore[arg-type]


def plain(command: ev.Command) -> ev.Command:
    """Return the command with tuples in place of arrays, so that it compares by value."""
    match command:
        case ev.Decode():
            return replace(
                command, parts=tuple(part(p.step, *p.rows.tolist()) for p in command.parts)
            )
        case ev.Deliver():
            outputs = tuple(output(o.task, o.index, *o.rows.tolist()) for o in command.outputs)
            return replace(command, outputs=outputs)
    return command


class Script:
    """Hold one dispatch, which every event leaves valid.

    Blocks are expected to take `sizes`, and a row 10 bytes. The store frees an object at once
    unless `inline_bytes` is given. `measured`: the size of a row is known, and not a guess.
    """

    def __init__(self, sizes: Sequence[int], *, measured: bool = True, **limits: Any) -> None:
        limits = {"max_bytes": 1000, "inline_bytes": 1 << 60, "first_task_rows": 100} | limits
        self.dispatch = Dispatch(np.array(sizes), Limits(**limits), row_bytes=10)
        self.state = self.dispatch.state
        if measured:
            self.state.pace.observe_output(1, 10)

    def tell(self, *events: ev.Event) -> list[ev.Command]:
        """Give events; return the commands."""
        commands = self.dispatch.handle(*events)
        self.dispatch.validate()
        return [plain(command) for command in commands]

    @property
    def counters(self) -> dict[str, int]:
        """The counters and gauges that are not 0."""
        return {name: value for name, value in self.dispatch.stats().items() if value}

    def join(self, readers: int = 1, decoders: int = 1, slots: int = 1) -> list[ev.Command]:
        """Have readers r0, r1, ... and decoders d0, d1, ... join."""
        joined = [ev.WorkerJoined(f"r{i}", "reader", slots) for i in range(readers)]
        joined += [ev.WorkerJoined(f"d{i}", "decoder", slots) for i in range(decoders)]
        return self.tell(*joined)

    def start(
        self, *steps: ev.StepWork, find_replacement: ev.FindReplacement | None = None
    ) -> list[ev.Command]:
        """Start these steps."""
        return self.tell(ev.Start(iter(steps), find_replacement))

    def read(self, task: int, *nbytes: int, left_out: Iterable[int] = ()) -> list[ev.Command]:
        """End a read that brought blocks of these sizes."""
        return self.tell(ev.ReadDone(task, nbytes, tuple(left_out)))

    def decode(self, task: int, *nbytes: int, seconds: float = 0.0) -> list[ev.Command]:
        """End a decode with parts of these sizes. It takes no time, so tasks keep their size."""
        return self.tell(ev.DecodeDone(task, tuple(map(ev.PartDone, nbytes)), seconds))
