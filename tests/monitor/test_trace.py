"""Traces in the format of Chrome."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from rayingest.monitor.trace import Trace


def written(
    spans: list[tuple[float, str, float, str]], path: Path
) -> tuple[list[Any], dict[int, str]]:
    """Return the spans of a trace of these (end, stage, seconds, who), and its rows' names."""
    now = 0.0
    trace = Trace(3, lambda: now)
    for now, stage, seconds, who in spans:  # noqa: B007 - the clock's
        trace.span(stage, seconds, who, (0, 1))
    trace.write(path)
    events = json.loads(path.read_text())["traceEvents"]
    rows = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    return [event for event in events if event["ph"] == "X"], rows


def test_no_two_spans_of_a_row_overlap(tmp_path: Path) -> None:
    """A reader does many reads at once; each one is in the first free row of its reader."""
    reads = [
        (4.0, "read", 3.0, "reader0"),
        (3.0, "read", 2.5, "reader0"),
        (5.0, "read", 4.5, "reader0"),
    ]
    reads += [
        (6.0, "read", 1.0, "reader0"),
        (5.5, "read", 5.0, "reader1"),
        (5.0, "transfer", 4.0, "reader0"),
    ]
    reads += [
        (9.1 + number / 3, "read", 1 / 3, "reader0") for number in range(30)
    ]  # one after the other
    spans, rows = written(sorted(reads), tmp_path / "t.json")
    assert len(spans) == len(reads)
    for one, other in itertools.combinations(spans, 2):
        if one["tid"] == other["tid"]:
            assert one["ts"] + one["dur"] <= other["ts"] or other["ts"] + other["dur"] <= one["ts"]
    assert list(rows.values()) == [
        *("reader0 read", "reader0 read 2", "reader0 read 3", "reader0 transfer", "reader1 read")
    ]
    assert {span["tid"] for span in spans} == rows.keys()
    by_row = [sum(rows[span["tid"]] == name for span in spans) for name in rows.values()]
    assert by_row == [32, 1, 1, 1, 1]
