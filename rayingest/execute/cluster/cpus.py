"""The CPUs of a cluster: how many there are, and in words what follows where no decoder runs. A decoder takes one."""

from __future__ import annotations

import ray


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
