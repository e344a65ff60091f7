"""Write samples to a shard: as tar members by extension, or as rows of Parquet.

Tars follow the WebDataset convention (https://github.com/webdataset/webdataset). Owns the name and
the bytes of each field, so that the package's readers return the same values; what a shard cannot
hold is an error that names the sample. `parquet_columns` decides the types of columns.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayingest.errors import ConfigError
from rayingest.formats.webdataset import field_of
from rayingest.tools.cli.parquet_columns import table_of
from rayingest.tools.cli.parts import Sample, SampleBlock
from rayingest.transforms.images.pixels import EXTENSIONS
from rayingest.transforms.raw_block import KEY

_NUMBERS = ("cls", "cls2", "index", "inx", "id")
_IMAGE_MARKS = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF8": "gif",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}
"""By the first bytes of an image, its extension."""
_FAMILIES = ("jpg", "txt", "cls", "npy", "json")
_TEXTS = ("txt", "text", "transcript")


def find_bare(block: SampleBlock) -> frozenset[str]:
    """Return the fields whose members need no name but their extension, given the first block.

    These are fields that alone have their extension: a loader for WebDataset then finds `.jpg` and
    `.cls`.
    """
    names: dict[str, str] = {}
    for sample in block.samples:
        for field, value in sample.items():
            if field != KEY and value is not None and field not in names:
                names[field] = _member(field, value)[0].lower()
    families = {field: _family(name.rpartition(".")[2]) for field, name in names.items()}
    count = Counter(families.values())
    return frozenset(
        field
        for field, family in families.items()
        if family in _FAMILIES and "." in names[field] and count[family] == 1
    )


def write_tar(
    path: Path, blocks: Iterable[SampleBlock], bare: frozenset[str] = frozenset()
) -> None:
    """Write a member for each field that is not None.

    A sample's key is its `__key__`, or its ordinal. An image becomes `.jpg` or another extension of
    its format, text `.txt`, an integer `.cls`, an array `.npy`, other bytes stay under the field's
    name, anything else becomes `.json`. The field's name comes before its extension, unless the
    field is in `bare` or its name is such an extension already. Raises DataError for a key that a
    reader would split elsewhere, and for a sample whose fields are all None.
    """
    last = ""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for block in blocks:
            for place, (sample, ordinal) in enumerate(
                zip(block.samples, block.ordinals.tolist(), strict=True)
            ):
                key = f"{ordinal:012d}" if sample.get(KEY) is None else str(sample[KEY])
                # A reader would join neighbours with the same key into one sample.
                last = f"{key}-{ordinal}" if key == last else key
                members = list(_members(sample, bare))
                if not members:
                    raise block.error(
                        place,
                        "all fields are null, so a tar would hold nothing of the sample; leave "
                        "such samples out with .where() or .filter(), or pack to Parquet",
                    )
                if field_of(f"{last}.txt") != (last, "txt"):
                    raise block.error(
                        place,
                        f"key {key!r} would change in a tar, where the first dot of the base name "
                        "ends a key that is not empty; change such keys with .map(), or rename the "
                        f"field {KEY} with .select(): the keys are then the samples' numbers",
                    )
                for name, data in members:
                    info = tarfile.TarInfo(f"{last}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def write_parquet(path: Path, blocks: Iterable[SampleBlock], schema: pa.Schema) -> None:
    """Write a row group for each block.

    Raises DataError for a field or a value that does not fit `schema`, the schema of all shards.
    """
    try:
        with pq.ParquetWriter(path, schema) as writer:
            for block in blocks:
                writer.write_table(table_of(block, schema))
    except pa.ArrowNotImplementedError as error:
        raise ConfigError(
            f"Parquet cannot hold these columns: {error}; change them with .map()"
        ) from error


def _members(sample: Sample, bare: frozenset[str]) -> Iterator[tuple[str, bytes]]:
    found: dict[str, str] = {}
    for field, value in sample.items():
        if field == KEY or value is None:
            continue
        name, data = _member(field, value)
        name = name.lower()
        if field in bare:
            name = name.rpartition(".")[2]
        if "/" in name or not name:
            raise ConfigError(
                f"field {field!r}: a tar member cannot have this extension; rename the field "
                "with .select()"
            )
        if found.setdefault(name, field) != field:
            raise ConfigError(
                f"fields {found[name]!r} and {field!r} would both be {name!r} in a tar; rename one "
                "with .select()"
            )
        yield name, data


def _member(name: str, value: Any) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        image = None if name.rpartition(".")[2].lower() in EXTENSIONS else _image_format(value)
        return (name if image is None else f"{name}.{image}"), value
    if isinstance(value, str):
        return _ending(name, _TEXTS), value.encode()
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return _ending(name, _NUMBERS), str(value).encode()
    if isinstance(value, np.ndarray):
        target = io.BytesIO()
        np.save(target, value, allow_pickle=False)
        return _ending(name, ("npy",)), target.getvalue()
    try:
        return _ending(name, ("json", "jsn")), json.dumps(
            value.item() if isinstance(value, np.generic) else value
        ).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"field {name!r} is a {type(value).__name__}, which a tar cannot hold: {error}"
        ) from error


def _image_format(value: bytes) -> str | None:
    """Return the extension of an image's bytes, None for other bytes."""
    for begin, extension in _IMAGE_MARKS.items():
        if value.startswith(begin):
            return extension
    return "webp" if value[:4] == b"RIFF" and value[8:12] == b"WEBP" else None


def _family(extension: str) -> str:
    """Return the extension, one for all formats of images."""
    return "jpg" if extension in EXTENSIONS else extension


def _ending(name: str, extensions: tuple[str, ...]) -> str:
    return name if name.rsplit(".", 1)[-1].lower() in extensions else f"{name}.{extensions[0]}"
