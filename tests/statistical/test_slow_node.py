"""The short form of `jobs/slow_node.py`, in a process and on a cluster of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.statistical


def test_a_slow_node_is_named_and_the_loop_waits_no_more_once_it_is_out() -> None:
    """The loader's figures and the nodes' exports name it; without it the loop does not wait."""
    command = [sys.executable, "jobs/slow_node.py", "--steps", "25", "--others", "0"]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=170
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout[-2000:] + done.stderr[-2000:]
    report = json.loads(lines[-1])
    assert f"node {report['slow_node']} takes" in report["before"], report
    assert (report["named"], report["named_by_top"], report["removed"]) == (True, True, True), (
        report
    )
