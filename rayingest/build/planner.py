"""From a description and a scan to a planner: choose the order kind and collect its request.

Owns which verbs select which kind, and the options of the kind. How a kind orders samples is the
business of `plan.order`. Which parts of a description go together is the business of
`compatibility`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayingest.build.description import Batching, Description, Packed, SourceDescription
from rayingest.build.scan import ScanResult
from rayingest.errors import ConfigError
from rayingest.plan.order.kinds import OrderRequest, build
from rayingest.plan.order.planner import Planner, RankSlice
from rayingest.transforms.padding import Pad


def make_planner(
    dataset: SourceDescription, scan_result: ScanResult, rank: int, world_size: int, uneven: bool
) -> Planner:
    """Return a rank's planner of this data. Raises ConfigError."""
    batching = batching_of(dataset)
    kind, options = _kind(dataset, batching, scan_result)
    request = OrderRequest(
        scan_result.subset,
        RankSlice(rank, world_size, uneven),
        _parameters(dataset, batching),
        dataset.epoch_length,
        scan_result.lengths,
        scan_result.marks,
        options,
    )
    return build(kind, request)


def batching_of(dataset: Description) -> Batching:
    """Return how samples are batched. Raises ConfigError if that is missing."""
    if dataset.batching is None:
        raise ConfigError(
            "the global batch size is missing: call .batch(global_size) before .loader()"
        )
    return dataset.batching


def _kind(
    dataset: SourceDescription, batching: Batching, scan_result: ScanResult
) -> tuple[str, dict[str, Any]]:
    """Return the order kind of a description, and the kind's own options. Raises ConfigError."""
    if dataset.order_kind is not None:
        return dataset.order_kind, dict(dataset.order_options)
    if dataset.packing is not None:
        _check_packed_pads(dataset.packing, batching.pad)
        return "packed", {"packing": dataset.packing.rows}
    if batching.max_tokens is not None:
        multiple = max((pad.multiple_of for pad in batching.pad.values()), default=1)
        return "budgeted", {"max_tokens": batching.max_tokens, "multiple_of": multiple}
    if dataset.sampling is not None:
        return "sampler", {"sampling": dataset.sampling}
    if dataset.weighting is not None:
        return "weighted", {"weights": scan_result.weights, "draws": dataset.weighting.draws}
    return "window", {}


def _parameters(dataset: SourceDescription, batching: Batching) -> dict[str, Any]:
    """Return the options of the batches and the shuffle by the names that orders use."""
    shuffling = {} if dataset.shuffling is None else dict(vars(dataset.shuffling))
    return {"batch": batching.size, "partial": batching.partial, **shuffling}


def _check_packed_pads(packed: Packed, pads: Mapping[str, Pad]) -> None:
    """Raise ConfigError for a pad of an unpacked field, or with more than a value."""
    for name, pad in pads.items():
        if name not in packed.fields:
            raise ConfigError(
                f"pad: field {name!r} is not packed; packed are "
                f"{', '.join(map(repr, packed.fields))}"
            )
        if pad != Pad(value=pad.value):
            raise ConfigError(
                f"pad: a packed field such as {name!r} takes only the value, "
                "as in ri.Pad(value=-100)"
            )
