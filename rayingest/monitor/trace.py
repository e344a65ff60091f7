"""A trace of what was done when, in the format that Chrome (about:tracing) and Perfetto show.

Owns the spans. Workers tell how long they took, not when they began: a span ends when its answer came.
Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Trace:
    """Spans of one rank, of all its workers; `clock` gives seconds. Callable from any thread."""

    def __init__(self, rank: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._rank, self._clock = rank, clock
        self._spans: list[tuple[float, str, float, str, tuple[int, int] | None]] = []

    def span(self, stage: str, seconds: float, who: str, position: tuple[int, int] | None) -> None:
        """Something that took so long has just ended."""
        self._spans.append((self._clock(), stage, seconds, who, position))

    def write(self, path: Path) -> None:
        """All spans so far: rows for each worker and stage, the rank as process, epoch and step as arguments."""
        spans, lanes = [], defaultdict[tuple[str, str], list[int]](list)
        for end, stage, seconds, who, position in sorted(
            self._spans, key=lambda span: span[0] - span[2]
        ):
            begin, until = round(1e6 * (end - seconds)), round(1e6 * end)
            lane = _lane(lanes[who, stage], begin, until)
            spans.append(((who, stage, lane), begin, until, position))
        rows = {row: number for number, row in enumerate(sorted({span[0] for span in spans}))}
        events: list[dict[str, Any]] = [
            {
                "ph": "M",
                "name": "process_name",
                "pid": self._rank,
                "args": {"name": f"rank {self._rank}"},
            }
        ]
        for (who, stage, lane), number in rows.items():
            name = f"{who} {stage} {lane + 1}" if lane else f"{who} {stage}"
            events.append(
                {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": self._rank,
                    "tid": number,
                    "args": {"name": name},
                }
            )
        for row, begin, until, position in spans:
            args = {
                "rank": self._rank,
                **({} if position is None else {"epoch": position[0], "step": position[1]}),
            }
            place = {"pid": self._rank, "tid": rows[row], "ts": begin, "dur": until - begin}
            events.append({"ph": "X", "name": row[1], "cat": "rayingest", **place, "args": args})
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _lane(busy: list[int], begin: int, until: int) -> int:
    """The first that is free: spans of a row must not overlap, and a worker does several things at once.

    `busy` is until when each lane is; spans come by when they begin.
    """
    lane = next((lane for lane, end in enumerate(busy) if end <= begin), len(busy))
    busy[lane : lane + 1] = [until]
    return lane
