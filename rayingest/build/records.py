"""Build what a `RecordStream` describes: a rank's stream of records without an end.

Owns how a description of records becomes a stream; how records are read is the business of
`execute.unbounded`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from rayingest.build.compatibility import Feature
from rayingest.build.description import Description, add_stage, make_pipeline
from rayingest.build.ranks import Ranks
from rayingest.build.stream import View
from rayingest.execute.unbounded.partitions import Partitions
from rayingest.execute.unbounded.partitions import Source as RecordSource
from rayingest.execute.unbounded.stream import UnboundedStream, UnboundedWork
from rayingest.formats import get_format
from rayingest.plan.order.offsets import BookmarkCodec, Bookmarks
from rayingest.plan.order.stream import UnboundedPlanner
from rayingest.storage.files import Storage
from rayingest.transforms.images.backend import choose_backend
from rayingest.transforms.stages import Stage

if TYPE_CHECKING:
    from rayingest.trainer.loader import PlanView


@dataclass(frozen=True)
class Records(Description):
    """Records without an end, and the work on each. `seed`: of their random numbers."""

    source: RecordSource
    stages: tuple[Stage, ...] = ()
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.source.label}; {len(self.stages)} stages, {self.batching}"

    @property
    def features(self) -> Iterator[Feature]:
        yield Feature.STREAM
        yield from super().features

    def with_stage(self, stage: Stage) -> Self:
        return replace(self, stages=add_stage(self.stages, stage))

    def build_stream(
        self, ranks: Ranks, *, uneven: bool, on_ray: bool, skip: bool, image_backend: str | None
    ) -> tuple[UnboundedStream, PlanView]:
        assert self.batching is not None
        assert self.batching.size is not None
        batch = self.batching.size
        source = replace(self.source, batch=batch)
        marks = Bookmarks(len(source.names))
        planner = UnboundedPlanner(marks, batch, ranks.rank, ranks.world_size, uneven)
        partitions = Partitions(source, ahead=on_ray)
        pipeline = make_pipeline(self.stages, self.seed, self.batching)
        no_files = get_format("index_only")  # partitions give the records: no shard is read
        work = UnboundedWork(no_files, Storage(), pipeline, partitions=partitions)
        work = work.with_options(skip, choose_backend(image_backend))
        names = tuple(map(str, source.names))
        codec = BookmarkCodec(
            marks, names, batch, self.seed, work.pipeline.image_backend, work.code_mark
        )
        return UnboundedStream(planner, work, flag_valid=skip), View(planner, codec, marks)
