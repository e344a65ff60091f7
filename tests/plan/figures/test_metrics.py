"""A snapshot has the growth of counters and durations, and the last value of gauges."""

from __future__ import annotations

from rayingest.plan.figures.metrics import COUNTERS, DURATIONS, Snapshot, take_snapshot


def test_a_snapshot_compares_two_looks() -> None:
    """A counter that was absent before grew from 0; texts and mappings are left out."""
    before = {"batches": 3, "decoders": 4, "wait_durations": [1, 2]}
    after = {
        "batches": 10,
        "retries": 2,
        "decoders": 5,
        "current_step_seconds": 0.5,
        "wait_durations": [1, 5],
        "read_durations": [4, 4],
        "cause": "read",
    }
    seen = take_snapshot(before, after, 2.0)
    assert seen.seconds == 2.0
    assert seen.figures == {
        "batches": 7,
        "retries": 2,
        "decoders": 5,
        "current_step_seconds": 0.5,
    }
    assert seen.durations == {"wait_durations": [0, 3], "read_durations": [4, 4]}
    assert seen.nodes == {}
    assert (seen["batches"], seen["hedges"]) == (7, 0.0)


def test_a_snapshot_compares_each_node_with_itself() -> None:
    """A node that is new grew from 0; one that is gone is left out."""
    before = {"nodes": {"a": {"blocks_read": 1}, "gone": {"blocks_read": 9}}}
    after = {"nodes": {"a": {"blocks_read": 4, "readers": 2}, "b": {"blocks_read": 5}}}
    assert take_snapshot(before, after, 1.0).nodes == {
        "a": {"blocks_read": 3, "readers": 2},
        "b": {"blocks_read": 5},
    }


def test_figures_are_counters_durations_or_gauges() -> None:
    """No figure is of two kinds."""
    assert set(DURATIONS) == {f"{stage}_durations" for stage in ("read", "decode", "wait", "step")}
    assert {"retries", "stall_room_seconds", "bytes_read"} <= COUNTERS
    assert not COUNTERS & {*DURATIONS, "readers", "released_bytes"}
    assert Snapshot(1.0, {}).nodes == Snapshot(1.0, {}).durations == {}
