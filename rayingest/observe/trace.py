"""A trace of what was done when, in the format that Chrome (about:tracing) and Perfetto show.

Owns the spans. Workers tell how long they took, not when they began: a span ends when its answer came.
Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
import time
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
        """All spans so far: a row for each worker and stage, the rank as process, epoch and step as arguments."""
        rows = {who: number for number, who in enumerate(sorted({f"{s[3]} {s[1]}" for s in self._spans}))}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": self._rank, "args": {"name": f"rank {self._rank}"}}
        ]
        for who, number in rows.items():
            events.append({"ph": "M", "name": "thread_name", "pid": self._rank, "tid": number, "args": {"name": who}})
        for end, stage, seconds, who, position in self._spans:
            args = {"rank": self._rank, **({} if position is None else {"epoch": position[0], "step": position[1]})}
            times = {"ts": round(1e6 * (end - seconds), 1), "dur": round(1e6 * seconds, 1)}
            row = rows[f"{who} {stage}"]
            events.append(
                {"ph": "X", "name": stage, "cat": "rayingest", "pid": self._rank, "tid": row, **times, "args": args}
            )
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
