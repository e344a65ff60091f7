"""Data sets of other libraries: what has its own way to be read, as a `Dataset` like any other.

Owns what is taken from them, and what is refused.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from rayingest.api.dataset import Dataset
from rayingest.api.readers import read_parquet
from rayingest.api.readers.common import BLOCK_BYTES, here
from rayingest.build.description import Batching
from rayingest.build.from_ray import materialized
from rayingest.errors import ConfigError
from rayingest.formats.iterables import LENGTHS, SOURCE, VERSION
from rayingest.options.checked import OptionTypeError, checked, option_type
from rayingest.options.types import Bytes, Function, Place, Positive, Seed, StorageOptions
from rayingest.plan.order.sampler import Sampling, chain
from rayingest.storage.files import Storage
from rayingest.transforms.functions import name_of
from rayingest.transforms.stages import Map, MapBatches, Stage
from rayingest.transforms.torch.items import Collate, Fetch, FetchTogether, Unpack
from rayingest.transforms.torch.iterables import Copies, Iterables, Restore


def _map_style(value: Any) -> Any:
    if not hasattr(value, "__getitem__"):
        raise OptionTypeError(
            "it has no __getitem__; an iterable one goes through from_torch_iterable"
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
        raise OptionTypeError("it can be iterated only once, and every epoch iterates anew")
    return value


def _generator(value: Any) -> Any:
    if not hasattr(value, "manual_seed"):
        raise TypeError
    return value


def _ray_dataset(value: Any) -> Any:
    import ray.data

    if not isinstance(value, ray.data.Dataset):
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
RayDataset = Annotated[Any, option_type("a Ray Dataset", _ray_dataset)]
Factory = Annotated[
    Any,
    option_type(
        "a function of a shard's number that gives an iterable, or an IterableDataset", _factory
    ),
]
Lengths = Annotated[
    Sequence[int], option_type("a list of how many samples each shard has", _lengths)
]
Version = Annotated[str, option_type("a word", _word)]


@checked()
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
        generator: the DataLoader's own, where the sampler draws from it too: for `DataLoader(data, shuffle=True,
            generator=g)` give `RandomSampler(data, generator=g)` and `g`. A DataLoader takes a number from it before
            each epoch's indices are drawn (with persistent_workers=True, before those of the first alone).
        collate_fn: makes a batch of a rank's list of items; of what it returns, parts become fields as of an item, and
            each must have the items as its first axis. Then a sample has one field, `item`, until it is put together.
        worker_init_fn: called once in each process that makes items, with the process's id.
        seed: of the random numbers, where there is no `.shuffle(seed)`.
    """
    if sampler is not None and batch_sampler is not None:
        raise ConfigError(
            "from_torch: sampler beside batch_sampler, which has its own; leave one of them out"
        )
    if generator is not None and sampler is None and batch_sampler is None:
        raise ConfigError("from_torch: generator without a sampler; .shuffle(seed) needs none")
    whole = collate_fn is not None
    stages: tuple[Stage, ...] = (Map(Fetch(dataset, worker_init_fn, whole)),)
    if hasattr(dataset, "__getitems__"):
        stages = (
            MapBatches(FetchTogether(dataset, worker_init_fn, whole)),
            *(() if whole else (Map(Unpack()),)),
        )
    made = Dataset(
        "index_only",
        type(dataset).__qualname__,
        options={"samples": len(dataset)},
        stages=stages,
        seed=seed,
        collate=None if collate_fn is None else Collate(collate_fn),
    )
    chosen = batch_sampler if sampler is None else sampler
    if chosen is None:
        return made
    if generator is not None:
        chosen = _SeedFirst(chosen, generator)
    sampling = _sampling(chosen, batch_sampler is not None, dataset, seed)
    return replace(
        made,
        sampling=sampling,
        batching=Batching(1, "short", None) if sampling.in_batches else None,
    )


def _one_length_a_shard(given: Mapping[str, Any]) -> None:
    lengths, shards = given.get("lengths"), given["shards"]
    if lengths is not None and len(lengths) != shards:
        raise ConfigError(
            f"lengths has {len(lengths)} numbers for {shards} shards; give one for each"
        )


@checked(_one_length_a_shard)
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
    """Samples that have to be iterated: `factory(i)` gives the iterable of shard i, a generator or an IterableDataset.

    A sample's parts become fields as those of `from_torch`'s items do. A shard must give the same samples whenever it
    is iterated: what changes from epoch to epoch belongs into `.map`. It is iterated by whoever reads its blocks, in
    one thread a process; what follows is done by the decoders, side by side.

    A block is reached by going on from the block before it, by the iterable's `load_state_dict` where it (or its
    iterator) has one and gives the same samples after it, else by iterating from the shard's begin. So shards of one
    block are read at no extra cost in any order, larger ones in file order.

    While it is iterated, the global random states of Python, numpy and torch are the shard's own, as if it ran alone in
    a process with a seed of `seed` and i.

    Args:
        factory: or an IterableDataset that divides itself by torch's `get_worker_info()`: shard i is a copy, told to be
            worker i of `shards`. One that does not would give all of its samples in each shard.
        shards: how many there are.
        lengths: how many samples of each are taken. Default: all; they are counted once, by iterating all of it, which
            is kept as other indexes are.
        version: of the data. With another one it is counted again.
        index: where to keep what was counted, a file or a folder; default: the user's cache folder.
        block_bytes: how much of a shard is read at a time.
        seed: of the random numbers inside, and of others where there is no `.shuffle(seed)`.
    """
    source = Iterables(factory, shards, seed)
    options = {SOURCE: source, LENGTHS: lengths, VERSION: version}
    return Dataset(
        "iterables",
        name_of(factory),
        None if index is None else here(index),
        block_bytes,
        options={name: value for name, value in options.items() if value is not None},
        stages=(Map(Restore(source)),),
        seed=seed,
    )


@checked()
def from_ray(
    rows: RayDataset,
    path: Place,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
) -> Dataset:
    """The rows of a Ray Dataset, written once to Parquet files below `path`, and read from there ever after.

    Where a run has finished writing, nothing of the Ray Dataset is executed any more, whatever it would give now: for
    other rows name another path. Files are in the order of its rows, numbered; those of an attempt that failed count
    for nothing. Ray Data writes them, so all of its nodes must reach the path.

    Args:
        path: a folder, or a URL that fsspec opens.
        index: where to keep the index of the files, a file or a folder; default: the user's cache folder.
        block_bytes: how large row groups are, which are read as wholes.
        storage_options: for fsspec; never stored.
    """
    place, options = here(path).rstrip("/"), dict(storage_options or {})
    files = materialized(rows, place, Storage(options), block_bytes)
    return read_parquet(files, index=index, storage_options=options)


class _SeedFirst:
    """A sampler as a DataLoader with this generator iterates it: behind a draw of the seed for the loader's workers."""

    def __init__(self, sampler: Iterable[Any], generator: Any) -> None:
        self.sampler, self.generator = sampler, generator

    def __iter__(self) -> Iterator[Any]:
        import torch

        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        yield from self.sampler


def _sampling(sampler: Any, in_batches: bool, dataset: Any, seed: int) -> Sampling:
    """The sampler as it is now; with a generator of its own, where it has none and would draw from the global state."""
    shared = (
        dataset,
        *(part.data_source for part in chain(sampler) if hasattr(part, "data_source")),
    )
    kept = copy.deepcopy(sampler, {id(one): one for one in shared})
    for part in chain(kept):
        if getattr(part, "generator", seed) is None:
            import torch

            part.generator = torch.Generator().manual_seed(seed)
    return Sampling(kept, in_batches, shared)
