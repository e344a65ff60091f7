"""Samples to files of shards: tar members by extension (https://github.com/webdataset/webdataset), or rows of Parquet.

Owns what a field is called and made of in either, such that our readers give the same values back, or an error that
names the sample. Knows nothing of names of shards; `parquet_columns` says what type a column of Parquet has.
"""

from __future__ import annotations

import io
import json
import tarfile
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
from rayingest.transforms.raw_block import KEY

_NUMBERS = ("cls", "cls2", "index", "inx", "id")
_TEXTS = ("txt", "text", "transcript")


def write_tar(path: Path, blocks: Iterable[SampleBlock]) -> None:
    """A member for each field that is not None. Samples keep their `__key__`, others are called by their ordinals.

    Bytes stay as they are, under the field's name; text becomes `.txt`, an integer `.cls`, an array `.npy`, anything
    else `.json`, where the name does not end in such an extension already. DataError for a key that would be read as
    another one, and for a sample of which nothing would be left.
    """
    last = ""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for block in blocks:
            for place, (sample, ordinal) in enumerate(
                zip(block.samples, block.ordinals.tolist(), strict=True)
            ):
                key = f"{ordinal:012d}" if sample.get(KEY) is None else str(sample[KEY])
                last = (
                    f"{key}-{ordinal}" if key == last else key
                )  # neighbours of one key would be one sample
                members = list(_members(sample))
                if not members:
                    raise block.error(
                        place,
                        "all fields are null, for which a tar holds nothing; leave such samples out by .where() or "
                        ".filter(), or pack to Parquet",
                    )
                if field_of(f"{last}.txt") != (last, "txt"):
                    raise block.error(
                        place,
                        f"key {key!r} would be another in tars, where the first dot of the base name ends the key and "
                        "something must be before it; change such keys by .map(), or rename the field "
                        f"{KEY} by .select(): samples are then called by their numbers",
                    )
                for name, data in members:
                    info = tarfile.TarInfo(f"{last}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def write_parquet(path: Path, blocks: Iterable[SampleBlock], schema: pa.Schema) -> None:
    """A row group for each block. DataError for a value or field that does not fit `schema`, that of all shards."""
    try:
        with pq.ParquetWriter(path, schema) as writer:
            for block in blocks:
                writer.write_table(table_of(block, schema))
    except pa.ArrowNotImplementedError as error:
        raise ConfigError(
            f"Parquet has no place for these columns, change them by .map(): {error}"
        ) from error


def _members(sample: Sample) -> Iterator[tuple[str, bytes]]:
    found: dict[str, str] = {}
    for field, value in sample.items():
        if field == KEY or value is None:
            continue
        name, data = _member(field, value)
        name = name.lower()
        if "/" in name or not name:
            raise ConfigError(
                f"field {field!r}: a member of a tar cannot have this extension; rename it by .select()"
            )
        if found.setdefault(name, field) != field:
            raise ConfigError(
                f"fields {found[name]!r} and {field!r} are one in a tar, {name!r}; rename one by .select()"
            )
        yield name, data


def _member(name: str, value: Any) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        return name, value
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
            f"field {name!r} is a {type(value).__name__}, which a tar has no place for: {error}"
        ) from error


def _ending(name: str, extensions: tuple[str, ...]) -> str:
    return name if name.rsplit(".", 1)[-1].lower() in extensions else f"{name}.{extensions[0]}"
