"""Describe data: where they lie, the work on each sample, the order, and the batches.

Owns the values that the verbs of a `Dataset` put together, and which features they use. Reads
nothing: `one_source`, `mixture` and `records` turn the three kinds of descriptions into streams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Self

from rayingest.build.compatibility import Feature
from rayingest.build.stream import RankPlan, Ranks
from rayingest.errors import ConfigError
from rayingest.execute.stream import Stream
from rayingest.formats import get_format
from rayingest.options import OptionTypeError, option_type
from rayingest.storage.disk_cache import DiskCache
from rayingest.storage.files import Storage
from rayingest.storage.index_cache import IndexCache
from rayingest.storage.redact import redact
from rayingest.transforms.collate import PACKED_COLUMNS
from rayingest.transforms.padding import Pad
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Select, Stage, absent_field

if TYPE_CHECKING:
    from rayingest.plan.order.packing import Packing

_SHOWN_URLS = 3


@dataclass(frozen=True)
class Shuffle:
    """How samples are mixed. None stands for a default that depends on the data."""

    seed: int
    window: int | None
    lanes: int | None


@dataclass(frozen=True)
class Batching:
    """How samples become batches.

    `size` is the number of rows of a step on all ranks. It is None with `max_tokens`, which limits
    the tokens of each rank.
    """

    size: int | None
    partial: str
    collate: Callable[[list[dict[str, Any]]], Any] | None
    bucketed: bool = False
    pad: Mapping[str, Pad] = field(default_factory=dict)
    max_tokens: int | None = None


@dataclass(frozen=True)
class Packed:
    """How samples are packed into rows, and the fields that are packed."""

    rows: Packing
    fields: tuple[str, ...]


def _pads(value: Any) -> dict[str, Pad]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {name: pad if isinstance(pad, Pad) else Pad(**pad) for name, pad in value.items()}


Padding = Annotated[
    Mapping[str, Pad],
    option_type(
        "by field, how it is padded, as in {'tokens': ri.Pad(multiple_of=8)}, or a mapping of its "
        "options",
        _pads,
    ),
]


def _fields(value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise TypeError
    for name in names:
        if name in PACKED_COLUMNS:
            raise OptionTypeError(f"pack adds a field {name!r} itself: rename yours")
    return names


Fields = Annotated[str | Sequence[str], option_type("a field's name, or a list of names", _fields)]


@dataclass(frozen=True, repr=False)
class Source:
    """Data in storage, in one format. `options` are the format's own."""

    format_name: str
    urls: str | tuple[str, ...]
    index: str | None = None
    block_bytes: int = 2 << 20
    strict: bool = True
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    allow_pipe: bool = False
    cache: DiskCache | None = None

    def __repr__(self) -> str:
        urls = [self.urls] if isinstance(self.urls, str) else self.urls
        shown = ", ".join(map(redact, urls[:_SHOWN_URLS]))
        return f"{self.format_name} of {shown}{', ...' if len(urls) > _SHOWN_URLS else ''}"

    @property
    def storage(self) -> Storage:
        """Access to the files."""
        return Storage(self.storage_options, allow_pipe=self.allow_pipe, cache=self.cache)

    def index_cache(self) -> IndexCache:
        """List the shards as they are now, and name the place of their index.

        Raises ConfigError if nothing matches the URLs, DataError if storage does not answer.
        """
        storage = self.storage
        urls = self.urls if isinstance(self.urls, str) else list(self.urls)
        listing = get_format(self.format_name).shards(urls, storage, self.block_bytes, self.options)
        return IndexCache(
            listing,
            self.format_name,
            self.block_bytes,
            self.strict,
            self.options,
            self.index,
            storage,
        )


@dataclass(frozen=True)
class Description(ABC):
    """The part that the three kinds of data share: an order, and batches."""

    shuffling: Shuffle | None = field(default=None, kw_only=True)
    batching: Batching | None = field(default=None, kw_only=True)

    @abstractmethod
    def __str__(self) -> str:
        """Return a short text that names the data."""

    @abstractmethod
    def with_stage(self, stage: Stage) -> Self:
        """Add a stage behind the others. Raises ConfigError if it cannot follow them."""

    @abstractmethod
    def build_stream(
        self, ranks: Ranks, *, uneven: bool, on_ray: bool, skip: bool, image_backend: str | None
    ) -> tuple[Stream, RankPlan]:
        """Build one rank's stream, and its plan for a loader.

        Raises ConfigError if data and description do not fit, and the errors of indexing.
        """

    @property
    def features(self) -> Iterator[Feature]:
        """The parts of this description that restrict others."""
        if self.shuffling is not None:
            yield Feature.SHUFFLE
            if self.shuffling.lanes is not None:
                yield Feature.LANES
        batching = self.batching
        if batching is not None:
            yield Feature.BATCH
            used = {
                Feature.BUCKETED: batching.bucketed,
                Feature.MAX_TOKENS: batching.max_tokens is not None,
                Feature.PARTIAL: batching.partial != "drop",
                Feature.COLLATE: batching.collate is not None,
                Feature.PAD: batching.pad,
            }
            yield from (feature for feature, is_used in used.items() if is_used)


def batching_of(description: Description) -> Batching:
    """Return how samples are batched. Raises ConfigError if that is missing."""
    if description.batching is None:
        raise ConfigError(
            "the global batch size is missing: call .batch(global_size) before .loader()"
        )
    return description.batching


def make_pipeline(
    stages: tuple[Stage, ...],
    seed: int,
    batching: Batching | None,
    collate: Callable[[list[dict[str, Any]]], Any] | None = None,
) -> Pipeline:
    """Return the pipeline of these stages; `batching.collate` replaces `collate`."""
    if batching is None:
        return Pipeline(stages, seed, collate)
    return Pipeline(stages, seed, batching.collate or collate, padding=batching.pad)


def add_stage(stages: tuple[Stage, ...], stage: Stage) -> tuple[Stage, ...]:
    """Return the stages with one more.

    Raises ConfigError if it cannot follow them, or if it names a field that an earlier `select`
    left out.
    """
    fields: Mapping[str, Any] | None = None  # None: unknown, until a select names all fields
    for one in stages:
        if not isinstance(one, Decode):
            fields = one.fields if isinstance(one, Select) else None
    named: Iterable[str] = stage.fields.values() if isinstance(stage, Select) else ()
    named = stage.functions if isinstance(stage, Decode) else named
    for name in named:
        if fields is not None and name not in fields:
            raise absent_field(type(stage).__name__.lower(), name, fields)
    added = (*stages, stage)
    Pipeline(added, 0)
    return added
