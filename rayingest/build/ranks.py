"""Find the rank of this process, and the number of ranks.

Owns where they come from: the options of a loader, Ray Train, torch.distributed, or the
environment variables that a launcher sets.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from rayingest.errors import ConfigError


@dataclass(frozen=True)
class Ranks:
    """A rank of a world. `local_world_size` counts the ranks on this node, None if unknown."""

    rank: int
    world_size: int
    local_world_size: int | None


def find_ranks(rank: int | None, world_size: int | None) -> Ranks:
    """Return the ranks from the first place that names them. Raises ConfigError.

    The places are the arguments, Ray Train, torch.distributed, and RANK and WORLD_SIZE in the
    environment; without any, this process is rank 0 of 1.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError(
            f"rank={rank}, world_size={world_size}: one of them is missing; give both, or neither "
            "(both then come from Ray Train, torch.distributed or the environment)"
        )
    if rank is not None and world_size is not None:
        return Ranks(rank, world_size, None)
    return _of_ray_train() or _of_torch() or _of_environment()


def _of_ray_train() -> Ranks | None:
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        return Ranks(
            context.get_world_rank(), context.get_world_size(), context.get_local_world_size()
        )
    except RuntimeError:  # not inside a training worker
        return None


def _of_torch() -> Ranks | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Ranks(distributed.get_rank(), distributed.get_world_size(), _local_world_size())


def _of_environment() -> Ranks:
    try:
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        raise ConfigError(
            f"RANK={os.environ.get('RANK')!r}, WORLD_SIZE={os.environ.get('WORLD_SIZE')!r}: "
            "both must be whole numbers"
        ) from None
    return Ranks(rank, world_size, _local_world_size())


def _local_world_size() -> int | None:
    value = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(value) if value.isdigit() else None
