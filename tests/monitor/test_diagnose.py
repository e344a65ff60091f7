"""Diagnoses of made-up snapshots: the bottleneck, the evidence, and the setting that would help."""

from __future__ import annotations

import pytest

from rayingest.monitor.diagnose import diagnose, diagnose_ranks
from tests.support.diagnosis_cases import CASES, snapshot


@pytest.mark.parametrize("case", CASES)
def test_the_bottleneck_is_named_with_the_setting_that_removes_it(case: str) -> None:
    """For each kind of bottleneck, and for none."""
    seen, name, settings = CASES[case]
    found = diagnose(seen)
    assert (found.bottleneck, dict(found.settings)) == (name, settings)
    assert str(found).startswith(f"{name}: {found.evidence}")


def test_evidence_is_in_figures() -> None:
    """The share of waiting, its causes, and how many times slower a node is."""
    assert (
        diagnose(CASES["reads"][0]).evidence
        == "the loop waits 50% of its time, 80% of that for blocks being read"
    )
    slow = diagnose(CASES["a node that decodes slowly"][0])
    assert "node b takes 8.2 times as long" in slow.evidence
    assert "node b" in slow.advice
    shared = diagnose(CASES["decoding, on ranks that share few CPUs"][0]).advice
    assert (
        "workers=4 instead of 2, which may not suffice; "
        "this loader needs about 5 decoders, and the cluster has 8 CPUs for 2 ranks" in shared
    )


def test_one_rank_that_waits_is_a_slow_rank() -> None:
    """The other ranks wait for it inside their steps. Ranks that wait alike share a bottleneck."""
    fine, waits = (
        snapshot(wait_seconds=0.1, step_seconds=9.9),
        snapshot(stall_decode_seconds=5, decode_seconds=20),
    )
    found = diagnose_ranks({"0": fine, "1": fine, "2": waits})
    assert found.bottleneck == "slow rank"
    assert "rank 2 waits 50% of its time, the others 1%; its bottleneck is decode" in found.evidence
    assert found.settings == {"workers": 5}
    assert str(found).count("workers=5") == 1
    assert diagnose_ranks({"0": waits, "1": waits}).bottleneck == "decode"
    assert diagnose_ranks({"0": fine, "1": fine}).bottleneck == "consumer"


def test_released_bytes_that_ray_has_not_freed_are_named() -> None:
    """With the setting that makes Ray free them sooner, where they are many."""
    waits = {"stall_room_seconds": 5, "max_bytes": 1 << 30}
    much, little = (
        diagnose(snapshot(**waits, released_bytes=part << 20)).advice for part in (512, 64)
    )
    assert (
        "50% of max_bytes is released and waits until Ray frees it: "
        "set RAY_free_objects_period_milliseconds=50" in much
    )
    assert "RAY_" not in little
    full = diagnose(CASES["room, in a store that has no more"][0]).advice
    assert full.startswith(
        "a larger store for this node: ray start --object-store-memory=3221225472, or a smaller"
    )
