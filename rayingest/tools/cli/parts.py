"""Read the samples that go into a shard, and resize or decode their images.

Owns what `pack` does to samples, and which fields keep their type. Knows nothing of files.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from rayingest.errors import ConfigError, DataError
from rayingest.execute.work import BlockRows, Span, Work
from rayingest.formats.columns import ENCODING
from rayingest.formats.protocol import NUMBER
from rayingest.options import describe_allowed
from rayingest.transforms.decoders import encoding_value
from rayingest.transforms.images import Decode, Resize
from rayingest.transforms.images.pixels import EXTENSIONS, open_image
from rayingest.transforms.raw_block import RawBlock

SUFFIXES = {"webdataset": ".tar", "parquet": ".parquet"}
"""By the format of shards, the end of their names."""
_LOSSLESS = ("png",)
_QUALITY = 95


Sample = Mapping[str, Any]


@dataclass(frozen=True)
class SampleBlock:
    """Samples to write, and `columns`: the fields that stay as they are in the data.

    `raw` is the samples' block, `rows` their rows in it, `ordinals` their ordinals in the data;
    int64 arrays. `encodings` names the decoder of each field of bytes.
    """

    samples: list[Sample]
    raw: RawBlock
    rows: np.ndarray
    ordinals: np.ndarray
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    encodings: Mapping[str, str] = field(default_factory=dict)

    def error(self, place: int, reason: str) -> DataError:
        """Return a DataError that names the sample at `place`."""
        return DataError(
            reason, **self.raw.where(int(self.rows[place])), sample=int(self.ordinals[place])
        )


@dataclass(frozen=True)
class Layout:
    """The shards to write.

    `resize`: pixels of the shorter side of larger images; `decode`: write images as arrays.
    """

    to: str
    shard_bytes: int
    resize: int | None = None
    decode: bool = False

    def __post_init__(self) -> None:
        if self.to not in SUFFIXES:
            raise ConfigError(f"--to {self.to}: {describe_allowed(self.to, SUFFIXES)}")


@dataclass(frozen=True)
class Part:
    """One block of the data, the ordinal of its first sample, and its rows to take; None: all."""

    span: Span
    first: int
    some: np.ndarray | None = None

    @property
    def rows(self) -> np.ndarray:
        return np.arange(self.span.blocks[0][2]) if self.some is None else self.some

    @property
    def ordinals(self) -> np.ndarray:
        return self.first + self.rows


def block_of(work: Work, part: Part, layout: Layout) -> SampleBlock:
    """Read the samples of a part: as the stages return them or, without stages, as stored.

    Without stages, images are resized and decoded as `layout` says.
    """
    tables = work.read([part.span])
    block = work.open(tables[0])
    raw = block.rows
    where = raw, part.rows, part.ordinals
    if work.pipeline.stages:
        samples, bad = BlockRows(0, np.zeros_like(part.rows), part.rows, part.ordinals).samples(
            work, [block]
        )
        if bad:
            raise bad[min(bad)]
        return SampleBlock(list(samples), *where)
    for row in part.rows[np.isin(part.rows, list(raw.faults))].tolist():
        raise DataError(raw.faults[row], **raw.where(row), sample=part.first + row)
    columns, encodings = {}, {}
    renamed = {name: _file_name(name, tables[0].schema.field(name)) for name in raw.names}
    if layout.to == "parquet":
        columns = {
            name: _rows_of(raw, name, part)
            for name in raw.names
            if _keeps_type(raw, name, renamed[name], layout)
        }
        encodings = {
            name: ends for name in raw.names if (ends := _encoding(tables[0].schema.field(name)))
        }
    written: list[Sample] = []
    for row, ordinal in zip(part.rows.tolist(), part.ordinals.tolist(), strict=True):
        try:
            names = [name for name in raw.names if name not in columns]
            fields = (
                raw.document(row)
                if raw.has_documents
                else {name: raw.value(name, row) for name in names}
            )
            written.append(
                {
                    name if name in encodings else k: v
                    for name, value in fields.items()
                    for k, v in _image(renamed.get(name, name), value, layout)
                }
            )
        except DataError as error:
            raise DataError(error.reason, **raw.where(row), sample=ordinal) from error
    return SampleBlock(written, *where, columns, encodings)


def _keeps_type(raw: RawBlock, name: str, file_name: str, layout: Layout) -> bool:
    """Return whether a column needs no change, so that it keeps its type."""
    if (
        raw.has_documents
        or name == NUMBER
        or encoding_value(_encoding(raw.table.schema.field(name))) is not None
    ):
        return False
    return not (
        (layout.resize or layout.decode) and file_name.rpartition(".")[2].lower() in EXTENSIONS
    )


def _rows_of(raw: RawBlock, name: str, part: Part) -> pa.Array:
    column = raw.table.column(name)
    column = column if part.some is None else column.take(pa.array(part.some))
    return column.combine_chunks()


def _encoding(field: pa.Field) -> str:
    return (field.metadata or {}).get(ENCODING, b"").decode()


def _file_name(name: str, field: pa.Field) -> str:
    """Return the field's name with the extension of its encoding."""
    encoding = _encoding(field)
    ends = (
        encoding in (*EXTENSIONS, "json", "txt")
        and not name.lower().endswith(f".{encoding}")
        and name != encoding
    )
    return f"{name}.{encoding}" if ends else name


def _image(name: str, value: Any, layout: Layout) -> Iterator[tuple[str, Any]]:
    """Yield the field; an image is resized or decoded if `layout` says so."""
    stem, dot, extension = name.rpartition(".")
    if (
        not isinstance(value, bytes)
        or extension.lower() not in EXTENSIONS
        or not (layout.resize or layout.decode)
    ):
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
