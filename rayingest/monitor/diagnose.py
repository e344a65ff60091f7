"""Name what limits a loader: the bottleneck, the evidence and the setting that removes it.

Pure functions of snapshots. The evidence is what the batch that is due lacks while the training
loop waits for it. That lies on the critical path. Sums of seconds over parallel workers do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rayingest.plan.figures.metrics import STALLS, Snapshot

WAIT_SHARE = 0.05
"""The share of its time that a loop may wait before a stage is called a bottleneck."""
_SLOW = 2.0
"""A node or rank is slow when it takes this many times as long as the others."""
_REREAD = 0.1
"""Above this share of blocks read again, `max_bytes` is the bottleneck and not the storage."""
_SPARE = 1.2
"""Advise this many times the least that would suffice."""
_MOST = 8
"""Never advise more than this many times the decoders there are: the estimate is too coarse."""
_STORE_PART = 0.6
"""The share of a node's object store that one loader may use: Ray spills where other users of the
store, and what the loader keeps besides `max_bytes`, need more than the rest."""
_RELEASED = 0.2
"""Above this share of `max_bytes` that waits for Ray to free it, freeing sooner helps."""
_FREE_SOONER = "RAY_free_objects_period_milliseconds=50"
_SMALL, _LARGE = 256 << 10, 2 << 20
"""Block sizes in bytes: below the first, latency dominates; the second is the default."""


@dataclass(frozen=True)
class Diagnosis:
    """What limits a loader, and what to do about it.

    Attributes:
        bottleneck: "consumer" (the data is fast enough), "storage", "decode", "transfer",
            "memory budget", "slow node", "slow rank", "workers" (none has started yet) or
            "unknown" (no evidence).
        share: the share of its time that the training loop waits for data, 0 to 1.
        evidence: the figures behind the conclusion, in words.
        advice: what would help, in words.
        settings: options that would help, by name: options of `loader`, and `block_bytes` of the
            reader.
    """

    bottleneck: str
    share: float
    evidence: str
    advice: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.bottleneck}: {self.evidence}" + (f"; {self.advice}" if self.advice else "")


def wait_share(seen: Snapshot) -> float:
    """Return the share of its time that the training loop waited for data, 0 to 1."""
    step = seen["step_seconds"] + min(seen["current_step_seconds"], seen.seconds)
    # A wait that has not ended yet is in the stall seconds alone.
    stalled = max(seen["wait_seconds"], sum(stalls(seen).values()))
    return stalled / (stalled + step) if stalled + step > 0 else 0.0


def stalls(seen: Snapshot) -> dict[str, float]:
    """Return the seconds that the loop waited, by cause (the keys of `STALLS`)."""
    return {cause: seen[f"stall_{cause}_seconds"] for cause in STALLS}


def diagnose(seen: Snapshot) -> Diagnosis:
    """Name what kept the training loop of one loader waiting."""
    share, causes = wait_share(seen), stalls(seen)
    total = sum(causes.values())
    if not seen["batches"] and not total and not seen["current_step_seconds"]:
        return Diagnosis("unknown", share, "the loop has not asked for a batch")
    if share < WAIT_SHARE:
        return Diagnosis("consumer", share, f"the loop waits for data {share:.0%} of its time")
    cause = max(causes, key=lambda name: causes[name]) if total else ""
    waits = f"the loop waits {share:.0%} of its time"
    if total:
        waits += f", {causes[cause] / total:.0%} of that for {STALLS[cause]}"
    if cause in {"read", "decode"} and (slow := _slow_node(seen, cause)) is not None:
        node, evidence = slow
        advice = f"check node {node}, or drain it"
        return Diagnosis("slow node", share, f"{waits}; {evidence}", advice)
    name, advice, settings = _ADVICE[cause](seen) if cause else ("unknown", "", {})
    return Diagnosis(name, share, waits, advice, settings)


def diagnose_ranks(seen: Mapping[str, Snapshot]) -> Diagnosis:
    """Name what kept a job waiting, from one snapshot of the same loader on each rank.

    Ranks run in step: while one waits for data, the others wait for that rank inside their steps.
    So one rank that waits much more than the others slows down all of them.
    """
    shares = {rank: wait_share(snapshot) for rank, snapshot in seen.items()}
    worst = max(shares, key=lambda rank: shares[rank])
    found = diagnose(seen[worst])
    others = [share for rank, share in shares.items() if rank != worst]
    if (
        others
        and shares[worst] >= WAIT_SHARE
        and shares[worst] > _SLOW * max(WAIT_SHARE / 2, median(others))
    ):
        evidence = (
            f"rank {worst} waits {shares[worst]:.0%} of its time, the others {median(others):.0%}; "
            f"its bottleneck is {found.bottleneck}: {found.evidence}"
        )
        return Diagnosis("slow rank", shares[worst], evidence, found.advice, found.settings)
    return found


_Remedy = tuple[str, str, dict[str, Any]]
"""Bottleneck, advice and settings, as in `Diagnosis`."""


def _storage(seen: Snapshot) -> _Remedy:
    if seen["blocks_reread"] > _REREAD * seen["blocks_read"] > 0:
        return _budget(seen)
    rate = seen["bytes_read"] / seen["read_seconds"] / 1e6 if seen["read_seconds"] else 0.0
    advice = f"one reader thread reads {rate:.3g} MB/s: "
    if not seen["readers"]:
        return "storage", f"{advice}workers=2 reads ahead", {"workers": 2}
    blocks = seen["blocks_read"]
    nbytes = seen["bytes_read"] / blocks if blocks > 0 else _LARGE
    advice += (
        "cache_dir and cache_bytes of the reader cache on local disks the data that is read again"
    )
    if nbytes < _SMALL:
        small = f"a block of {nbytes / 1024:.3g} KiB takes nearly as long as a large one: "
        return "storage", f"{small}block_bytes={_LARGE}; {advice}", {"block_bytes": _LARGE}
    return "storage", f"{advice}; or move the data to nearer storage", {}


def _budget(seen: Snapshot) -> _Remedy:
    wanted = int(2 ** math.ceil(math.log2(max(1.0, _SPARE * 2 * seen["max_bytes"]))))
    most = int(_STORE_PART * seen["node_store_bytes"]) or wanted
    settings = {"max_bytes": min(wanted, most)} if most > _SPARE * seen["max_bytes"] else {}
    ways = [
        f"loader(max_bytes={nbytes})" + " or more" * (wanted <= most)
        for nbytes in settings.values()
    ]
    if wanted > most:
        store = 2 * int(seen["node_store_bytes"])
        ways.append(f"a larger store for this node: ray start --object-store-memory={store}")
    advice = f"{', '.join(ways)}, or a smaller window and fewer lanes in shuffle()"
    released = seen["released_bytes"] / max(1.0, seen["max_bytes"])
    if released > _RELEASED:
        advice += (
            f"; {released:.0%} of max_bytes is released and waits until Ray frees it: set "
            f"{_FREE_SOONER} in the environment of `ray start`, or of this process before "
            "ray.init()"
        )
    return "memory budget", advice, settings


def _decode(seen: Snapshot) -> _Remedy:
    have = max(1, int(seen["decoders"]))
    work, step = seen["decode_seconds"], seen["step_seconds"]
    needed = math.ceil(_SPARE * work / step) if step > 0 else _MOST * have
    workers = min(max(needed, have + 1), _MOST * have)
    instead = f"instead of {int(seen['decoders'])}"
    cpus, ranks = int(seen["cluster_cpus"]), int(seen["world_size"])
    most = max(1, cpus // max(1, ranks))
    if not cpus or workers <= most:
        return "decode", f"workers={workers} {instead}", {"workers": workers}
    shared = f" for {ranks} ranks" if ranks > 1 else ""
    short = (
        f"this loader needs about {workers} decoders, and the cluster has {cpus} CPUs{shared}: "
        "add nodes, or do less work per sample"
    )
    if have >= most:
        return "decode", short, {}
    return "decode", f"workers={most} {instead}, which may not suffice; {short}", {"workers": most}


def _transfer(seen: Snapshot) -> _Remedy:
    advice = (
        "decoders on the trainer's own node, smaller fields (pixels as uint8, converted to floats "
        "by after_copy), or a larger prefetch"
    )
    return "transfer", advice, {"prefetch": 4}


def _workers(seen: Snapshot) -> _Remedy:
    advice = "the workers are starting, or the cluster lacks free CPUs (each decoder needs one)"
    return "workers", advice, {}


_ADVICE = {
    "read": _storage,
    "room": _budget,
    "decode": _decode,
    "transfer": _transfer,
    "workers": _workers,
}


def _slow_node(seen: Snapshot, cause: str) -> tuple[str, str] | None:
    """Return the node that is much slower than the others, and the evidence; None if none is."""
    seconds, amount = {
        "read": ("read_seconds", "bytes_read"),
        "decode": ("decode_seconds", "samples_decoded"),
    }[cause]
    paces = {
        node: figures[seconds] / figures[amount]
        for node, figures in seen.nodes.items()
        if figures.get(amount, 0) > 0
    }
    if len(paces) < 2:
        return None
    slow = max(paces, key=lambda node: paces[node])
    usual = median(pace for node, pace in paces.items() if node != slow)
    if usual <= 0 or paces[slow] < _SLOW * usual:
        return None
    times = paces[slow] / usual
    return slow, f"node {slow} takes {times:.1f} times as long as the others for the same {cause}"
