"""Combine the work on a mixture's sources: each source's work on its blocks, one schema for all.

A raw block names its source in its metadata, so that a decoder knows whose stages to run on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError, DataError
from rayingest.execute.work import BlockRows, Head, SourceWork, Span, Spans, read_shards
from rayingest.storage.files import Counters
from rayingest.transforms.code_mark import code_mark
from rayingest.transforms.open_block import OpenBlock
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.run_stages import Samples
from rayingest.transforms.schema import FieldType, Schema, merge_schemas
from rayingest.transforms.stages import Stage

_SOURCE = b"source"


@dataclass(frozen=True)
class MixedWork:
    """The work on several sources, by name. All of them collate samples in the same way."""

    sources: Mapping[str, SourceWork]

    @property
    def pipeline(self) -> Pipeline:
        return self._works[0].pipeline

    @property
    def skip(self) -> bool:
        return self._works[0].skip

    @property
    def stages(self) -> Sequence[Stage]:
        return [stage for work in self._works for stage in work.stages]

    @property
    def code_mark(self) -> str:
        return code_mark([work.code_mark for work in self._works])

    @property
    def spec_bytes(self) -> int:
        sizes = [work.spec_bytes for work in self._works]
        return max(sizes) if all(sizes) else 0

    @property
    def counters(self) -> Counters:
        return sum((work.counters for work in self._works), Counters())

    @property
    def storage_options(self) -> Mapping[str, Any]:
        return {name: work.storage_options for name, work in self.sources.items()}

    def with_options(self, skip: bool, image_backend: str) -> Self:
        sources = {
            name: work.with_options(skip, image_backend) for name, work in self.sources.items()
        }
        return replace(self, sources=sources)

    def learn_schema(self, heads: Sequence[Head]) -> dict[str, FieldType]:
        schemas = {}
        for number, (name, work) in enumerate(self.sources.items()):
            own = [head for head in heads if head[0][0].source == number]
            try:
                schemas[name] = work.learn_schema(own)
            except ConfigError as error:
                raise ConfigError(f"source {name!r}: {error}") from error
        return merge_schemas(schemas)

    def with_schema(self, schema: Schema) -> Self:
        sources = {name: work.with_schema(schema) for name, work in self.sources.items()}
        return replace(self, sources=sources)

    def read(self, spans: Spans) -> list[pa.Table]:
        return read_shards(spans, self._read_shard)

    def _read_shard(self, span: Span) -> list[pa.Table]:
        tables = self._works[span.source].read_shard(span)
        number = str(span.source).encode()
        return [
            table.replace_schema_metadata({**(table.schema.metadata or {}), _SOURCE: number})
            for table in tables
        ]

    def open(self, table: pa.Table) -> OpenBlock:
        return self._works[_source_of(table)].open(table)

    def run(
        self, blocks: Sequence[OpenBlock], rows: BlockRows, bad: dict[int, DataError] | None
    ) -> Samples:
        source = np.array([_source_of(block.table) for block in blocks])[rows.table_of]
        by_place: dict[int, Any] = {}
        samples = Samples()
        for number in np.unique(source).tolist():
            places = np.flatnonzero(source == number)
            errors: dict[int, DataError] | None = None if bad is None else {}
            samples = self._works[number].run(blocks, rows.select(places), errors)
            if bad is not None and errors:
                bad.update((int(places[place]), error) for place, error in errors.items())
                places = np.delete(places, list(errors))
            by_place.update(zip(places.tolist(), samples, strict=True))
        if len(by_place) == len(samples):
            return samples  # all of one source: keep the arrays that its decoders wrote into
        return Samples(by_place[place] for place in sorted(by_place))

    def notes(self, tables: Sequence[pa.Table]) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        for work in self._works:
            work.close()

    @property
    def _works(self) -> list[SourceWork]:
        return list(self.sources.values())


def _source_of(table: pa.Table) -> int:
    return int(table.schema.metadata[_SOURCE])
