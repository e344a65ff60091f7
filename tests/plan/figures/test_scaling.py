"""Decoders are added after one conclusion, and removed after several conclusions in a row."""

from __future__ import annotations

from typing import Any

import pytest

from rayingest.plan.figures.metrics import Snapshot
from rayingest.plan.figures.scaling import Scaler, ScalingPolicy


def snapshot(
    have: int = 2,
    wait: float = 0.0,
    step: float = 5.0,
    work: float = 5.0,
    batches: int = 50,
    **stalls: float,
) -> Snapshot:
    figures = {
        "batches": batches,
        "wait_seconds": wait,
        "step_seconds": step,
        "decode_seconds": work,
        "decoders": have,
    }
    return Snapshot(
        5.0, {**figures, **{f"stall_{cause}_seconds": value for cause, value in stalls.items()}}
    )


CASES: dict[str, tuple[Snapshot, int]] = {
    "waits for decoding": (snapshot(wait=2.5, step=2.5, work=10, decode=2.5), 4),
    "waits for decoding, much more work": (snapshot(wait=4.5, step=0.5, work=10, decode=4.5), 4),
    "waits for decoding, little work": (snapshot(wait=1, step=4, work=1, decode=1), 3),
    "waits for storage": (snapshot(wait=2.5, step=2.5, work=10, read=2.5), 2),
    "waits for room": (snapshot(wait=2.5, step=2.5, work=10, room=2, decode=0.5), 2),
    "waits for decoding half the time": (
        snapshot(wait=2.5, step=2.5, work=10, read=1.25, decode=1.25),
        4,
    ),
    "waits for nothing known": (snapshot(wait=2.5, step=2.5, work=10), 2),
    "waits in less than a second": (snapshot(wait=0.4, step=0.5, work=10, decode=0.4), 4),
    "waits just as long as it may": (snapshot(wait=0.25, step=4.75, work=9, decode=0.25), 2),
    "waits a little": (snapshot(wait=0.1, step=4.9, work=9, decode=0.1), 2),
    "idle": (snapshot(work=1), 1),
    "busy enough": (snapshot(work=7), 2),
    "no figures": (Snapshot(5.0, {}), 2),
    "one has not started": (snapshot(have=1, wait=4, step=1, work=10, decode=4), 2),
    "one has not started and is not needed": (snapshot(have=1, work=1), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_one_snapshot_gives_the_target(case: str) -> None:
    """The target is for 2 decoders, where 1 to 6 are allowed."""
    seen, target = CASES[case]
    assert ScalingPolicy(1, 6).target(seen, 2) == target


def test_the_target_stays_between_least_and_most() -> None:
    """Each limit wins over the evidence."""
    assert ScalingPolicy(1, 3).target(CASES["waits for decoding"][0], 2) == 3
    assert ScalingPolicy(2, 3).target(CASES["idle"][0], 2) == 2
    assert ScalingPolicy(3, 4).target(CASES["idle"][0], 2) == 3


def test_removing_needs_patience_and_the_most_demanding_conclusion_counts() -> None:
    """Removing takes three conclusions in a row; a conclusion to add restarts the count."""
    scaler = Scaler(ScalingPolicy(1, 6))
    fewer: list[Any] = [snapshot(5, work=1), snapshot(5, work=8), snapshot(5, work=1)]
    assert [scaler.decide(seen, 5) for seen in fewer] == [5, 5, 2]
    busy = snapshot(5, work=25)
    assert [scaler.decide(seen, 5) for seen in [*fewer[:2], busy, *fewer]] == [5, 5, 5, 5, 5, 2]


def test_a_conclusion_that_all_decoders_are_needed_restarts_the_count() -> None:
    """So does a removal: the next one takes three conclusions again."""
    scaler = Scaler(ScalingPolicy(1, 6))
    fewer, enough = snapshot(5, work=8), snapshot(5, work=25)
    seen = [fewer, enough, fewer, fewer, fewer]
    assert [scaler.decide(each, 5) for each in seen] == [5, 5, 5, 5, 2]
    assert [scaler.decide(snapshot(2, work=1), 2) for _ in range(3)] == [2, 2, 1]


def test_slow_batches_are_evidence_too() -> None:
    """Snapshots of 5 s with one batch of 4.5 s each are joined until they cover three batches."""
    scaler, slow = (
        Scaler(ScalingPolicy(1, 4)),
        snapshot(1, wait=4.5, step=0.5, work=4, batches=1, decode=4.5),
    )
    first = snapshot(1, wait=0, step=0, work=0, batches=0, decode=5)
    assert [scaler.decide(seen, 1) for seen in [first, slow, slow, slow, slow]] == [1, 1, 1, 2, 1]
    two = snapshot(2, wait=2, step=0.5, work=4, batches=2, decode=2)
    # The evidence starts again when the second decoder runs.
    assert [scaler.decide(seen, 2) for seen in [slow, two, two]] == [2, 2, 4]


def test_decoders_that_have_not_started_are_cancelled_if_they_are_not_needed() -> None:
    """2 of 4 decoders run, and are enough. A step takes longer than a snapshot."""
    scaler, enough = Scaler(ScalingPolicy(1, 4)), snapshot(2, step=5, work=6.5, batches=1)
    assert [scaler.decide(enough, 4) for _ in range(9)] == [4] * 8 + [2]
    waits = snapshot(2, wait=4, step=1, work=10, decode=4)
    assert scaler.decide(waits, 4) == 4
