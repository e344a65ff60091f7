"""How many decoders: more on evidence at once, fewer on patience, never without either."""

from __future__ import annotations

from typing import Any

import pytest

from rayingest.plan.metrics import Snapshot
from rayingest.plan.scaling import Scale, Scaling


def snapshot(have: int = 2, wait: float = 0.0, step: float = 5.0, work: float = 5.0, **stalls: float) -> Snapshot:
    figures = {"batches": 50, "wait_seconds": wait, "step_seconds": step, "decode_seconds": work, "decoders": have}
    return Snapshot(5.0, {**figures, **{f"stall_{cause}_seconds": value for cause, value in stalls.items()}})


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
