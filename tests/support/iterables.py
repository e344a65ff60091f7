"""A function of a shard that yields random samples, and a data set of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import rayingest as ri

LENGTHS = [13, 1, 40, 0, 27]


def samples(shard: int) -> Iterator[dict[str, Any]]:
    """Yield samples from the global random states."""
    offset = random.random()
    for n in range(LENGTHS[shard]):
        yield {
            "at": (shard, n),
            "x": torch.full((3,), float(n)),
            "noise": offset + np.random.random(),
            "t": torch.rand(2),
        }


def iterable(factory: Any = samples, **options: Any) -> Any:
    return ri.from_torch_iterable(factory, shards=len(LENGTHS), **options)
