"""Rewrite any data as WebDataset or Parquet shards of equal size, in parallel on Ray Data.

Owns which samples go into which shard: a function of the data and the size alone. A shard is
written under a temporary name, read back and counted before it gets its own name; a shard that
exists is not written again. `parts` transforms the samples, `shard_files` writes them.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from rayingest.api.config import Config
from rayingest.build.compatibility import Feature
from rayingest.build.one_source import OneSource, ScanResult
from rayingest.errors import ConfigError, DataError, IngestError
from rayingest.execute.stream import spans_of
from rayingest.formats import get_format
from rayingest.formats.protocol import Shard, index_shard
from rayingest.plan.order.subset import subset_mark
from rayingest.storage.files import Storage
from rayingest.storage.listing import may_include
from rayingest.storage.redact import redact
from rayingest.tools.cli.parquet_columns import schema_of
from rayingest.tools.cli.parts import SUFFIXES, Layout, Part, block_of
from rayingest.tools.cli.shard_files import find_bare, write_parquet, write_tar
from rayingest.tools.cli.source import work_of
from rayingest.tools.cli.target import Target

RECORD = "packing.json"
_CONNECT_SECONDS = 60.0


@dataclass(frozen=True)
class NewShard:
    """A shard to write under `name` from `parts`."""

    name: str
    parts: tuple[Part, ...]

    @property
    def samples(self) -> int:
        return sum(len(part.rows) for part in self.parts)


@dataclass(frozen=True)
class PackedShard:
    """The result for one shard: it is new, or existed before; or the `error` that prevented it."""

    samples: int
    is_new: bool = True
    error: IngestError | None = None


class Packing:
    """The shards to write into a folder.

    Raises ConfigError if the folder holds other files, or shards of another packing.
    """

    def __init__(self, dataset: OneSource, scan: ScanResult, url: str, layout: Layout) -> None:
        target = self._target = Target(url)
        shown = redact(url)
        for name in (RECORD, f"part-000000{SUFFIXES[layout.to]}"):
            if target.folder is not None and may_include(dataset.source.urls, target.name(name)):
                raise ConfigError(f"{shown} is part of the data itself; choose another folder")
        self.shards = _shards(scan, layout)
        self._layout, self._work = layout, work_of(dataset, scan.manifest)
        self._schema, self._bare = None, frozenset[str]()
        first = block_of(self._work, _first_block(self.shards), layout)
        if layout.to == "parquet":
            self._schema = schema_of(first)
        elif dataset.stages or dataset.source.format_name != "webdataset":
            self._bare = find_bare(first)  # the members of a tar keep their names
        _write_record(
            target,
            {
                "source": scan.manifest.fingerprint,
                "taken": subset_mark(scan.limits),
                "code": self._work.pipeline.code_mark,
                **asdict(layout),
                "bare": sorted(self._bare),
                "samples": [shard.samples for shard in self.shards],
            },
        )

    def run(self) -> Iterator[PackedShard]:
        """Write the missing shards; yield each result as it arrives. Raises the first error."""
        import ray.data

        from rayingest.execute.cluster.connection import connect

        connect(_CONNECT_SECONDS)  # Ray Data would wait for ever where it lacks Ray's token
        ray.data.DataContext.get_current().enable_progress_bars = False  # this command has its own
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        rows = ray.data.from_items(
            [{"shard": shard} for shard in self.shards], override_num_blocks=len(self.shards)
        )
        for row in rows.map(self._pack).iter_rows():
            done: PackedShard = row["done"]
            if done.error is not None:
                raise done.error
            yield done

    def _pack(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"done": self.pack(row["shard"])}
        except IngestError as error:  # Ray Data would wrap it in an error of its own
            return {"done": PackedShard(0, error=error)}

    def pack(self, shard: NewShard) -> PackedShard:
        """Write one shard, unless it exists."""
        name, target = shard.name, self._target
        if self._exists(name, shard.samples):
            return PackedShard(shard.samples, is_new=False)
        with target.aside(name) as aside:
            blocks = (block_of(self._work, part, self._layout) for part in shard.parts)
            if self._schema is None:
                write_tar(aside, blocks, self._bare)
            else:
                write_parquet(aside, blocks, self._schema)
            found = self._count(str(aside), aside.stat().st_size)
            if found != shard.samples:
                raise DataError(
                    f"{found} samples were written, {shard.samples} were expected",
                    shard=redact(target.name(name)),
                )
            with aside.open("rb") as file:
                os.fsync(file.fileno())  # a power failure must not leave a name without bytes
            target.publish(aside, name)
        return PackedShard(shard.samples)

    def _exists(self, name: str, samples: int) -> bool:
        size = self._target.size(name)
        try:
            return size is not None and self._count(self._target.name(name), size) == samples
        except DataError:  # damaged: write it again
            return False

    def _count(self, url: str, size: int) -> int:
        shard = Shard(Storage(), url, size)
        blocks = index_shard(get_format(self._layout.to), shard, 2 << 20)
        return int(blocks.samples.sum())


def sections_without_use(dataset: OneSource, config: Config | None) -> list[str]:
    """Return the sections of a configuration that say nothing about the shards.

    Raises ConfigError for a section that would make other samples than those of the data.
    """
    features = set(dataset.features)
    for feature in (Feature.PACK, Feature.WEIGHTED, Feature.EPOCH):
        if feature in features:
            raise ConfigError(
                f"each sample is written once and whole: the section {feature.value!r} cannot be "
                "used by `rayingest pack`; leave it out here, and keep it in the configuration "
                "that trains on the shards"
            )
    order = (Feature.LENGTH, Feature.SHUFFLE, Feature.BATCH)
    unused = [feature.value for feature in order if feature in features]
    if config is not None:
        unused += ["loader"] * bool(config.loader_options()) + ["job"] * bool(config.job)
    return unused


def _shards(scan: ScanResult, layout: Layout) -> list[NewShard]:
    """Cut the samples into shards of about `layout.shard_bytes`.

    All samples of a block count as equally large; a block may be divided between two shards.
    """
    manifest, subset = scan.manifest, scan.subset
    numbers = np.flatnonzero(subset.samples)
    counts = subset.samples[numbers]
    begins = np.cumsum(counts) - counts
    new: list[NewShard] = []
    for first, last in itertools.pairwise(
        _borders(manifest.nbytes[numbers] / manifest.samples[numbers], counts, layout)
    ):
        parts = []
        for at in range(np.searchsorted(begins, first, "right") - 1, np.searchsorted(begins, last)):
            block, row = numbers[at], max(first - int(begins[at]), 0)
            count = min(last - int(begins[at]), int(counts[at])) - row
            some = (
                None
                if count == manifest.samples[block]
                else subset.row(block, np.arange(row, row + count))
            )
            parts.append(
                Part(spans_of(manifest, [int(block)])[0], int(manifest.first_ordinal[block]), some)
            )
        new.append(NewShard(f"part-{len(new):06d}{SUFFIXES[layout.to]}", tuple(parts)))
    return new


def _first_block(shards: list[NewShard]) -> Part:
    """Return the first block with all its chosen rows, also if several shards share it."""
    first = shards[0].parts[0]
    rows = [part.rows for shard in shards for part in shard.parts if part.first == first.first]
    return replace(first, some=np.concatenate(rows))


def _borders(each: np.ndarray, counts: np.ndarray, layout: Layout) -> list[int]:
    """Return the first sample of each shard and the end of the last one, int list.

    `each` has a block's bytes per sample, `counts` its samples.
    """
    ends = np.cumsum(each * counts)
    borders = np.arange(layout.shard_bytes, ends[-1], layout.shard_bytes)
    block = np.searchsorted(ends, borders, "right")
    row = np.ceil((borders - (ends - each * counts)[block]) / each[block])
    first = (np.cumsum(counts) - counts)[block] + row.astype(np.int64)
    return np.unique([0, *first.tolist(), counts.sum()]).tolist()  # type: ignore[no-any-return]


def _write_record(target: Target, record: dict[str, Any]) -> None:
    """Write what this packing makes, or check that it equals what the folder's record says."""
    folder = redact(target.url)
    try:
        there = target.first_name()
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be created: {error.strerror}; choose another folder"
        ) from error
    kept = target.read(RECORD)
    if kept is not None:
        before = json.loads(kept)
        differs = [name for name in record if before.get(name) != record[name]]
        if differs:
            raise ConfigError(
                f"{folder} holds shards of another packing: {differs[0]} differs; "
                "choose another folder"
            )
        target.remove_left_over()
        return
    if there is not None:
        raise ConfigError(f"{folder} is not empty: it holds {there!r}; choose another folder")
    with target.aside(RECORD) as aside:
        aside.write_text(json.dumps(record))
        target.publish(aside, RECORD)
