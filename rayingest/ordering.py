"""From what a description says of order and batches to a planner: shuffling, batching, packing, a sampler.

Owns these parts of a description, and what of them does not go together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from rayingest.errors import ConfigError
from rayingest.options import KindError, kind
from rayingest.plan.budget import Budget
from rayingest.plan.calendar import Calendar
from rayingest.plan.drawn import DrawnPlanner, Draws
from rayingest.plan.grouped import GroupedPlanner
from rayingest.plan.grouped_order import GroupedOrder
from rayingest.plan.groups import Grouping
from rayingest.plan.manifest import Population
from rayingest.plan.order import Order
from rayingest.plan.packing import Packing
from rayingest.plan.planner import Planner
from rayingest.plan.weighted import Resampling, WeightedPlanner
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
    """How samples are put together; `size` counts all ranks' rows of a step, None where `max_tokens` limits each's."""

    size: int | None
    partial: str
    collate: Callable[[list[dict[str, Any]]], Any] | None
    bucketed: bool = False
    pad: Mapping[str, Pad] = field(default_factory=dict)
    max_tokens: int | None = None


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
    batching, shuffling = batching_of(dataset), dataset.shuffling
    if batching.bucketed and (dataset.lengths is None or shuffling is None):
        lacks = ".length(field) before it" if dataset.lengths is None else ".shuffle(), whose windows it works in"
        raise ConfigError(f"batch(bucketed=True) needs {lacks}")
    how = {} if shuffling is None else vars(shuffling)
    assert batching.size is not None
    return Order.resolve(data, batch=batching.size, partial=batching.partial, **how)


def make_planner(dataset: Dataset, known: Surveyed, rank: int, world_size: int, uneven: bool) -> Planner:
    """A rank's part of the order for this data. Raises ConfigError."""
    manifest, mine = known.manifest, (rank, world_size, uneven)
    batching = batching_of(dataset)
    if dataset.packing is not None or batching.max_tokens is not None:
        grouped = _grouped_order(dataset, batching, known, world_size)
        assert known.lengths is not None
        return GroupedPlanner(manifest, grouped, known.lengths, *mine, view=known.view)
    if dataset.weighting is not None:
        if dataset.shuffling is None:
            raise ConfigError("weighted needs .shuffle(): repeats of a sample would follow each other")
        assert known.weights is not None
        resampling = Resampling.of(known.view, known.weights, dataset.weighting.draws)
        order = resolve_order(dataset, resampling)
        calendar = Calendar.resolve(order, **dataset.epoch_length)
        return WeightedPlanner(resampling, order, *mine, calendar=calendar, lengths=known.lengths)
    if dataset.sampling is None:
        order = resolve_order(dataset, known.view)
        calendar = Calendar.resolve(order, **dataset.epoch_length)
        return Planner(manifest, order, *mine, view=known.view, calendar=calendar, lengths=known.lengths)
    draws = Draws(dataset.sampling, manifest.num_samples, None if dataset.sampling.in_batches else batching.size)
    order = draws.order(batching.partial)
    return DrawnPlanner(manifest, order, draws, *mine, calendar=Calendar.resolve(order, **dataset.epoch_length))


def batching_of(dataset: Dataset) -> Batching:
    """How samples are put together; ConfigError where nobody says."""
    if dataset.batching is None:
        raise ConfigError("how many samples make a step? say so with .batch(global_size) before .loader()")
    return dataset.batching


def _grouped_order(dataset: Dataset, batching: Batching, known: Surveyed, world_size: int) -> GroupedOrder:
    """The order of packed rows, or of batches of limited size. Raises ConfigError for what does not go with them."""
    packed = dataset.packing
    me = "pack" if packed is not None else "batch(max_tokens=...)"
    others = {
        "epoch(...)": dataset.epoch_length,
        "weighted(...)": dataset.weighting,
        "batch(bucketed=True)": batching.bucketed,
        "batch(collate=...)": packed is not None and batching.collate,
        "batch(max_tokens=...)": packed is not None and batching.max_tokens,
    }
    for other in [name for name, given in others.items() if given]:
        raise ConfigError(f"{me} beside {other}: which samples come together, and how many, is {me}'s; leave one out")
    if known.lengths is None:
        raise ConfigError(f"{me} needs .length(field) before it")
    how = {} if dataset.shuffling is None else vars(dataset.shuffling)
    if packed is not None:
        _check_packed_pads(packed, batching.pad)
        assert batching.size is not None
        grouping: Grouping = packed.rows
        size = batching.size
    else:
        assert batching.max_tokens is not None
        multiple = max((pad.multiple_of for pad in batching.pad.values()), default=1)
        grouping, size = Budget(batching.max_tokens, world_size, multiple), world_size
    return GroupedOrder.over(known.view, known.lengths, grouping, batch=size, partial=batching.partial, **how)


def _check_packed_pads(packed: Packed, pads: Mapping[str, Pad]) -> None:
    for name, pad in pads.items():
        if name not in packed.fields:
            raise ConfigError(f"pad: field {name!r} is not packed; packed are {', '.join(map(repr, packed.fields))}")
        if pad != Pad(value=pad.value):
            raise ConfigError(f"pad: of packed field {name!r} only the value can be said, as in ri.Pad(value=-100)")
