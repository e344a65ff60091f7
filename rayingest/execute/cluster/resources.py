"""Look up the CPUs and the object store of the cluster, and derive defaults and advice from them.

Owns the division of a node's store among its loaders. Dispatch keeps each loader within its share.
"""

from __future__ import annotations

import logging
import shutil
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray._private.state import actors

_SHARE = 0.4
"""The share of a node's store for the first loaders of its ranks; each further loader gets half."""
_SHOWN_HOLDERS = 4
"""Pools that an error names."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - Ray puts its object store there

_log = logging.getLogger("rayingest")
_ranks: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""The rank of each open loader of this process, by its source."""


def total_cpus() -> int:
    """Return the number of CPUs of the cluster, free or not."""
    return int(ray.cluster_resources().get("CPU", 0))


def count_cpus() -> tuple[float, float]:
    """Return how many CPUs the cluster has, and how many of them are free."""
    return ray.cluster_resources().get("CPU", 0.0), ray.available_resources().get("CPU", 0.0)


def describe_cpus() -> str:
    """Return the result of `count_cpus` in words."""
    return _describe(*count_cpus())


def count_decoders() -> Counter[str]:
    """Return how many decoders run in the whole cluster, by the prefix of their pool's names."""
    running = actors(actor_state_name="ALIVE").values()
    names = (actor["Name"].rpartition(":") for actor in running)
    return Counter(
        pool for pool, _, name in names if pool.startswith("rayingest:") and "decoder" in name
    )


def explain_no_decoder(
    asked: int,
    waited: float,
    total: float,
    free: float,
    held: Mapping[str, int] = MappingProxyType({}),
    own: Collection[str] = (),
    pool: str = "",
) -> str:
    """Return why no decoder has started after `waited` seconds, who has the CPUs, and a way out.

    `held`: running decoders by the prefix of their pool's names. `own`: the prefixes of this
    process's pools. `pool`: that of the pool that waits.
    """
    # A decoder of this pool may run that has not answered yet.
    if free >= 1 or held.get(pool):  # Ray assigns a CPU before the process of the decoder exists
        reason, holders = "no decoder has started", ""
        advice = "its process starts slowly: use a longer start_timeout"
    else:
        reason = "there is no free CPU for a decoder"
        holders = _describe_holders(total - free, held, own)
        advice = "free CPUs or add nodes"
        if any(prefix in own for prefix in held):
            advice = (
                "let the loaders of this process share decoders (leave out workers=, or give them "
                f"one pool=ri.Pool(...)), {advice}"
            )
    return (
        f"{reason} after {waited:.0f} s: {asked} decoders requested, {_describe(total, free)}"
        f"{holders}; {advice}, or use workers=0 to decode in the training process"
    )


def _describe_holders(used: float, held: Mapping[str, int], own: Collection[str]) -> str:
    """Return who has the CPUs in use: pools of this process, other pools, or other programs."""
    parts = []
    for prefix, number in sorted(held.items(), key=lambda item: (item[0] not in own, -item[1])):
        who = "another pool of this process" if prefix in own else f"the pool {prefix}"
        parts.append(f"{number} by decoders of {who}")
    more = len(parts) - _SHOWN_HOLDERS
    if more > 0:
        parts[_SHOWN_HOLDERS:] = [f"some by decoders of {more} other pools"]
    rest = used - sum(held.values())
    if rest >= 1:
        parts.append(
            f"{rest:g} by starting decoders (a longer start_timeout helps), other actors or tasks"
        )
    return f" ({', '.join(parts)})" if parts else ""


def store_bytes() -> int:
    """Return the size of the object store of this process's node, in bytes."""
    here = ray.get_runtime_context().get_node_id()
    sizes = (
        node["Resources"].get("object_store_memory", 0)
        for node in ray.nodes()
        if node["NodeID"] == here
    )
    return int(next(sizes, 0))


def default_max_bytes(rank: int) -> Callable[[int], int]:
    """Return the default `max_bytes` of a rank's next loader, by the number of ranks on its node.

    All ranks of the node together get 40 % of its store; a rank's second open loader gets half of
    its share, the third a quarter.
    """
    share = _SHARE * store_bytes() / 2 ** list(_ranks.values()).count(rank)
    return lambda local_ranks: int(share / local_ranks)


def count_loader(source: Any, rank: int) -> None:
    """Count a loader, by its source, until it is closed or garbage-collected."""
    _ranks[source] = rank


def uncount_loader(source: Any) -> None:
    """Stop counting a loader that is closed."""
    _ranks.pop(source, None)


def check_shared_memory(store: int, folder: Path = _SHARED_MEMORY) -> None:
    """Log a warning if shared memory is smaller than the object store: Ray then uses the disk."""
    if not folder.exists():
        return
    size = shutil.disk_usage(folder).total
    if size < store:
        _log.warning(
            "%s has %.1f GiB, less than the object store's %.1f GiB: Ray puts the store on disk, "
            "which is slow; give the container more shared memory (docker run --shm-size, an "
            "emptyDir of medium Memory), or start Ray with less object_store_memory",
            folder,
            size / 2**30,
            store / 2**30,
        )


def _describe(total: float, free: float) -> str:
    return f"the cluster has {total:g} CPUs, {free:g} of them free"
