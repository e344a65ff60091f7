"""Which stage is short: from what a loader did for a while, the bottleneck, the evidence, and what would remove it.

Pure. The evidence is what the batch that was due lacked while the loop waited for it, moment by moment: that is on the
critical path, where sums of seconds over workers that run beside each other are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rayingest.plan.figures.metrics import STALLS, Snapshot

WAIT_SHARE = 0.05
"""Of its time a loop may wait before anything is said to be short."""
_SLOW = 2.0
"""So many times as long as its like is slow."""
_REREAD = 0.1
_SPARE = 1.2
"""More than what would just do."""
_MOST = 8
_STORE_PART = 0.6
"""Of a node's store, for one loader: Ray spills where others and what it holds beside them need more than the rest."""
_LINGERING = 0.2
_FREE_SOONER = "RAY_free_objects_period_milliseconds=50"
"""See `cluster.site`."""
_SMALL, _LARGE = 256 << 10, 2 << 20
"""Bytes of a block: of fewer than the first a request costs the same; the second is the default."""


@dataclass(frozen=True)
class Diagnosis:
    """`bottleneck`: "consumer" (all is well), "storage", "decode", "transfer", "memory budget", "slow node", "slow
    rank" or "workers" (there are none yet); "unknown" where there is nothing to go by.

    `share` of the loop's time that it waited, 0 to 1. `settings` are options that would help, by name: of `loader`, and
    `block_bytes` of the reader.
    """

    bottleneck: str
    share: float
    evidence: str
    advice: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.bottleneck}: {self.evidence}" + (f"; {self.advice}" if self.advice else "")


def wait_share(seen: Snapshot) -> float:
    """Part of the loop's time that it waited for data, 0 to 1."""
    step = seen["step_seconds"] + min(seen["step_under_way_seconds"], seen.seconds)
    stalled = max(
        seen["wait_seconds"], sum(stalls(seen).values())
    )  # the wait of this moment is in the second alone
    return stalled / (stalled + step) if stalled + step > 0 else 0.0


def stalls(seen: Snapshot) -> dict[str, float]:
    """Seconds waited, by what the batch due lacked."""
    return {cause: seen[f"stall_{cause}_seconds"] for cause in STALLS}


def diagnose(seen: Snapshot) -> Diagnosis:
    """What kept one loader's loop waiting."""
    share, causes = wait_share(seen), stalls(seen)
    total = sum(causes.values())
    if not seen["batches"] and not total and not seen["step_under_way_seconds"]:
        return Diagnosis("unknown", share, "nothing was asked for")
    if share < WAIT_SHARE:
        return Diagnosis("consumer", share, f"the loop waits for data {share:.0%} of its time")
    cause = max(causes, key=lambda name: causes[name]) if total else ""
    waits = f"the loop waits {share:.0%} of its time"
    if total:
        waits += f", {causes[cause] / total:.0%} of that for {STALLS[cause]}"
    if cause in {"read", "decode"} and (slow := _slow_node(seen, cause)) is not None:
        return Diagnosis(
            "slow node", share, f"{waits}; {slow[1]}", f"mend node {slow[0]}, or take it out"
        )
    name, advice, settings = _NAMED[cause](seen) if cause else ("unknown", "", {})
    return Diagnosis(name, share, waits, advice, settings)


def diagnose_ranks(seen: Mapping[str, Snapshot]) -> Diagnosis:
    """What kept a job waiting, from snapshots of its ranks, of the same loader of each; a rank that alone waits keeps
    all the others from going on.

    Ranks go in step: while one waits for data, the others wait for it in their steps.
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
            f"rank {worst} waits {shares[worst]:.0%} of its time, the others {median(others):.0%}; there it is "
            f"{found.bottleneck}: {found.evidence}"
        )
        return Diagnosis("slow rank", shares[worst], evidence, found.advice, found.settings)
    return found


def _storage(seen: Snapshot) -> tuple[str, str, dict[str, Any]]:
    if seen["blocks_reread"] > _REREAD * seen["blocks_read"] > 0:
        return _budget(seen)
    rate = seen["bytes_read"] / seen["read_seconds"] / 1e6 if seen["read_seconds"] else 0.0
    advice = f"one reader's thread gets {rate:.3g} MB/s: "
    if not seen["readers"]:
        return "storage", f"{advice}workers=2, which read ahead", {"workers": 2}
    blocks = seen["blocks_read"]
    nbytes = seen["bytes_read"] / blocks if blocks > 0 else _LARGE
    advice += "cache_dir and cache_bytes of the reader keep on local disks what is read again"
    if nbytes < _SMALL:
        few = f"blocks of {nbytes / 1024:.3g} KiB take hardly less time than large ones: "
        return "storage", f"{few}block_bytes={_LARGE}; {advice}", {"block_bytes": _LARGE}
    return "storage", f"{advice}, or storage that is nearer", {}


def _budget(seen: Snapshot) -> tuple[str, str, dict[str, Any]]:
    wanted = int(2 ** math.ceil(math.log2(max(1.0, _SPARE * 2 * seen["max_bytes"]))))
    most = int(_STORE_PART * seen["node_store_bytes"]) or wanted
    settings = {"max_bytes": min(wanted, most)} if most > _SPARE * seen["max_bytes"] else {}
    ways = [
        f"loader(max_bytes={nbytes})" + " or more" * (wanted <= most)
        for nbytes in settings.values()
    ]
    if wanted > most:
        ways.append(
            f"a larger store for this node: ray start --object-store-memory={2 * int(seen['node_store_bytes'])}"
        )
    advice = f"{', '.join(ways)}, or a smaller window and fewer lanes in shuffle()"
    if (lingering := seen["lingering_bytes"] / max(1.0, seen["max_bytes"])) > _LINGERING:
        advice += (
            f"; {lingering:.0%} of it is given up and waits until Ray frees it: {_FREE_SOONER} in the environment of "
            "`ray start`, or of this process before ray.init()"
        )
    return "memory budget", advice, settings


def _decode(seen: Snapshot) -> tuple[str, str, dict[str, Any]]:
    have = max(1, int(seen["decoders"]))
    work, step = seen["decode_seconds"], seen["step_seconds"]
    needed = math.ceil(_SPARE * work / step) if step > 0 else _MOST * have
    workers = min(max(needed, have + 1), _MOST * have)
    instead, cpus, ranks = (
        f"instead of {int(seen['decoders'])}",
        int(seen["cluster_cpus"]),
        int(seen["world_size"]),
    )
    most = max(1, cpus // max(1, ranks))
    if not cpus or workers <= most:
        return "decode", f"workers={workers} {instead}", {"workers": workers}
    there = f"{cpus} CPUs" + (f" for {ranks} ranks" if ranks > 1 else "")
    short = f"it takes about {workers}, and the cluster has {there}: add nodes, or do less for each sample"
    if have >= most:
        return "decode", short, {}
    return "decode", f"workers={most} {instead}, which may not do; {short}", {"workers": most}


def _transfer(seen: Snapshot) -> tuple[str, str, dict[str, Any]]:
    return (
        "transfer",
        "decoders on the trainer's own node, smaller fields (pixels as uint8, floats by after_copy), or more prefetch",
        {"prefetch": 4},
    )


def _workers(seen: Snapshot) -> tuple[str, str, dict[str, Any]]:
    return "workers", "they are starting, or the cluster lacks free CPUs, one for each decoder", {}


_NAMED = {
    "read": _storage,
    "room": _budget,
    "decode": _decode,
    "transfer": _transfer,
    "workers": _workers,
}


def _slow_node(seen: Snapshot, cause: str) -> tuple[str, str] | None:
    """The node whose work takes far longer than that of the others, and by how much."""
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
    return (
        slow,
        f"node {slow} takes {paces[slow] / usual:.1f} times as long as others for the same {cause}",
    )
