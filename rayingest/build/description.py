"""Describe data: where they lie, the work on each sample, the order, and the batches.

Owns the values that the verbs of a `Dataset` put together, and which features they use; the stream
and the plan of one rank, which every description can build; and the line and the warnings that a
loader logs before the stream starts. Reads nothing: `one_source`, `mixture` and `records` are the
three kinds of descriptions, and scan their data. Running the stream is the business of the loader.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self

from rayingest.build.compatibility import Feature
from rayingest.errors import ConfigError
from rayingest.execute.stream import ManifestStream, Stream
from rayingest.execute.work import Work
from rayingest.formats import get_format
from rayingest.formats.nested import split_path
from rayingest.formats.protocol import Format
from rayingest.options import OptionTypeError, option_type
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.state import StateCodec
from rayingest.storage.disk_cache import DiskCache
from rayingest.storage.files import Storage
from rayingest.storage.redact import redact
from rayingest.storage.scan import IndexCache
from rayingest.transforms.code_mark import code_mark
from rayingest.transforms.collate import PACKED_COLUMNS
from rayingest.transforms.images.jpeg import choose_backend
from rayingest.transforms.padding import Pad
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Select, Stage, absent_field

if TYPE_CHECKING:
    from rayingest.plan.order.packing import Packing

_SHOWN_URLS = 3
_FEW_BLOCKS = 16

_log = logging.getLogger("rayingest")


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
    collate_mark: str = field(init=False)

    def __post_init__(self) -> None:
        # Before any use: use may fill caches of the function.
        object.__setattr__(self, "collate_mark", code_mark(self.collate))


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
    """Data in storage, in one format. `options` are the format's own.

    `folder_columns`: whether folders named `key=value` are columns, if the format is tabular.
    """

    format_name: str
    urls: str | tuple[str, ...]
    index: str | None = None
    block_bytes: int = 2 << 20
    strict: bool = True
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    allow_pipe: bool = False
    cache: DiskCache | None = None
    folder_columns: bool = True

    def __repr__(self) -> str:
        urls = [self.urls] if isinstance(self.urls, str) else self.urls
        shown = ", ".join(map(redact, urls[:_SHOWN_URLS]))
        return f"{self.format_name} of {shown}{', ...' if len(urls) > _SHOWN_URLS else ''}"

    @property
    def storage(self) -> Storage:
        """Access to the files."""
        return Storage(self.storage_options, allow_pipe=self.allow_pipe, cache=self.cache)

    def index_cache(self, format_: Format | None = None) -> IndexCache:
        """List the shards as they are now, and name the place of their index.

        `format_`: the source's format, if this process may not know its name.

        Raises ConfigError if nothing matches the URLs, DataError if storage does not answer.
        """
        storage = self.storage
        urls = self.urls if isinstance(self.urls, str) else list(self.urls)
        format_ = format_ or get_format(self.format_name)
        listing = format_.shards(urls, storage, self.block_bytes, self.options)
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
class Ranks:
    """A rank of a world. `local_world_size` counts the ranks on this node, None if unknown."""

    rank: int
    world_size: int
    local_world_size: int | None


@dataclass(frozen=True)
class RankPlan:
    """A rank's plan as its loader sees it.

    `describe` logs what a user should know of the stream, given the bytes that it may have in
    flight. A stream without end gives `on_reached`: it is called with each step that the training
    loop has received, so that older offsets can go.
    """

    planner: Planner
    codec: StateCodec
    describe: Callable[[int], None]
    on_reached: Callable[[int], None] | None = None

    @property
    def rank(self) -> int:
        return self.planner.rank

    @property
    def world_size(self) -> int:
        return self.planner.world_size

    @property
    def is_endless(self) -> bool:
        """Whether there is one epoch that never ends."""
        return self.planner.is_endless

    def steps_in(self, epoch: int) -> int:
        return self.planner.steps_in(epoch)

    def reached(self, epoch: int, step: int) -> None:
        if self.on_reached is not None:
            self.on_reached(step)

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        return self.codec.state(epoch, step)

    def position(self, state: dict[str, Any]) -> tuple[int, int]:
        return self.codec.position(state)


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
    mark = batching.collate_mark if batching.collate is not None else ""
    own = batching.collate or collate
    return Pipeline(stages, seed, own, padding=batching.pad, collate_mark=mark)


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
        if fields is not None and name not in fields and split_path(name, fields) is None:
            raise absent_field(type(stage).__name__.lower(), name, fields)
    added = (*stages, stage)
    Pipeline(added, 0)
    return added


def make_stream(
    manifest: Manifest, planner: Planner, work: Work, *, skip: bool, image_backend: str | None
) -> tuple[Stream, RankPlan]:
    """Return a rank's stream of the data in a manifest, and its plan. Raises ConfigError."""
    if skip and planner.kind.no_skip:
        raise ConfigError(
            f"{planner.kind.no_skip} (on_error='skip', in an order of kind {planner.kind.name!r})"
        )
    work = work.with_options(skip, choose_backend(image_backend))
    flag_valid = skip or planner.order.partial == "pad"
    stream = ManifestStream(planner, work, flag_valid, manifest=manifest)
    identity = {
        "fingerprint": planner.manifest.fingerprint,
        "order": planner.identity,
        "image_backend": work.pipeline.image_backend,
    }
    codec = StateCodec(identity, work.code_mark, planner.steps_in)
    return stream, RankPlan(planner, codec, partial(describe, stream))


def describe(stream: ManifestStream, max_bytes: int) -> None:
    """Log what is read, in which order and how often, and warn of a small budget or window."""
    manifest, order, world_size = stream.manifest, stream.planner.order, stream.planner.world_size
    order_words = "file order"
    if order.seed is not None:
        order_words = f"windows of {order.window_samples:,} samples in {order.lanes} lane(s)"
    if len(stream.planner.subsets) > 1:
        order_words += f" of {len(stream.planner.subsets)} sources"
    _log.info(
        "%s samples, %s blocks, %s shards, %s; %s steps an epoch, %s; %.2f reads per block; "
        "up to %s in flight",
        _samples(stream.planner),
        f"{manifest.num_blocks:,}",
        f"{len(manifest.paths):,}",
        format_bytes(manifest.total_bytes),
        f"{stream.planner.steps_in(0):,}",
        order_words,
        stream.planner.reads_per_block(),
        format_bytes(max_bytes),
    )
    if order.seed is None or stream.planner.rank:
        return
    share = min(order.window_samples, order.samples) / world_size
    # Samples that the subset leaves out are read too, since they lie in the same blocks.
    share *= manifest.num_samples / stream.planner.num_samples
    block_bytes = manifest.total_bytes / manifest.num_blocks
    lanes = stream.planner.reads_per_block() * order.lanes / world_size
    window_bytes = bytes_of_window(stream)
    if window_bytes > max_bytes:
        _log.warning(
            "blocks will be read again many times: a rank's part of a window, %.3g "
            "lane(s) of at least one block each, has about %s, more than max_bytes=%s; give "
            "loader() more max_bytes, or shuffle() %s",
            lanes,
            format_bytes(window_bytes),
            format_bytes(max_bytes),
            _fitting_window(
                stream.planner,
                block_bytes,
                manifest.total_bytes / manifest.num_samples,
                max_bytes * world_size,
            ),
        )
    blocks = share * manifest.num_blocks / manifest.num_samples
    if blocks < _FEW_BLOCKS and order.samples > order.window_samples:
        _log.warning(
            "samples of one block stay close together: a rank's part of a window is only about "
            "%.1f blocks; give shuffle() a larger window, or the reader smaller block_bytes",
            blocks,
        )


def bytes_of_window(stream: ManifestStream) -> float:
    """Return about how many bytes the blocks have that a rank's part of a window lies in."""
    manifest, planner = stream.manifest, stream.planner
    order, reads = planner.order, planner.reads_per_block()
    samples = min(order.window_samples, order.samples) / planner.world_size
    # Samples that the subset leaves out are read too, since they lie in the same blocks.
    samples *= manifest.num_samples / planner.num_samples
    least = reads * order.lanes / planner.world_size * manifest.total_bytes / manifest.num_blocks
    nbytes = samples * manifest.total_bytes / manifest.num_samples * reads
    return min(max(nbytes, least), manifest.total_bytes)


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes in the largest unit that keeps it at 1 or more, up to TiB."""
    power = min(4, int(math.log(max(nbytes, 1), 1024)))
    return f"{nbytes / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _fitting_window(planner: Planner, block_bytes: float, sample_bytes: float, budget: int) -> str:
    """Return words for a window that half the budget of all ranks can hold.

    Each lane gets room for two blocks. A mixture gets no numbers: each of its sources has its own.
    """
    order = planner.order
    lanes = max(
        count
        for count in range(1, order.lanes + 1)
        if order.batch % count == 0 and (count == 1 or 4 * count * block_bytes <= budget)
    )
    window = 2 ** int(math.log2(max(1.0, budget / 2 / sample_bytes)))
    if len(planner.subsets) > 1 or 4 * lanes * block_bytes > budget or window < order.batch:
        return "a smaller window and fewer lanes"
    return f"a window that has room, such as window={window}, lanes={lanes}"


def _samples(planner: Planner) -> str:
    """Return the number of samples, and that of all samples if some are left out."""
    total, count = planner.manifest.num_samples, planner.num_samples
    return f"{total:,}" if count == total else f"{count:,} of {total:,}"
