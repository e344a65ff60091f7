"""Make a `Dataset` of a PyTorch dataset: `from_torch` and `from_torch_iterable`.

Owns what is taken from a map-style dataset, its sampler and its collate function, or from an
iterable one, and what is refused.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from rayingest.api.dataset import Dataset
from rayingest.api.readers.common import absolute
from rayingest.build.description import Batching, Source
from rayingest.build.one_source import OneSource
from rayingest.errors import ConfigError
from rayingest.formats.iterables import LENGTHS, SOURCE, VERSION
from rayingest.options import (
    Bytes,
    Function,
    OptionTypeError,
    Place,
    Positive,
    Seed,
    checked,
    option_type,
)
from rayingest.transforms.functions import name_of
from rayingest.transforms.stages import Map, MapBatches, Stage
from rayingest.transforms.torch.items import Collate, Fetch, FetchTogether, Unpack
from rayingest.transforms.torch.iterables import Copies, Iterables, Restore

if TYPE_CHECKING:
    from rayingest.plan.order.sampler import Sampling


def _map_style(value: Any) -> Any:
    if not hasattr(value, "__getitem__"):
        raise OptionTypeError(
            "it has no __getitem__; give an iterable dataset to from_torch_iterable"
        )
    try:
        length = len(value)
    except TypeError:
        raise OptionTypeError("it has no len()") from None
    if not length:
        raise OptionTypeError("it is empty")
    return value


def _iterable(value: Any) -> Any:
    if not hasattr(value, "__iter__"):
        raise TypeError
    if hasattr(value, "__next__"):
        raise OptionTypeError("it can be iterated only once, and every epoch iterates it again")
    return value


def _generator(value: Any) -> Any:
    if not hasattr(value, "manual_seed"):
        raise TypeError
    return value


def _factory(value: Any) -> Any:
    if callable(value):
        return value
    return Copies(_iterable(value))


def _lengths(value: Any) -> tuple[int, ...]:
    lengths = tuple(map(operator.index, value))
    if min(lengths, default=0) < 0:
        raise ValueError
    return lengths


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


MapStyle = Annotated[Any, option_type("a map-style dataset: with len() and [index]", _map_style)]
Sampler = Annotated[
    Iterable[Any], option_type("a sampler, or another iterable of indices", _iterable)
]
BatchSampler = Annotated[
    Iterable[Any],
    option_type("a batch sampler, or another iterable of lists of indices", _iterable),
]

Generator = Annotated[Any, option_type("a torch.Generator", _generator)]
Factory = Annotated[
    Any,
    option_type(
        "a function of a shard's number that returns an iterable, or an IterableDataset", _factory
    ),
]
Lengths = Annotated[
    Sequence[int], option_type("a list of the number of samples of each shard", _lengths)
]
Version = Annotated[str, option_type("text", _word)]


def _check_sampler(given: Mapping[str, Any]) -> None:
    if given.get("sampler") is not None and given.get("batch_sampler") is not None:
        raise ConfigError(
            "a batch_sampler has its own sampler: from_torch(sampler=...) cannot be used with "
            "from_torch(batch_sampler=...); leave one of them out"
        )
    if given.get("generator") is not None and not (
        given.get("sampler") is not None or given.get("batch_sampler") is not None
    ):
        raise ConfigError(
            "nothing draws from the generator: from_torch(generator=...) has no sampler; give a "
            "sampler, or call .shuffle(seed=...)"
        )


@checked(_check_sampler)
def from_torch(
    dataset: MapStyle,
    *,
    sampler: Sampler | None = None,
    batch_sampler: BatchSampler | None = None,
    generator: Generator | None = None,
    collate_fn: Function | None = None,
    worker_init_fn: Function | None = None,
    seed: Seed = 0,
) -> Dataset:
    """Read the items of a map-style PyTorch dataset; decoders call `dataset[i]` or `__getitems__`.

    The parts of an item become fields: those of a mapping by their keys, those of a tuple or list
    by their places, "0", "1"; any other item is the field "0". `.select(image="0", label="1")`
    renames them. The dataset, the functions and all that they refer to travel to the workers.
    Numbers and arrays are put together as PyTorch does it: arrays of a field are stacked.

    While an item is made, the global random states of Python, NumPy and PyTorch (on the CPU) are
    seeded with the seed, the epoch and the index of the item; then they are restored. So random
    numbers inside the dataset differ from item to item and from epoch to epoch, and are the same in
    every run.

    Args:
        dataset: with `len()` and `[index]`.
        sampler: decides the order: a sampler of PyTorch, with the order that a DataLoader has for
            the same generator, or any iterable of indices with the same length in every epoch.
            Default: file order, or `.shuffle`. Give every rank an equal one: the parts that a
            DistributedSampler has for all ranks make the global batch. Epoch e is its e-th
            iteration (after `set_epoch(e)`, if it has that), so a run that resumes in epoch e draws
            the epochs before again. A state holds 16 digits of the first epoch's indices, and is
            refused if they differ. A sampler without a generator gets one with the seed.
        batch_sampler: decides the global batches too, of any sizes, instead of `.batch`.
        generator: the DataLoader's own generator, if the sampler draws from it too: for
            `DataLoader(data, shuffle=True, generator=g)` give `RandomSampler(data, generator=g)`
            and `g`. A DataLoader draws one number from it before the indices of each epoch (with
            `persistent_workers=True`, before those of the first one).
        collate_fn: makes a batch of the list of a rank's items. The parts of its result become
            fields, as those of an item do; each must have the items as first axis. Before that, a
            sample has one field, `item`.
        worker_init_fn: called once in each process that makes items, with its number among them.
            In it, and in the dataset, `get_worker_info()` names worker and dataset.
        seed: of the random numbers, without `.shuffle(seed=...)`.
    """
    whole = collate_fn is not None
    stages: tuple[Stage, ...] = (Map(Fetch(dataset, worker_init_fn, whole)),)
    if hasattr(dataset, "__getitems__"):
        stages = (
            MapBatches(FetchTogether(dataset, worker_init_fn, whole)),
            *(() if whole else (Map(Unpack()),)),
        )
    source = Source("index_only", type(dataset).__qualname__, options={"samples": len(dataset)})
    description = OneSource(
        source=source,
        stages=stages,
        seed=seed,
        collate=None if collate_fn is None else Collate(collate_fn),
    )
    given = batch_sampler if sampler is None else sampler
    if given is None:
        return Dataset(description)
    if generator is not None:
        given = _SeedFirst(given, generator)
    sampling = _copy_sampler(given, batch_sampler is not None, dataset, seed)
    batching = Batching(1, "short", None) if sampling.in_batches else None
    return Dataset(replace(description, sampling=sampling, batching=batching))


def _check_lengths(given: Mapping[str, Any]) -> None:
    lengths, shards = given.get("lengths"), given["shards"]
    if lengths is not None and len(lengths) != shards:
        raise ConfigError(
            f"each shard needs a length: lengths has {len(lengths)} numbers for {shards} shards"
        )


@checked(_check_lengths)
def from_torch_iterable(
    factory: Factory,
    *,
    shards: Positive,
    lengths: Lengths | None = None,
    version: Version = "",
    index: Place | None = None,
    block_bytes: Bytes = 64 << 20,
    seed: Seed = 0,
) -> Dataset:
    """Read samples that must be iterated: generators, or a PyTorch IterableDataset.

    The parts of a sample become fields, as those of an item of `from_torch` do. A shard must give
    the same samples whenever it is iterated: put work that changes from epoch to epoch into `.map`.
    Readers iterate, in one thread per process; decoders do the rest, in parallel.

    To read a block, the iteration goes on from the block before it: by `load_state_dict`, if the
    iterable or its iterator has one that restores the same samples, else from the begin of the
    shard. So shards of one block cost nothing extra in any order, larger ones in file order.

    During the iteration the global random states of Python, NumPy and PyTorch are the shard's own,
    as if it ran alone in a process seeded with `seed` and the number of the shard.

    Args:
        factory: a function `factory(i)` that returns the iterable of shard i; or an IterableDataset
            that divides itself by PyTorch's `get_worker_info()`: shard i is a copy that sees itself
            as worker i of `shards`. One that does not divide itself gives all of its samples in
            each shard.
        shards: number of shards.
        lengths: number of samples to take from each shard. Default: all; they are counted once, by
            one iteration over everything, and the counts are cached as an index is.
        version: of the data; with another version they are counted again.
        index: file or folder in which the counts are cached. Default: the user's cache folder.
        block_bytes: bytes of a shard to read at a time.
        seed: of the random numbers inside and, without `.shuffle(seed=...)`, of those of later
            stages.
    """
    iterables = Iterables(factory, shards, seed)
    options = {SOURCE: iterables, LENGTHS: lengths, VERSION: version}
    source = Source(
        "iterables",
        name_of(factory),
        None if index is None else absolute(index),
        block_bytes,
        options={name: value for name, value in options.items() if value is not None},
    )
    return Dataset(OneSource(source=source, stages=(Map(Restore(iterables)),), seed=seed))


class _SeedFirst:
    """A sampler as a DataLoader with this generator iterates it.

    A DataLoader draws the seed of its workers first.
    """

    def __init__(self, sampler: Iterable[Any], generator: Any) -> None:
        self.sampler, self.generator = sampler, generator

    def __iter__(self) -> Iterator[Any]:
        import torch

        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        yield from self.sampler


def _copy_sampler(sampler: Any, in_batches: bool, dataset: Any, seed: int) -> Sampling:
    """Copy the sampler as it is now; a part that would draw from the global state gets the seed."""
    from rayingest.plan.order.sampler import Sampling, chain

    data = (part.data_source for part in chain(sampler) if hasattr(part, "data_source"))
    shared = (dataset, *data)
    copied = copy.deepcopy(sampler, {id(one): one for one in shared})
    for part in chain(copied):
        if getattr(part, "generator", seed) is None:
            import torch

            part.generator = torch.Generator().manual_seed(seed)
    return Sampling(copied, in_batches, shared)
