"""Diagnosis from made-up snapshots: what is named, why, and which setting would help."""

from __future__ import annotations

from typing import Any

import pytest

from rayingest.observe.diagnose import diagnose, diagnose_ranks
from rayingest.plan.metrics import Snapshot

BUSY = {"batches": 100, "wait_seconds": 5.0, "step_seconds": 5.0, "decoders": 2, "readers": 1, "max_bytes": 1 << 30}


def snapshot(nodes: Any = None, **figures: float) -> Snapshot:
    return Snapshot(10.0, {**BUSY, **figures}, nodes or {})


CASES: dict[str, tuple[Snapshot, str, dict[str, Any]]] = {
    "no wait": (snapshot(wait_seconds=0.1, step_seconds=9.9, stall_decode_seconds=0.1), "consumer", {}),
    "nothing asked for": (Snapshot(10.0, {}), "unknown", {}),
    "a step that takes longer than was looked": (Snapshot(10.0, {"step_under_way_seconds": 25.0}), "consumer", {}),
    "a long step after a short wait": (
        Snapshot(10.0, {"batches": 1, "wait_seconds": 0.2, "stall_read_seconds": 0.2, "step_under_way_seconds": 9.8}),
        "consumer",
        {},
    ),
    "reads": (snapshot(stall_read_seconds=4, stall_decode_seconds=1, bytes_read=1e6, read_seconds=20), "storage", {}),
    "reads of small blocks": (
        snapshot(stall_read_seconds=5, bytes_read=1e6, blocks_read=100, read_seconds=20),
        "storage",
        {"block_bytes": 2 << 20},
    ),
    "reads, without workers": (snapshot(stall_read_seconds=5, readers=0, decoders=0), "storage", {"workers": 2}),
    "decoding": (snapshot(stall_decode_seconds=5, decode_seconds=20), "decode", {"workers": 5}),
    "decoding, in steps of no time": (
        snapshot(stall_decode_seconds=10, decode_seconds=20, step_seconds=0.0, wait_seconds=10.0),
        "decode",
        {"workers": 16},
    ),
    "decoding, without workers": (
        snapshot(stall_decode_seconds=5, decode_seconds=5, decoders=0),
        "decode",
        {"workers": 2},
    ),
    "room": (snapshot(stall_room_seconds=5), "memory budget", {"max_bytes": 4 << 30}),
    "blocks read again and again": (
        snapshot(stall_read_seconds=5, blocks_read=100, blocks_reread=50),
        "memory budget",
        {"max_bytes": 4 << 30},
    ),
    "decoding, with few CPUs": (
        snapshot(stall_decode_seconds=5, decode_seconds=20, cluster_cpus=4),
        "decode",
        {"workers": 4},
    ),
    "decoding, with no more CPUs": (snapshot(stall_decode_seconds=5, decode_seconds=20, cluster_cpus=2), "decode", {}),
    "transfer": (snapshot(stall_transfer_seconds=4, stall_decode_seconds=1), "transfer", {"prefetch": 4}),
    "no worker yet": (snapshot(stall_workers_seconds=5), "workers", {}),
    "a first batch that does not come": (
        Snapshot(10.0, {"stall_read_seconds": 10.0, "readers": 1, "decoders": 1}),
        "storage",
        {},
    ),
    "a node that decodes slowly": (
        snapshot(
            {
                "a": {"decode_seconds": 1.0, "samples_decoded": 100},
                "b": {"decode_seconds": 9.0, "samples_decoded": 100},
                "c": {"decode_seconds": 1.2, "samples_decoded": 100},
            },
            stall_decode_seconds=5,
            decode_seconds=11.2,
        ),
        "slow node",
        {},
    ),
    "a node that reads slowly": (
        snapshot(
            {"a": {"read_seconds": 1.0, "bytes_read": 1e6}, "b": {"read_seconds": 4.0, "bytes_read": 1e6}},
            stall_read_seconds=5,
        ),
        "slow node",
        {},
    ),
    "nodes that are alike": (
        snapshot(
            {
                "a": {"decode_seconds": 5.0, "samples_decoded": 100},
                "b": {"decode_seconds": 9.0, "samples_decoded": 100},
            },
            stall_decode_seconds=5,
            decode_seconds=14,
        ),
        "decode",
        {"workers": 4},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bottleneck_is_named_with_what_would_remove_it(case: str) -> None:
    """For each kind of shortage, and for none."""
    seen, name, settings = CASES[case]
    found = diagnose(seen)
    assert (found.bottleneck, dict(found.settings)) == (name, settings)
    assert str(found).startswith(f"{name}: {found.evidence}")


def test_evidence_is_in_figures() -> None:
    """How much the loop waits, which part of that for what, and which node is how slow."""
    assert diagnose(CASES["reads"][0]).evidence == "the loop waits 50% of its time, 80% of that for blocks being read"
    slow = diagnose(CASES["a node that decodes slowly"][0])
    assert "node b takes 8.2 times as long" in slow.evidence
    assert "node b" in slow.advice


def test_one_rank_that_waits_is_a_slow_rank() -> None:
    """The others wait for it in their steps; ranks that wait alike share a bottleneck."""
    fine, waits = snapshot(wait_seconds=0.1, step_seconds=9.9), snapshot(stall_decode_seconds=5, decode_seconds=20)
    found = diagnose_ranks({"0": fine, "1": fine, "2": waits})
    assert found.bottleneck == "slow rank"
    assert "rank 2 waits 50% of its time, the others 1%; there it is decode" in found.evidence
    assert found.settings == {"workers": 5}
    assert diagnose_ranks({"0": waits, "1": waits}).bottleneck == "decode"
    assert diagnose_ranks({"0": fine, "1": fine}).bottleneck == "consumer"
