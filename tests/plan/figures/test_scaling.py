"""How many decoders: more on evidence at once, fewer on patience, never without either."""

from __future__ import annotations

from typing import Any

import pytest

from rayingest.plan.figures.metrics import Snapshot
from rayingest.plan.figures.scaling import Scale, Scaling


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
    "waits a little": (snapshot(wait=0.1, step=4.9, work=9, decode=0.1), 2),
    "idle": (snapshot(work=1), 1),
    "busy enough": (snapshot(work=7), 2),
    "nothing seen": (Snapshot(5.0, {}), 2),
    "one is still to come": (snapshot(have=1, wait=4, step=1, work=10, decode=4), 2),
    "one is still to come and not needed": (snapshot(have=1, work=1), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_one_snapshot(case: str) -> None:
    """What each says of two decoders where one to six may be had."""
    seen, wanted = CASES[case]
    assert Scale(1, 6).wanted(seen, 2) == wanted


def test_limits_hold() -> None:
    """Never more than the most, never fewer than the least."""
    assert Scale(1, 3).wanted(CASES["waits for decoding"][0], 2) == 3
    assert Scale(2, 3).wanted(CASES["idle"][0], 2) == 2
    assert Scale(3, 4).wanted(CASES["idle"][0], 2) == 3


def test_removing_needs_patience_and_the_most_demanding_conclusion_counts() -> None:
    """Three in a row; a wait in between begins anew."""
    scaling = Scaling(Scale(1, 6))
    ideas: list[Any] = [snapshot(5, work=1), snapshot(5, work=8), snapshot(5, work=1)]
    assert [scaling.decide(seen, 5) for seen in ideas] == [5, 5, 2]
    busy = snapshot(5, work=25)
    assert [scaling.decide(seen, 5) for seen in [*ideas[:2], busy, *ideas]] == [5, 5, 5, 5, 5, 2]


def test_slow_batches_are_evidence_too() -> None:
    """A batch that takes 4.5 s: three looks of 5 s are needed, where the least is one to three of each."""
    scaling, slow = (
        Scaling(Scale(1, 4)),
        snapshot(1, wait=4.5, step=0.5, work=4, batches=1, decode=4.5),
    )
    begun = snapshot(1, wait=0, step=0, work=0, batches=0, decode=5)
    assert [scaling.decide(seen, 1) for seen in [begun, slow, slow, slow, slow]] == [1, 1, 1, 2, 1]
    two = snapshot(2, wait=2, step=0.5, work=4, batches=2, decode=2)
    assert [scaling.decide(seen, 2) for seen in [slow, two, two]] == [
        2,
        2,
        4,
    ]  # from when the second was there


def test_decoders_that_do_not_come_are_given_up_where_they_are_not_needed() -> None:
    """Two of four came, and suffice: also where a step takes longer than it is from one look to the next."""
    scaling, enough = Scaling(Scale(1, 4)), snapshot(2, step=5, work=6.5, batches=1)
    assert [scaling.decide(enough, 4) for _ in range(9)] == [4] * 8 + [2]
    waits = snapshot(2, wait=4, step=1, work=10, decode=4)
    assert scaling.decide(waits, 4) == 4
