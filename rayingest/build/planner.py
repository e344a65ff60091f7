"""From what a description says of order and batches to a planner: shuffling, batching, packing, a sampler.

Owns what of these parts of a description does not go together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayingest.build.description import Batching, Description, Packed, Shuffle, SourceDescription
from rayingest.build.scan import ScanResult
from rayingest.errors import ConfigError
from rayingest.plan.order.bins import Grouping
from rayingest.plan.order.epoch_length import Calendar
from rayingest.plan.order.manifest import Population
from rayingest.plan.order.order import Order
from rayingest.plan.order.packed import GroupedPlanner
from rayingest.plan.order.packed_order import GroupedOrder
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.sampler import DrawnPlanner, Draws
from rayingest.plan.order.token_budget import Budget
from rayingest.plan.order.weighted import Resampling, WeightedPlanner
from rayingest.transforms.padding import Pad


def resolve_order(dataset: SourceDescription, data: Population) -> Order:
    """The parameters of an order of samples for this data, which is a manifest's view. Raises ConfigError."""
    batching, shuffling = batching_of(dataset), dataset.shuffling
    if batching.bucketed and (dataset.lengths is None or shuffling is None):
        lacks = (
            ".length(field) before it"
            if dataset.lengths is None
            else ".shuffle(), whose windows it works in"
        )
        raise ConfigError(f"batch(bucketed=True) needs {lacks}")
    assert batching.size is not None
    return Order.resolve(data, batch=batching.size, partial=batching.partial, **_how(shuffling))


def make_planner(
    dataset: SourceDescription, known: ScanResult, rank: int, world_size: int, uneven: bool
) -> Planner:
    """A rank's part of the order for this data. Raises ConfigError."""
    manifest, mine = known.manifest, (rank, world_size, uneven)
    batching = batching_of(dataset)
    if dataset.packing is not None or batching.max_tokens is not None:
        grouped = _grouped_order(dataset, batching, known, world_size)
        assert known.lengths is not None
        return GroupedPlanner(manifest, grouped, known.lengths, *mine, view=known.view)
    if dataset.weighting is not None:
        if dataset.shuffling is None:
            raise ConfigError(
                "weighted needs .shuffle(): repeats of a sample would follow each other"
            )
        assert known.weights is not None
        resampling = Resampling.of(known.view, known.weights, dataset.weighting.draws)
        order = resolve_order(dataset, resampling)
        calendar = Calendar.resolve(order, **dataset.epoch_length)
        return WeightedPlanner(resampling, order, *mine, calendar=calendar, lengths=known.lengths)
    if dataset.sampling is None:
        order = resolve_order(dataset, known.view)
        calendar = Calendar.resolve(order, **dataset.epoch_length)
        return Planner(
            manifest, order, *mine, view=known.view, calendar=calendar, lengths=known.lengths
        )
    draws = Draws(
        dataset.sampling,
        manifest.num_samples,
        None if dataset.sampling.in_batches else batching.size,
    )
    order = draws.order(batching.partial)
    return DrawnPlanner(
        manifest, order, draws, *mine, calendar=Calendar.resolve(order, **dataset.epoch_length)
    )


def batching_of(dataset: Description) -> Batching:
    """How samples are put together; ConfigError where nobody says."""
    if dataset.batching is None:
        raise ConfigError(
            "how many samples make a step? say so with .batch(global_size) before .loader()"
        )
    return dataset.batching


def _grouped_order(
    dataset: SourceDescription, batching: Batching, known: ScanResult, world_size: int
) -> GroupedOrder:
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
        raise ConfigError(
            f"{me} beside {other}: which samples come together, and how many, is {me}'s; leave one out"
        )
    if known.lengths is None:
        raise ConfigError(f"{me} needs .length(field) before it")
    if packed is not None:
        _check_packed_pads(packed, batching.pad)
        assert batching.size is not None
        grouping: Grouping = packed.rows
        size = batching.size
    else:
        assert batching.max_tokens is not None
        multiple = max((pad.multiple_of for pad in batching.pad.values()), default=1)
        grouping, size = Budget(batching.max_tokens, world_size, multiple), world_size
    how = _how(dataset.shuffling)
    return GroupedOrder.over(
        known.view, known.lengths, grouping, batch=size, partial=batching.partial, **how
    )


def _how(shuffling: Shuffle | None) -> dict[str, Any]:
    """A shuffle by the names that orders have for it; nothing for file order."""
    return {} if shuffling is None else dict(vars(shuffling))


def _check_packed_pads(packed: Packed, pads: Mapping[str, Pad]) -> None:
    for name, pad in pads.items():
        if name not in packed.fields:
            raise ConfigError(
                f"pad: field {name!r} is not packed; packed are {', '.join(map(repr, packed.fields))}"
            )
        if pad != Pad(value=pad.value):
            raise ConfigError(
                f"pad: of packed field {name!r} only the value can be said, as in ri.Pad(value=-100)"
            )
