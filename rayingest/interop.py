"""Data sets of other libraries: what has its own way to be read, as a `Dataset` like any other.

Owns what is taken from them, and what is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

from rayingest.dataset import Dataset
from rayingest.errors import ConfigError
from rayingest.options import Function, KindError, Seed, checked, kind
from rayingest.ordering import Batching
from rayingest.plan.drawn import Sampling
from rayingest.transforms.stages import Map, MapBatches, Stage
from rayingest.transforms.torch_items import Collate, Fetch, FetchTogether, Unpack


def _map_style(value: Any) -> Any:
    if not hasattr(value, "__getitem__"):
        raise KindError("it has no __getitem__; an iterable one goes through from_torch_iterable")
    try:
        length = len(value)
    except TypeError:
        raise KindError("it has no len()") from None
    if not length:
        raise KindError("it is empty")
    return value


def _iterable(value: Any) -> Any:
    if not hasattr(value, "__iter__"):
        raise TypeError
    if hasattr(value, "__next__"):
        raise KindError("it can be iterated only once, and every epoch iterates anew")
    return value


MapStyle = Annotated[Any, kind("a map-style dataset: with len() and [index]", _map_style)]
Sampler = Annotated[Iterable[Any], kind("a sampler, or another iterable of indices", _iterable)]
BatchSampler = Annotated[Iterable[Any], kind("a batch sampler, or another iterable of lists of indices", _iterable)]


@checked()
def from_torch(
    dataset: MapStyle,
    *,
    sampler: Sampler | None = None,
    batch_sampler: BatchSampler | None = None,
    collate_fn: Function | None = None,
    worker_init_fn: Function | None = None,
    seed: Seed = 0,
) -> Dataset:
    """The items of a map-style PyTorch dataset, made by the decoders: `dataset[i]`, or `__getitems__` of several.

    An item's parts become fields: a mapping's by their keys, those of a tuple or list by their places, "0", "1", and
    any other item "0"; `.select(image="0", label="1")` gives them names. The dataset, the functions and what they refer
    to travel to the workers. Numbers and arrays are put together as torch does it: arrays of a field are stacked.

    While an item is made, the global random states of Python, numpy and torch (on the CPU) are seeded with the seed,
    the epoch and the item's index; then they are put back. So augmentations inside the dataset differ from sample to
    sample and from epoch to epoch, and are the same in every run.

    Args:
        sampler: who gives the order: torch's samplers, with the order that torch's DataLoader has for the same
            generator, or any iterable of indices that has the same length in every epoch. Default: file order, or
            `.shuffle`. Each rank is to have an equal one: of a DistributedSampler, all ranks' parts make the global
            batch. Epoch e is what its e-th iteration gives (after `set_epoch(e)` where it has that), so a run that is
            resumed in epoch e draws the epochs before it once more. A state holds 16 digits of the first epoch's
            indices, and is refused where they differ. A sampler without a generator gets one with the seed.
        batch_sampler: who gives the global batches too, of any sizes, instead of `.batch`.
        collate_fn: makes a batch of a rank's list of items; of what it returns, parts become fields as of an item, and
            each must have the items as its first axis. Then a sample has one field, `item`, until it is put together.
        worker_init_fn: called once in each process that makes items, with the process's id.
        seed: of the random numbers, where there is no `.shuffle(seed)`.
    """
    if sampler is not None and batch_sampler is not None:
        raise ConfigError("from_torch: sampler beside batch_sampler, which has its own; leave one of them out")
    whole = collate_fn is not None
    stages: tuple[Stage, ...] = (Map(Fetch(dataset, worker_init_fn, whole)),)
    if hasattr(dataset, "__getitems__"):
        stages = (MapBatches(FetchTogether(dataset, worker_init_fn, whole)), *(() if whole else (Map(Unpack()),)))
    made = Dataset(
        "indices",
        type(dataset).__qualname__,
        options={"samples": len(dataset)},
        stages=stages,
        seed=seed,
        collate=None if collate_fn is None else Collate(collate_fn),
    )
    chosen = batch_sampler if sampler is None else sampler
    if chosen is None:
        return made
    sampling = _sampling(chosen, batch_sampler is not None, dataset, seed)
    return replace(made, sampling=sampling, batching=Batching(1, "short", None) if sampling.in_batches else None)


def _sampling(sampler: Any, in_batches: bool, dataset: Any, seed: int) -> Sampling:
    """The sampler as it is now; with a generator of its own, where it has none and would draw from the global state."""
    source = getattr(sampler, "data_source", None)
    shared = (dataset, *([] if source is None else [source]))
    part = kept = copy.deepcopy(sampler, {id(one): one for one in shared})
    while part is not None:
        if getattr(part, "generator", seed) is None:
            import torch

            part.generator = torch.Generator().manual_seed(seed)
        part = getattr(part, "sampler", None)
    return Sampling(kept, in_batches, shared)
