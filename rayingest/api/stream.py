"""Following a log or a message queue: records without an end, as a data set.

Owns what of a data set they can be and what not; how they are read is the business of `unbounded`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from rayingest.api.dataset import Dataset
from rayingest.build.ranks import Ranks
from rayingest.build.stream import View
from rayingest.errors import ConfigError
from rayingest.execute.unbounded.partitions import Partitions, Source, Unpickle
from rayingest.execute.unbounded.stream import UnboundedStream, UnboundedWork
from rayingest.execute.work import SourceWork
from rayingest.formats import get_format
from rayingest.options.checked import checked, option_type
from rayingest.options.types import Function, Length, Positive, Seed
from rayingest.plan.order.offsets import BookmarkCodec, Bookmarks
from rayingest.plan.order.stream import UnboundedPlanner
from rayingest.storage.files import Storage
from rayingest.storage.index_cache import IndexCache
from rayingest.transforms.images.backend import choose_backend
from rayingest.transforms.stages import Map

if TYPE_CHECKING:
    from rayingest.trainer.loader import PlanView


def _partition_names(value: Any) -> int | tuple[str, ...]:
    if isinstance(value, (str, bool)):
        raise TypeError
    if not isinstance(value, Iterable):
        count = operator.index(value)
        if count < 1:
            raise ValueError
        return count
    names = tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise TypeError
    if not names or len(set(names)) < len(names):
        raise ValueError
    return names


PartitionNames = Annotated[
    int | Sequence[str],
    option_type(
        "how many partitions there are, 1 or more, or a list of different names", _partition_names
    ),
]


@checked()
def stream(open_at: Function, *, partitions: PartitionNames = 1, seed: Seed = 0) -> RecordStream:
    """Records without an end: of a log, a message queue, or whatever can be read on from a place in it.

    `open_at(partition, offset)` gives an iterator of pairs (sample, offset): a dict of fields, and where to go on
    behind it, whatever JSON can say. It is opened at None first, which must be the same place for all ranks, and later
    at an offset that it gave, from where it must give the same records again. It may wait for the next one as long as
    it takes, or give None where there is none yet; where it ends, the partition has no more for now.

    The order is one record of each partition in turn, those left out that have ended, and nothing else: it does not
    depend on time, on workers or on ranks. So a partition that is silent holds the others up. A batch comes as soon as
    its records are there. Where all partitions have ended the pass ends, and what is left of a batch comes with the
    next one, if there is more by then.

    A state holds each partition's offset behind the batch in hand, and what fields there are. Each rank reads all
    partitions and keeps its rows of every batch, so a run may go on with other ranks. There is no order to shuffle, and
    no epoch but one: every `for` goes on where the last one ended, and `len` of a loader is a TypeError.

    Args:
        partitions: their names, or how many there are, which are then called 0, 1 and so on.
        seed: of the random numbers of what follows, keyed by a record's place in the stream.
    """
    names = range(partitions) if isinstance(partitions, int) else partitions
    source = Source(open_at, tuple(names))
    return RecordStream(stages=(Map(Unpickle(source)),), seed=seed, source=source)


@dataclass(frozen=True, repr=False)
class RecordStream(Dataset):
    """What `stream` gives."""

    format_name: str = "stream"
    urls: str | tuple[str, ...] = ()
    source: Source = field(kw_only=True)

    def __repr__(self) -> str:
        return f"<RecordStream of {self.source.label}; {len(self.stages)} stages, {self.batching}>"

    def length(self, of: Length) -> Dataset:
        """Refused: nothing that needs lengths is done with streams."""
        self._permit("length")
        return self

    def epoch(self, *, samples: Positive | None = None, passes: Positive | None = None) -> Dataset:
        """Refused: there is but one."""
        self._permit("epoch")
        return self

    @property
    def source_work(self) -> SourceWork:
        raise ConfigError(
            f"this is done with data that ends, not with a stream of {self.source.label}"
        )

    def index_cache(self) -> IndexCache:
        raise ConfigError(
            f"this is done with data that ends, not with a stream of {self.source.label}"
        )

    def planned(
        self, ranks: Ranks, *, uneven: bool, on_ray: bool, skip: bool, image_backend: str | None
    ) -> tuple[UnboundedStream, PlanView]:
        assert self.batching is not None
        assert self.batching.size is not None
        if self.batching.partial != "drop":
            self._permit(f"batch(partial={self.batching.partial!r})")
        batch = self.batching.size
        source = replace(self.source, batch=batch)
        marks = Bookmarks(len(source.names))
        planner = UnboundedPlanner(marks, batch, ranks.rank, ranks.world_size, uneven)
        partitions = Partitions(source, ahead=on_ray)
        no_files = get_format("index_only")  # partitions give the records: no shard is read
        made = UnboundedWork(no_files, Storage(), self.pipeline, partitions=partitions)
        work = made.with_options(skip, choose_backend(image_backend))
        names = tuple(map(str, source.names))
        codec = BookmarkCodec(
            marks, names, batch, self.seed, work.pipeline.image_backend, work.code_mark
        )
        return UnboundedStream(planner, work, flag_valid=skip), View(planner, codec, marks)

    def _permit(self, what: str) -> None:
        raise ConfigError(
            f"{what}: which records of a stream come, and how many, is not known before; choose, mix and group them in "
            f"{self.source.label}, which gives them"
        )
