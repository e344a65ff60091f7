"""Build what a `RecordStream` describes: a rank's stream of records without an end.

Owns how a description of records becomes a stream; how records are read is the business of
`execute.unbounded`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from rayingest.build.compatibility import Feature
from rayingest.build.description import (
    Description,
    RankPlan,
    Ranks,
    add_stage,
    format_bytes,
    make_pipeline,
)
from rayingest.execute.unbounded.partitions import Partitions
from rayingest.execute.unbounded.partitions import Source as RecordSource
from rayingest.execute.unbounded.stream import UnboundedStream, UnboundedWork
from rayingest.formats import get_format
from rayingest.plan.order.offsets import Offsets
from rayingest.plan.order.planner import RankSlice
from rayingest.plan.order.state import StateCodec
from rayingest.plan.order.stream import plan, share
from rayingest.storage.files import Storage
from rayingest.transforms.images.jpeg import choose_backend
from rayingest.transforms.stages import Stage

_log = logging.getLogger("rayingest")


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
    ) -> tuple[UnboundedStream, RankPlan]:
        assert self.batching is not None
        assert self.batching.size is not None
        batch = self.batching.size
        source = replace(self.source, batch=batch)
        offsets = Offsets([str(name) for name in source.names])
        own = RankSlice(ranks.rank, ranks.world_size, uneven)
        planner = plan(offsets, batch, self.seed, own)
        partitions = Partitions(source, ahead=on_ray)
        pipeline = make_pipeline(self.stages, self.seed, self.batching)
        no_files = get_format("index_only")  # partitions give the records: no shard is read
        work = UnboundedWork(no_files, Storage(), pipeline, partitions=partitions)
        work = work.with_options(skip, choose_backend(image_backend))
        identity = {"order": planner.identity, "image_backend": work.pipeline.image_backend}
        codec = StateCodec(identity, work.code_mark, planner.steps_in, offsets)
        stream = UnboundedStream(
            planner, work, flag_valid=skip, offsets=offsets, share=share(batch, own)
        )
        return stream, RankPlan(planner, codec, partial(_describe, stream), offsets.reached)


def _describe(stream: UnboundedStream, max_bytes: int) -> None:
    """Log which partitions the ranks read, how many records a step has, and the bytes in flight."""
    source, planner = stream.work.partitions.source, stream.planner
    _log.info(
        "%s partition(s) of %s, one record of each in turn, %s records a step; each of %s rank(s) "
        "reads all partitions and keeps its own rows; up to %s in flight",
        f"{len(source.names):,}",
        source.label,
        f"{planner.order.batch:,}",
        f"{planner.world_size:,}",
        format_bytes(max_bytes),
    )
