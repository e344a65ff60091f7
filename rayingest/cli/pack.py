"""`pack`: any data written anew as WebDataset or Parquet shards of one size, in parallel on Ray Data.

Owns which samples go into which shard, a function of the data and the size alone; that a shard is written aside, read
back and counted before it has its name; and that a shard that is there is not made again. `shard_files` says what
samples are in them.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rayingest.cli.shard_files import SUFFIXES, Sample, schema_of, write_parquet, write_tar
from rayingest.cli.source import work_of
from rayingest.dataset import Dataset
from rayingest.errors import ConfigError, DataError, IngestError
from rayingest.formats.columns import ENCODING
from rayingest.formats.indexing import index_shard
from rayingest.options import known_names
from rayingest.plan.view import view_mark
from rayingest.storage.files import Storage
from rayingest.storage.local_files import local_path
from rayingest.storage.redact import redact
from rayingest.storage.urls import takes
from rayingest.streams import spans_of
from rayingest.surveying import Surveyed
from rayingest.transforms.decoders import IMAGES
from rayingest.transforms.images import Decode, Resize
from rayingest.transforms.pixels import open_image
from rayingest.transforms.rows import Rows as RawRows
from rayingest.work import Rows, Span, Work

RECORD = "packing.json"
_LOSSLESS = ("png",)
_QUALITY = 95


@dataclass(frozen=True)
class Layout:
    """What shards are to be. `resize`: pixels of the shorter side of larger images; `decode`: images become arrays."""

    to: str
    shard_bytes: int
    resize: int | None = None
    decode: bool = False

    def __post_init__(self) -> None:
        if self.to not in SUFFIXES:
            raise ConfigError(f"--to {self.to}: {known_names(self.to, SUFFIXES)}")


@dataclass(frozen=True)
class Part:
    """One block of the data, the ordinal of its first sample, and the rows to take of it: None for all."""

    span: Span
    first: int
    some: np.ndarray | None = None

    @property
    def rows(self) -> np.ndarray:
        return np.arange(self.span.blocks[0][2]) if self.some is None else self.some

    @property
    def ordinals(self) -> np.ndarray:
        return self.first + self.rows


@dataclass(frozen=True)
class NewShard:
    """One shard to be made, at this path, of these parts."""

    path: str
    parts: tuple[Part, ...]

    @property
    def samples(self) -> int:
        return sum(len(part.rows) for part in self.parts)


@dataclass(frozen=True)
class Done:
    """A shard that is there; `made` just now, or before. Or the `error` for which it is not."""

    samples: int
    made: bool = True
    error: IngestError | None = None


class Packing:
    """The shards to be made in a folder. ConfigError where there are others in it, or those of another packing."""

    def __init__(self, dataset: Dataset, known: Surveyed, url: str, layout: Layout) -> None:
        path = local_path(url)
        if path is None:
            raise ConfigError(f"{redact(url)}: shards are written to folders of the file system; copy them from there")
        folder = Path(path)
        for name in (RECORD, f"part-000000{SUFFIXES[layout.to]}"):
            if takes(dataset.urls, str(folder / name)):
                raise ConfigError(f"{folder} lies in the data, which would hold its own shards; take another folder")
        self.shards = _shards(known, folder, layout)
        self._layout, self._work = layout, work_of(dataset)
        self._schema = None
        if layout.to == "parquet":
            self._schema = schema_of(_samples(self._work, self.shards[0].parts[0], layout))
        _keep_record(
            folder,
            {
                "source": known.manifest.fingerprint,
                "taken": view_mark(known.limits),
                "code": self._work.pipeline.code_mark,
                **asdict(layout),
                "samples": [shard.samples for shard in self.shards],
            },
        )

    def run(self) -> Iterator[Done]:
        """Have all made, those that are not there; yields each as it is done. Raises what is wrong with the first."""
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False  # there is one of ours
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        rows = ray.data.from_items([{"shard": shard} for shard in self.shards], override_num_blocks=len(self.shards))
        for row in rows.map(self._pack).iter_rows():
            done: Done = row["done"]
            if done.error is not None:
                raise done.error
            yield done

    def _pack(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"done": self.pack(row["shard"])}
        except IngestError as error:  # Ray Data would tell it with its own around it
            return {"done": Done(0, error=error)}

    def pack(self, shard: NewShard) -> Done:
        """Make one shard, unless it is there."""
        path = Path(shard.path)
        if self._is_there(path, shard.samples):
            return Done(shard.samples, made=False)
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.writing")
        try:
            blocks = (_samples(self._work, part, self._layout) for part in shard.parts)
            if self._schema is None:
                write_tar(aside, blocks, (part.ordinals for part in shard.parts))
            else:
                write_parquet(aside, blocks, self._schema)
            found = self._count(aside)
            if found != shard.samples:
                raise DataError(f"{found} samples were written for {shard.samples}", shard=str(path))
            with aside.open("rb") as file:
                os.fsync(file.fileno())  # else a power failure might leave a name without its bytes
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        return Done(shard.samples)

    def _is_there(self, path: Path, samples: int) -> bool:
        try:
            return path.exists() and self._count(path) == samples
        except DataError:  # damaged: to be made again
            return False

    def _count(self, path: Path) -> int:
        blocks = index_shard(self._layout.to, Storage(), str(path), path.stat().st_size, 2 << 20, True, {})
        return int(blocks.samples.sum())


def _shards(known: Surveyed, folder: Path, layout: Layout) -> list[NewShard]:
    """Shards of about so many bytes: a block's samples count as equally large, and may lie in two of them."""
    manifest, view = known.manifest, known.view
    numbers = np.flatnonzero(view.samples)
    counts = view.samples[numbers]
    begins = np.cumsum(counts) - counts
    made: list[NewShard] = []
    for first, last in itertools.pairwise(_cuts(manifest.nbytes[numbers] / manifest.samples[numbers], counts, layout)):
        parts = []
        for at in range(np.searchsorted(begins, first, "right") - 1, np.searchsorted(begins, last)):
            block, row = numbers[at], max(first - int(begins[at]), 0)
            count = min(last - int(begins[at]), int(counts[at])) - row
            some = None if count == manifest.samples[block] else view.row(block, np.arange(row, row + count))
            parts.append(Part(spans_of(manifest, [int(block)])[0], int(manifest.first_ordinal[block]), some))
        made.append(NewShard(str(folder / f"part-{len(made):06d}{SUFFIXES[layout.to]}"), tuple(parts)))
    return made


def _cuts(each: np.ndarray, counts: np.ndarray, layout: Layout) -> list[int]:
    """Before which samples shards begin, and the last ends, given bytes of a sample and samples, by block."""
    ends = np.cumsum(each * counts)
    borders = np.arange(layout.shard_bytes, ends[-1], layout.shard_bytes)
    block = np.searchsorted(ends, borders, "right")
    row = np.ceil((borders - (ends - each * counts)[block]) / each[block])
    first = (np.cumsum(counts) - counts)[block] + row.astype(np.int64)
    return np.unique([0, *first.tolist(), counts.sum()]).tolist()  # type: ignore[no-any-return]


def _keep_record(folder: Path, record: dict[str, Any]) -> None:
    """Write down what is made here, or see that it is what was begun."""
    kept, text = folder / RECORD, json.dumps(record)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made a folder: {error.strerror}; take another") from error
    if kept.exists():
        before = json.loads(kept.read_text())
        differs = [name for name in record if before.get(name) != record[name]]
        if differs:
            raise ConfigError(f"{folder} holds shards of another packing: {differs[0]} differs; take another folder")
        for left in folder.glob(".*.writing"):
            left.unlink(missing_ok=True)
        return
    if there := next(folder.iterdir(), None):
        raise ConfigError(f"{folder} is not empty, {there.name!r} is in it; take another folder")
    aside = kept.with_suffix(".writing")
    aside.write_text(text)
    aside.replace(kept)


def _samples(work: Work, part: Part, layout: Layout) -> list[Sample]:
    """The samples of a part: as stages made them, or where there are none as they lie there, images done to."""
    tables = work.read([part.span])
    if work.pipeline.stages:
        samples, bad = Rows(0, np.zeros_like(part.rows), part.rows, part.ordinals).samples(work, tables)
        if bad:
            raise bad[min(bad)]
        return list(samples)
    raw = RawRows(tables[0])
    renamed = {name: _file_name(name, tables[0].schema.field(name)) for name in raw.names}
    made: list[Sample] = []
    for row, ordinal in zip(part.rows.tolist(), part.ordinals.tolist(), strict=True):
        try:
            fields = raw.document(row) if raw.has_documents else {name: raw.value(name, row) for name in raw.names}
            made.append(
                {k: v for name, value in fields.items() for k, v in _image(renamed.get(name, name), value, layout)}
            )
        except DataError as error:
            raise DataError(error.reason, **raw.where(row), sample=ordinal) from error
    return made


def _file_name(name: str, field: Any) -> str:
    """The field's name, with the extension that says what its bytes are."""
    encoding = (field.metadata or {}).get(ENCODING, b"").decode()
    ends = encoding in (*IMAGES, "json", "txt") and not name.lower().endswith(f".{encoding}") and name != encoding
    return f"{name}.{encoding}" if ends else name


def _image(name: str, value: Any, layout: Layout) -> Iterator[tuple[str, Any]]:
    """The field, made smaller or decoded where it is an image and that is asked for."""
    stem, dot, extension = name.rpartition(".")
    if not isinstance(value, bytes) or extension.lower() not in IMAGES or not (layout.resize or layout.decode):
        yield name, value
        return
    large = layout.resize is not None and min(open_image(value).size) > layout.resize
    if not (large or layout.decode):
        yield name, value
        return
    pixels = Resize(layout.resize)(value) if large and layout.resize else Decode()(value)
    if layout.decode:
        yield stem or name, pixels
        return
    kind = extension.lower() if extension.lower() in _LOSSLESS else "jpg"
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "png" if kind in _LOSSLESS else "jpeg", quality=_QUALITY)
    yield f"{stem}{dot}{kind}", target.getvalue()
