"""A data set's samples as a Ray Dataset: its blocks read and decoded by tasks of Ray Data's.

Owns what such a task is given. The samples are those that a loader would give; their order is Ray Data's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rayingest.build.description import Description
from rayingest.errors import ConfigError
from rayingest.options.types import Count
from rayingest.options.checked import checked
from rayingest.execute.stream import heads_of, spans_of
from rayingest.build.scan import scan
from rayingest.execute.work import BlockRows, Spans, Work

if TYPE_CHECKING:
    import ray.data

_PARTS_A_TASK = 8
_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class _Part:
    """A block, and which of its rows are in the data, with their ordinals."""

    spans: Spans
    rows: np.ndarray
    ordinals: np.ndarray


@checked()
def make_ray_dataset(dataset: Description, /, *, epoch: Count = 0) -> ray.data.Dataset:
    """The samples as a Ray Dataset, decoded and mapped by its tasks: a row each, with `__index__`, its ordinal.

    Each sample of the data (after `take`, `where` and the like) is there once; `.shuffle` and `.batch` are the business
    of loaders. Fields have the types that they have in batches, or are null where that is what there is. Random numbers
    are those of pass `epoch` through the data, so the rows are the same in every run; their order is Ray Data's. A bad
    sample is an error.
    """
    if dataset.sampling is not None:
        raise ConfigError("to_ray: which samples there are is the sampler's business; leave it out of from_torch")
    unlearnt = dataset.source_work

    import ray.data

    from rayingest.execute.cluster.connection import connect

    connect(60.0)
    known = scan(dataset, dataset.index_cache(), 0, on_ray=True)
    manifest, view = known.manifest, known.view
    learnt = unlearnt.with_schema(heads_of(view)).pipeline
    schema = {name: replace(field, nullable=True) for name, field in (learnt.schema or {}).items()}
    work = replace(unlearnt, pipeline=replace(learnt, schema=schema))
    parts = []
    for block in np.flatnonzero(view.samples):
        rows, spans = view.row(np.asarray(block), np.arange(view.samples[block])), spans_of(manifest, [int(block)])
        for some in _pieces(rows, int(manifest.nbytes[block])):
            parts.append({"part": _Part(spans, some, manifest.first_ordinal[block] + some)})
    tasks = -(-len(parts) // _PARTS_A_TASK)
    made = ray.data.from_items(parts, override_num_blocks=tasks)
    return made.flat_map(_samples, fn_kwargs={"shared": ray.put(work), "epoch": epoch})


def _pieces(rows: np.ndarray, nbytes: int) -> list[np.ndarray]:
    """The rows of a block together, which is read for them; of one that is nothing to read, as of indices, a few."""
    return [rows] if nbytes >= len(rows) else np.array_split(rows, -(-len(rows) // _ROWS_AT_ONCE))


def _samples(row: dict[str, Any], shared: Any, epoch: int) -> Iterator[dict[str, Any]]:
    """The samples of one part."""
    part: _Part = row["part"]
    work = _work(shared)
    chosen = BlockRows(epoch, np.zeros_like(part.rows), part.rows, part.ordinals)
    samples, _ = chosen.samples(work, [work.open(table) for table in work.read(part.spans)])
    for sample, ordinal in zip(samples, part.ordinals.tolist(), strict=True):
        yield {**sample, "__index__": ordinal}


@lru_cache(maxsize=1)
def _work(shared: Any) -> Work:
    """What is done, unpacked once in a process: a class among the stages is set up once."""
    import ray

    work: Work = ray.get(shared)
    return work
