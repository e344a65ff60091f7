"""Turn a description into a Ray Dataset: tasks of Ray Data read and decode its blocks.

Owns what each task gets. The samples are those that a loader yields; Ray Data decides their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rayingest.build.compatibility import Feature, check_complete
from rayingest.build.one_source import OneSource
from rayingest.execute.stream import heads_of, spans_of
from rayingest.execute.work import BlockRows, Spans, Work

if TYPE_CHECKING:
    import ray.data

_PARTS_PER_TASK = 8
_ROWS_PER_PIECE = 64
_CONNECT_SECONDS = 60.0


@dataclass(frozen=True)
class _Part:
    """A block, and the rows of it that are in the data, with their ordinals."""

    spans: Spans
    rows: np.ndarray
    ordinals: np.ndarray


def build_ray_dataset(description: OneSource, epoch: int) -> ray.data.Dataset:
    """Build a Ray Dataset with one row for each sample; see `Dataset.to_ray`."""
    check_complete([*description.features, Feature.TO_RAY])

    import ray.data

    from rayingest.execute.cluster.connection import connect

    connect(_CONNECT_SECONDS)
    result = description.scan(0, on_ray=True)
    manifest, subset = result.manifest, result.subset
    # The schema is learned from a copy: the user's code may open files, which cannot travel.
    work = ray.put(description.work_on(manifest))
    learned = ray.get(work).learn_schema(heads_of(subset))
    schema = ray.put({name: replace(field, nullable=True) for name, field in learned.items()})
    parts = []
    for block in np.flatnonzero(subset.samples):
        rows = subset.row(np.asarray(block), np.arange(subset.samples[block]))
        spans = spans_of(manifest, [int(block)])
        for piece in _split_rows(rows, int(manifest.nbytes[block])):
            parts.append({"part": _Part(spans, piece, manifest.first_ordinal[block] + piece)})
    tasks = -(-len(parts) // _PARTS_PER_TASK)
    items = ray.data.from_items(parts, override_num_blocks=tasks)
    return items.flat_map(_read_samples, fn_kwargs={"work": work, "schema": schema, "epoch": epoch})


def _split_rows(rows: np.ndarray, nbytes: int) -> list[np.ndarray]:
    """Return the rows of a block in one piece, since one read serves all of them.

    A block without bytes, of a source that only has indices, is cut into pieces of a few rows.
    """
    return [rows] if nbytes >= len(rows) else np.array_split(rows, -(-len(rows) // _ROWS_PER_PIECE))


def _read_samples(
    row: dict[str, Any], work: Any, schema: Any, epoch: int
) -> Iterator[dict[str, Any]]:
    """Yield the samples of one part."""
    part: _Part = row["part"]
    work = _get_work(work, schema)
    block_rows = BlockRows(epoch, np.zeros_like(part.rows), part.rows, part.ordinals)
    samples, _ = block_rows.samples(work, [work.open(table) for table in work.read(part.spans)])
    for sample, ordinal in zip(samples, part.ordinals.tolist(), strict=True):
        yield {**sample, "__index__": ordinal}


@lru_cache(maxsize=1)
def _get_work(work: Any, schema: Any) -> Work:
    """Return the work, unpacked once in a process: a class among the stages is set up once."""
    import ray

    unpacked: Work = ray.get(work)
    return unpacked.with_schema(ray.get(schema))
