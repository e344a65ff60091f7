"""From what a description says of order and batches to a planner: shuffling, batching, packing, a sampler.

Owns these parts of a description, and what of them does not go together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from rayingest.errors import ConfigError
from rayingest.options import KindError, kind
from rayingest.plan.calendar import Calendar
from rayingest.plan.drawn import DrawnPlanner, Draws
from rayingest.plan.grouped import GroupedOrder, GroupedPlanner
from rayingest.plan.manifest import Population
from rayingest.plan.order import Order
from rayingest.plan.packing import Packing
from rayingest.plan.planner import Planner
from rayingest.transforms.packing import ADDED
from rayingest.transforms.padding import Pad

if TYPE_CHECKING:
    from rayingest.dataset import Dataset
    from rayingest.surveying import Surveyed


@dataclass(frozen=True)
class Shuffle:
    """How samples are mixed; None stands for the defaults that the data suggests."""

    seed: int
    window: int | None
    lanes: int | None


@dataclass(frozen=True)
class Batching:
    """How samples are put together; `size` counts all ranks' rows of a step."""

    size: int
    partial: str
    collate: Callable[[list[dict[str, Any]]], Any] | None
    bucketed: bool = False
    pad: Mapping[str, Pad] = field(default_factory=dict)


@dataclass(frozen=True)
class Packed:
    """How samples are packed into rows, and which of their fields."""

    rows: Packing
    fields: tuple[str, ...]


def _pads(value: Any) -> dict[str, Pad]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {name: pad if isinstance(pad, Pad) else Pad(**pad) for name, pad in value.items()}


Padding = Annotated[
    Mapping[str, Pad],
    kind("by field, how it is padded, as in {'tokens': ri.Pad(multiple_of=8)}, or a mapping of its options", _pads),
]


def _fields(value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise TypeError
    for name in names:
        if name in ADDED:
            raise KindError(f"{name!r} is what packing adds itself: rename the field")
    return names


Fields = Annotated[str | Sequence[str], kind("a field's name, or a list of names", _fields)]


def resolve_order(dataset: Dataset, data: Population) -> Order:
    """The parameters of an order of samples for this data, which is a manifest's view. Raises ConfigError."""
    batching, shuffling = _batching(dataset), dataset.shuffling
    if batching.bucketed and (dataset.lengths is None or shuffling is None):
        lacks = ".length(field) before it" if dataset.lengths is None else ".shuffle(), whose windows it works in"
        raise ConfigError(f"batch(bucketed=True) needs {lacks}")
    how = {} if shuffling is None else vars(shuffling)
    return Order.resolve(data, batch=batching.size, partial=batching.partial, **how)


def make_planner(dataset: Dataset, known: Surveyed, rank: int, world_size: int, uneven: bool) -> Planner:
    """A rank's part of the order for this data. Raises ConfigError."""
    manifest, mine = known.manifest, (rank, world_size, uneven)
    if dataset.packing is not None:
        assert known.lengths is not None
        packed = _packed_order(dataset, dataset.packing, known.lengths, known)
        return GroupedPlanner(manifest, packed, known.lengths, *mine, view=known.view)
    if dataset.sampling is None:
        order = resolve_order(dataset, known.view)
        calendar = Calendar.resolve(order, **dataset.epoch_length)
        return Planner(manifest, order, *mine, view=known.view, calendar=calendar, lengths=known.lengths)
    batching = _batching(dataset)
    draws = Draws(dataset.sampling, manifest.num_samples, None if dataset.sampling.in_batches else batching.size)
    order = draws.order(batching.partial)
    return DrawnPlanner(manifest, order, draws, *mine, calendar=Calendar.resolve(order, **dataset.epoch_length))


def _batching(dataset: Dataset) -> Batching:
    if dataset.batching is None:
        raise ConfigError("how many samples make a step? say so with .batch(global_size) before .loader()")
    return dataset.batching


def _packed_order(dataset: Dataset, packed: Packed, lengths: np.ndarray, known: Surveyed) -> GroupedOrder:
    batching = _batching(dataset)
    others = {
        "epoch(...)": dataset.epoch_length,
        "batch(bucketed=True)": batching.bucketed,
        "batch(collate=...)": batching.collate,
    }
    for other in [name for name, given in others.items() if given]:
        raise ConfigError(f"pack beside {other}: how rows are made, and how many there are, is pack's; leave one out")
    for name, pad in batching.pad.items():
        if name not in packed.fields:
            raise ConfigError(f"pad: field {name!r} is not packed; packed are {', '.join(map(repr, packed.fields))}")
        if pad != Pad(value=pad.value):
            raise ConfigError(f"pad: of packed field {name!r} only the value can be said, as in ri.Pad(value=-100)")
    how = {} if dataset.shuffling is None else vars(dataset.shuffling)
    return GroupedOrder.over(known.view, lengths, packed.rows, batch=batching.size, partial=batching.partial, **how)
