"""Write a trace of finished work in the format of Chrome (about:tracing) and Perfetto.

Owns the spans. A worker reports how long its work took, not when it began, so a span ends when the
result arrives. Source: "Trace Event Format",
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Trace:
    """Collects the spans of one rank and its workers. Every method is thread-safe."""

    def __init__(self, rank: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._rank, self._clock = rank, clock
        self._spans: list[tuple[float, str, float, str, tuple[int, int] | None]] = []

    def span(self, stage: str, seconds: float, who: str, position: tuple[int, int] | None) -> None:
        """Add a span that ends now and took `seconds`; `position` is its epoch and step."""
        self._spans.append((self._clock(), stage, seconds, who, position))

    def write(self, path: Path) -> None:
        """Write all spans so far as JSON.

        The rank is the process; each worker and stage has a row of its own, and further rows while
        it does several things at once; epoch and step are arguments of a span.
        """
        spans, lanes = [], defaultdict[tuple[str, str], list[int]](list)
        for end, stage, seconds, who, position in sorted(
            self._spans, key=lambda span: span[0] - span[2]
        ):
            begin, until = round(1e6 * (end - seconds)), round(1e6 * end)
            lane = _lane(lanes[who, stage], begin, until)
            spans.append(((who, stage, lane), begin, until, position))
        rows = {row: number for number, row in enumerate(sorted({span[0] for span in spans}))}
        events = [self._label("process_name", f"rank {self._rank}")]
        for (who, stage, lane), number in rows.items():
            name = f"{who} {stage} {lane + 1}" if lane else f"{who} {stage}"
            events.append(self._label("thread_name", name, tid=number))
        for row, begin, until, position in spans:
            args = {"rank": self._rank}
            if position is not None:
                args |= {"epoch": position[0], "step": position[1]}
            place = {"pid": self._rank, "tid": rows[row], "ts": begin, "dur": until - begin}
            events.append({"ph": "X", "name": row[1], "cat": "rayingest", **place, "args": args})
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))

    def _label(self, what: str, name: str, **place: int) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": self._rank, **place, "args": {"name": name}}


def _lane(busy: list[int], begin: int, until: int) -> int:
    """Return the first free lane, and occupy it.

    Spans of one row must not overlap in the format, but a worker does several things at once.
    `busy` holds the end of each lane's last span; spans must come in order of their begin.
    """
    lane = next((lane for lane, end in enumerate(busy) if end <= begin), len(busy))
    busy[lane : lane + 1] = [until]
    return lane
