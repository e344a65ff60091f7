"""How many bytes a loader may have in the object store where nobody says, and whether the store is what it should be.

Owns the division of a node's store among the loaders on it; dispatch holds a loader to its part.
"""

from __future__ import annotations

import logging
import shutil
import weakref
from pathlib import Path
from typing import Any

import ray

_SHARE = 0.4
"""Of the store, for the first loaders of a node's ranks together; a rank's next loader gets half of its last one's."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is where Ray puts its object store

_log = logging.getLogger("rayingest")
_ranks: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Of this process's loaders that live, by source; several ranks may share a process."""


def store_bytes() -> int:
    """Size of the object store of this process's node, in bytes."""
    here = ray.get_runtime_context().get_node_id()
    sizes = (
        node["Resources"].get("object_store_memory", 0)
        for node in ray.nodes()
        if node["NodeID"] == here
    )
    return int(next(sizes, 0))


def default_bytes(rank: int, world_size: int, local_ranks: int | None) -> int:
    """A loader's part of its node's store: 40 % over all ranks there, half as much for each loader the rank has."""
    if local_ranks is None:
        alive = sum(node["Alive"] for node in ray.nodes())
        local_ranks = world_size if alive == 1 else 1
    return int(_SHARE * store_bytes() / local_ranks / 2 ** list(_ranks.values()).count(rank))


def count_loader(source: Any, rank: int) -> None:
    """This source of a loader lives, until it is closed or dropped."""
    _ranks[source] = rank


def uncount_loader(source: Any) -> None:
    """It is closed."""
    _ranks.pop(source, None)


def check_shared_memory(store: int, folder: Path = _SHARED_MEMORY) -> None:
    """Warn where shared memory is smaller than the store that Ray was to put there: it then lies on disk."""
    if not folder.exists():
        return
    size = shutil.disk_usage(folder).total
    if size < store:
        _log.warning(
            "%s holds %.1f GiB, the object store is to have %.1f GiB: Ray puts it on disk, and everything is slow; "
            "give the container more (docker run --shm-size, an emptyDir of medium Memory), or start Ray with less "
            "object_store_memory",
            folder,
            size / 2**30,
            store / 2**30,
        )


def total_cpus() -> int:
    """How many the cluster has, free or not."""
    return int(ray.cluster_resources().get("CPU", 0))


def count_cpus() -> tuple[float, float]:
    """How many the cluster has, and how many of them are free."""
    return ray.cluster_resources().get("CPU", 0.0), ray.available_resources().get("CPU", 0.0)


def cpus() -> str:
    """The same in words."""
    return _told(*count_cpus())


def no_decoder(asked: int, waited: float, total: float, free: float) -> str:
    """Why none runs after so many seconds, and what to do."""
    there_is_room = free >= 1  # Ray gives a decoder its CPU before its process is there
    why = "no decoder has started" if there_is_room else "no CPU for a decoder"
    mend = (
        "its process is slow to start: take a longer start_timeout"
        if there_is_room
        else "free some, add nodes"
    )
    return (
        f"{why} in {waited:.0f} s: {asked} asked for, {_told(total, free)}; {mend}, "
        "or take workers=0 to decode in the training process"
    )


def _told(total: float, free: float) -> str:
    return f"the cluster has {total:g} CPUs, {free:g} of them free"
