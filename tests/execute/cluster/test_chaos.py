"""Chaos in its short form: three epochs of `jobs/chaos.py`, on a cluster of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_stream_is_the_same_whatever_dies_fails_and_hangs() -> None:
    """Two ranks, four nodes: actors are killed, nodes lost, reads fail and hang.

    No batch differs, and all is counted.
    """
    sizes = ["--epochs", "3", "--samples", "240", "--kills", "4", "--node-losses", "2"]
    bounds = ["--max-bytes", "150000", "--hang-seconds", "4"]
    command = [sys.executable, "jobs/chaos.py", *sizes, *bounds]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=170
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout[-2000:] + done.stderr[-2000:]
    report = json.loads(lines[-1])
    assert report["identical"], report
    assert report["unaccounted"] == [], report
    assert (report["killed"], report["nodes_lost"]) == (4, 2)
    assert report["workers_lost"] > 0
    assert done.returncode == 0
