"""Snapshots of loaders, each with a known bottleneck."""

from __future__ import annotations

from typing import Any

from rayingest.plan.figures.metrics import Snapshot

BUSY = {
    "batches": 100,
    "wait_seconds": 5.0,
    "step_seconds": 5.0,
    "decoders": 2,
    "readers": 1,
    "max_bytes": 1 << 30,
}


def snapshot(nodes: Any = None, **figures: float) -> Snapshot:
    return Snapshot(10.0, {**BUSY, **figures}, nodes or {})


CASES: dict[str, tuple[Snapshot, str, dict[str, Any]]] = {
    "no wait": (
        snapshot(wait_seconds=0.1, step_seconds=9.9, stall_decode_seconds=0.1),
        "consumer",
        {},
    ),
    "nothing asked for": (Snapshot(10.0, {}), "unknown", {}),
    "a step that takes longer than was looked": (
        Snapshot(10.0, {"current_step_seconds": 25.0}),
        "consumer",
        {},
    ),
    "a long step after a short wait": (
        Snapshot(
            10.0,
            {
                "batches": 1,
                "wait_seconds": 0.2,
                "stall_read_seconds": 0.2,
                "current_step_seconds": 9.8,
            },
        ),
        "consumer",
        {},
    ),
    "reads": (
        snapshot(stall_read_seconds=4, stall_decode_seconds=1, bytes_read=1e6, read_seconds=20),
        "storage",
        {},
    ),
    "reads of small blocks": (
        snapshot(stall_read_seconds=5, bytes_read=1e6, blocks_read=100, read_seconds=20),
        "storage",
        {"block_bytes": 2 << 20},
    ),
    "reads, without workers": (
        snapshot(stall_read_seconds=5, readers=0, decoders=0),
        "storage",
        {"workers": 2},
    ),
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
    "room, in a store that has not as much": (
        snapshot(stall_room_seconds=5, node_store_bytes=5 << 29),
        "memory budget",
        {"max_bytes": 3 << 29},
    ),
    "room, in a store that has no more": (
        snapshot(stall_room_seconds=5, node_store_bytes=3 << 29),
        "memory budget",
        {},
    ),
    "blocks read again and again": (
        snapshot(stall_read_seconds=5, blocks_read=100, blocks_reread=60),
        "memory budget",
        {"max_bytes": 4 << 30},
    ),
    "decoding, with few CPUs": (
        snapshot(stall_decode_seconds=5, decode_seconds=20, cluster_cpus=4),
        "decode",
        {"workers": 4},
    ),
    "decoding, with no more CPUs": (
        snapshot(stall_decode_seconds=5, decode_seconds=20, cluster_cpus=2),
        "decode",
        {},
    ),
    "decoding, on ranks that share few CPUs": (
        snapshot(stall_decode_seconds=5, decode_seconds=20, cluster_cpus=8, world_size=2),
        "decode",
        {"workers": 4},
    ),
    "decoding, on ranks that have all CPUs": (
        snapshot(stall_decode_seconds=5, decode_seconds=20, cluster_cpus=8, world_size=4),
        "decode",
        {},
    ),
    "decoding, on more ranks than CPUs": (
        snapshot(stall_decode_seconds=5, decode_seconds=20, cluster_cpus=2, world_size=4),
        "decode",
        {},
    ),
    "transfer": (
        snapshot(stall_transfer_seconds=4, stall_decode_seconds=1),
        "transfer",
        {"prefetch": 4},
    ),
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
            {
                "a": {"read_seconds": 1.0, "bytes_read": 1e6},
                "b": {"read_seconds": 4.0, "bytes_read": 1e6},
            },
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
