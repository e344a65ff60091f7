"""The registry of order kinds: from a kind's name and a request to a planner.

An order kind is one module with a function `build`, one line here, and one golden file. A module is
imported when its kind is first built, so that a loader imports its own kind alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.planner import Planner, RankSlice
from rayingest.plan.order.subset import Subset


@dataclass(frozen=True, eq=False)
class OrderRequest:
    """What an order is built from.

    `parameters`: `batch`, `partial`, `seed`, `window` and `lanes`, as far as they are given.
    `epoch_length`: {} for one pass, or `samples` or `passes`. `lengths`: by ordinal. `marks`: by
    name, what else of the data the order depends on, for states. `options`: the kind's own.
    """

    subset: Subset
    ranks: RankSlice
    parameters: Mapping[str, Any] = field(default_factory=dict)
    epoch_length: Mapping[str, int] = field(default_factory=dict)
    lengths: np.ndarray | None = None
    marks: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


Build = Callable[[OrderRequest], Planner]

KINDS: dict[str, str | Build] = {
    "window": "rayingest.plan.order.window",
    "weighted": "rayingest.plan.order.weighted",
    "sampler": "rayingest.plan.order.sampler",
    "packed": "rayingest.plan.order.packed",
    "budgeted": "rayingest.plan.order.packed",
    "mixed": "rayingest.plan.order.mixed",
    "stream": "rayingest.plan.order.stream",
}
"""By name of the kind: the module whose `build` builds it, or the function itself."""


def register_kind(name: str, build: Build) -> None:
    """Add an order kind. Raises ConfigError for a name that is taken by another function."""
    if KINDS.setdefault(name, build) is not build:
        raise ConfigError(f"order kind {name!r} is registered already: choose another name")


def build(name: str, request: OrderRequest) -> Planner:
    """Return the planner of a kind. Raises ConfigError for an unknown kind, and what it raises."""
    found = KINDS.get(name)
    if found is None:
        known = ", ".join(map(repr, sorted(KINDS)))
        raise ConfigError(f"order kind {name!r} is not registered; registered are {known}")
    if isinstance(found, str):
        found = importlib.import_module(found).build
    return found(request)
