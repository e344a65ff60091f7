"""What a data set is described by: where its data lie, what is done with each sample, in which order, in which batches.

Owns the values, and what they say by themselves; what is found out about the data and done with them is the business of
those who are given one. Users put one together by the methods of a `Dataset`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from rayingest.formats import get_format
from rayingest.build.statistic import SampleStatistic
from rayingest.options.checked import OptionTypeError, option_type
from rayingest.plan.order.sampler import Sampling
from rayingest.plan.order.packing import Packing
from rayingest.plan.order.subset import Limit
from rayingest.build.ranks import Ranks
from rayingest.storage.disk_cache import DiskCache
from rayingest.storage.files import Storage
from rayingest.storage.index_cache import IndexCache
from rayingest.execute.stream import Stream
from rayingest.transforms.collate import PACKED_COLUMNS, PackedFields
from rayingest.transforms.padding import Pad
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Select, Stage
from rayingest.build.weights import Weighting
from rayingest.execute.work import SourceWork, Work

if TYPE_CHECKING:
    from rayingest.trainer.loader import PlanView


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
    option_type("by field, how it is padded, as in {'tokens': ri.Pad(multiple_of=8)}, or a mapping of its options", _pads),
]


def _fields(value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise TypeError
    for name in names:
        if name in PACKED_COLUMNS:
            raise OptionTypeError(f"{name!r} is what packing adds itself: rename the field")
    return names


Fields = Annotated[str | Sequence[str], option_type("a field's name, or a list of names", _fields)]


@dataclass(frozen=True)
class Description(ABC):
    """All that is said of data and of what to do with them.

    `sampling`: who gives the order instead of `shuffling`. `seed`: of all random numbers, where `shuffling` has none.
    `collate`: the source's own way to put samples together, where `batching` has none.
    """

    format_name: str
    urls: str | tuple[str, ...]
    index: str | None = field(default=None, repr=False)
    block_bytes: int = 2 << 20
    strict: bool = True
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    shuffling: Shuffle | None = None
    batching: Batching | None = None
    allow_pipe: bool = False
    cache: DiskCache | None = None
    sampling: Sampling | None = None
    seed: int = 0
    collate: Callable[[list[dict[str, Any]]], Any] | None = None
    limits: tuple[Limit | SampleStatistic, ...] = ()
    lengths: SampleStatistic | None = None
    epoch_length: Mapping[str, int] = field(default_factory=dict)
    packing: Packed | None = None
    weighting: Weighting | None = None

    @abstractmethod
    def planned(
        self, ranks: Ranks, *, uneven: bool, on_ray: bool, skip: bool, image_backend: str | None
    ) -> tuple[Stream, PlanView]:
        """A rank's stream, and its plan as a loader sees it. Raises ConfigError, and what indexing does."""

    @property
    def needs_lengths(self) -> bool:
        """Whether the order depends on them."""
        batching = self.batching
        return self.packing is not None or (
            batching is not None and (batching.bucketed or batching.max_tokens is not None)
        )

    @property
    def work(self) -> Work:
        """What workers must know of this."""
        return self.source_work

    @property
    def source_work(self) -> SourceWork:
        """The same, where it is one source that is read; ConfigError where it is not."""
        format_ = get_format(self.format_name)
        return SourceWork(format_, self._storage, self.pipeline, self.strict, self.options)

    @property
    def pipeline(self) -> Pipeline:
        """What is done with each sample, and how they are put together."""
        seed = self.shuffling.seed if self.shuffling else self.seed
        collate = self.batching.collate if self.batching else None
        pad = self.batching.pad if self.batching else {}
        if self.packing is None:
            return Pipeline(self.stages, seed, collate or self.collate, padding=pad)
        names = self.packing.fields
        packed = PackedFields(names, {name: one.value for name, one in pad.items()})
        return Pipeline((*self.stages, Select({name: name for name in names})), seed, packed=packed)

    def index_cache(self) -> IndexCache:
        """The data's shards as they are now, and where their index is kept; ConfigError as of `source_work`."""
        storage = self._storage
        urls = self.urls if isinstance(self.urls, str) else list(self.urls)
        listing = get_format(self.format_name).shards(urls, storage, self.block_bytes, self.options)
        return IndexCache(listing, self.format_name, self.block_bytes, self.strict, self.options, self.index, storage)

    @property
    def _storage(self) -> Storage:
        return Storage(self.storage_options, allow_pipe=self.allow_pipe, cache=self.cache)
