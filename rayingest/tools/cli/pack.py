"""`pack`: any data written anew as WebDataset or Parquet shards of one size, in parallel on Ray Data.

Owns which samples go into which shard, a function of the data and the size alone; that a shard is written aside, read
back and counted before it has its name; and that a shard that is there is not made again. `parts` says what is done to
samples, `shard_files` what they are in shards.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rayingest.api.dataset import Dataset
from rayingest.build.scan import ScanResult
from rayingest.errors import ConfigError, DataError, IngestError
from rayingest.execute.stream import spans_of
from rayingest.formats import get_format
from rayingest.formats.indexing import index_shard
from rayingest.formats.protocol import Shard
from rayingest.plan.order.subset import view_mark
from rayingest.storage.files import Storage
from rayingest.storage.local_files import local_path
from rayingest.storage.redact import redact
from rayingest.storage.urls import may_include
from rayingest.tools.cli.parquet_columns import schema_of
from rayingest.tools.cli.parts import SUFFIXES, Layout, Part, block_of
from rayingest.tools.cli.shard_files import write_parquet, write_tar
from rayingest.tools.cli.source import work_of

RECORD = "packing.json"


@dataclass(frozen=True)
class NewShard:
    """One shard to be made, at this path, of these parts."""

    path: str
    parts: tuple[Part, ...]

    @property
    def samples(self) -> int:
        return sum(len(part.rows) for part in self.parts)


@dataclass(frozen=True)
class PackedShard:
    """A shard that is there; `made` just now, or before. Or the `error` for which it is not."""

    samples: int
    made: bool = True
    error: IngestError | None = None


class Packing:
    """The shards to be made in a folder. ConfigError where there are others in it, or those of another packing."""

    def __init__(self, dataset: Dataset, known: ScanResult, url: str, layout: Layout) -> None:
        path = local_path(url)
        if path is None:
            raise ConfigError(
                f"{redact(url)}: shards are written to folders of the file system; copy them from there"
            )
        folder = Path(path)
        for name in (RECORD, f"part-000000{SUFFIXES[layout.to]}"):
            if may_include(dataset.urls, str(folder / name)):
                raise ConfigError(
                    f"{folder} lies in the data, which would hold its own shards; take another folder"
                )
        self.shards = _shards(known, folder, layout)
        self._layout, self._work = layout, work_of(dataset)
        self._schema = None
        if layout.to == "parquet":
            self._schema = schema_of(block_of(self._work, _first_block(self.shards), layout))
        _write_record(
            folder,
            {
                "source": known.manifest.fingerprint,
                "taken": view_mark(known.limits),
                "code": self._work.pipeline.code_mark,
                **asdict(layout),
                "samples": [shard.samples for shard in self.shards],
            },
        )

    def run(self) -> Iterator[PackedShard]:
        """Have all made, those that are not there; yields each as it is done. Raises what is wrong with the first."""
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False  # there is one of ours
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
        except IngestError as error:  # Ray Data would tell it with its own around it
            return {"done": PackedShard(0, error=error)}

    def pack(self, shard: NewShard) -> PackedShard:
        """Make one shard, unless it is there."""
        path = Path(shard.path)
        if self._is_there(path, shard.samples):
            return PackedShard(shard.samples, made=False)
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.writing")
        try:
            blocks = (block_of(self._work, part, self._layout) for part in shard.parts)
            if self._schema is None:
                write_tar(aside, blocks)
            else:
                write_parquet(aside, blocks, self._schema)
            found = self._count(aside)
            if found != shard.samples:
                raise DataError(
                    f"{found} samples were written for {shard.samples}", shard=str(path)
                )
            with aside.open("rb") as file:
                os.fsync(file.fileno())  # else a power failure might leave a name without its bytes
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        return PackedShard(shard.samples)

    def _is_there(self, path: Path, samples: int) -> bool:
        try:
            return path.exists() and self._count(path) == samples
        except DataError:  # damaged: to be made again
            return False

    def _count(self, path: Path) -> int:
        shard = Shard(Storage(), str(path), path.stat().st_size)
        blocks = index_shard(get_format(self._layout.to), shard, 2 << 20)
        return int(blocks.samples.sum())


def _shards(known: ScanResult, folder: Path, layout: Layout) -> list[NewShard]:
    """Shards of about so many bytes: a block's samples count as equally large, and may lie in two of them."""
    manifest, view = known.manifest, known.view
    numbers = np.flatnonzero(view.samples)
    counts = view.samples[numbers]
    begins = np.cumsum(counts) - counts
    made: list[NewShard] = []
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
                else view.row(block, np.arange(row, row + count))
            )
            parts.append(
                Part(spans_of(manifest, [int(block)])[0], int(manifest.first_ordinal[block]), some)
            )
        made.append(
            NewShard(str(folder / f"part-{len(made):06d}{SUFFIXES[layout.to]}"), tuple(parts))
        )
    return made


def _first_block(shards: list[NewShard]) -> Part:
    """What is taken of it, in however many shards it lies."""
    first = shards[0].parts[0]
    rows = [part.rows for shard in shards for part in shard.parts if part.first == first.first]
    return replace(first, some=np.concatenate(rows))


def _borders(each: np.ndarray, counts: np.ndarray, layout: Layout) -> list[int]:
    """Before which samples shards begin, and the last ends, given bytes of a sample and samples, by block."""
    ends = np.cumsum(each * counts)
    borders = np.arange(layout.shard_bytes, ends[-1], layout.shard_bytes)
    block = np.searchsorted(ends, borders, "right")
    row = np.ceil((borders - (ends - each * counts)[block]) / each[block])
    first = (np.cumsum(counts) - counts)[block] + row.astype(np.int64)
    return np.unique([0, *first.tolist(), counts.sum()]).tolist()  # type: ignore[no-any-return]


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    """Write down what is made here, or see that it is what was begun."""
    kept, text = folder / RECORD, json.dumps(record)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made a folder: {error.strerror}; take another"
        ) from error
    if kept.exists():
        before = json.loads(kept.read_text())
        differs = [name for name in record if before.get(name) != record[name]]
        if differs:
            raise ConfigError(
                f"{folder} holds shards of another packing: {differs[0]} differs; take another folder"
            )
        for left in folder.glob(".*.writing"):
            left.unlink(missing_ok=True)
        return
    if there := next(folder.iterdir(), None):
        raise ConfigError(f"{folder} is not empty, {there.name!r} is in it; take another folder")
    aside = kept.with_suffix(".writing")
    aside.write_text(text)
    aside.replace(kept)
