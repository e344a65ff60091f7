"""Samples to files of shards: tar members by extension (https://github.com/webdataset/webdataset), or rows of Parquet.

Owns what a field is called and made of in either, such that our readers give the same values back. Knows nothing of
where samples come from, or of names of shards.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayingest.errors import ConfigError, DataError
from rayingest.transforms.rows import KEY

Sample = Mapping[str, Any]

SUFFIXES = {"webdataset": ".tar", "parquet": ".parquet"}
_NUMBERS = ("cls", "cls2", "index", "inx", "id")
_TEXTS = ("txt", "text", "transcript")


def write_tar(path: Path, blocks: Iterable[list[Sample]], ordinals: Iterable[np.ndarray]) -> None:
    """A member for each field that is not None. Samples keep their `__key__`, others are called by their ordinals.

    Bytes stay as they are, under the field's name; text becomes `.txt`, an integer `.cls`, an array `.npy`, anything
    else `.json`, where the name does not end in such an extension already.
    """
    last = ""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for samples, numbers in zip(blocks, ordinals, strict=True):
            for sample, ordinal in zip(samples, numbers.tolist(), strict=True):
                key = str(sample.get(KEY, f"{ordinal:012d}"))
                last = f"{key}-{ordinal}" if key == last else key  # neighbours of one key would be one sample
                for name, data in _members(sample):
                    info = tarfile.TarInfo(f"{last}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def write_parquet(path: Path, blocks: Iterable[list[Sample]], schema: pa.Schema) -> None:
    """A row group for each block. DataError for a value that does not fit `schema`, that of all shards."""
    with pq.ParquetWriter(path, schema) as writer:
        for samples in blocks:
            arrays = [_column(field.name, samples, field.type) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def schema_of(samples: list[Sample]) -> pa.Schema:
    """The columns that the samples of a first block suggest, for all that follow."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return pa.schema([pa.field(name, _column(name, samples).type) for name in names])


def _members(sample: Sample) -> Iterator[tuple[str, bytes]]:
    found: dict[str, str] = {}
    for field, value in sample.items():
        if field == KEY or value is None:
            continue
        name, data = _member(field, value)
        name = name.lower()
        if "/" in name or not name:
            raise ConfigError(f"field {field!r}: a member of a tar cannot have this extension; rename it by .select()")
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


def _column(name: str, samples: list[Sample], kind: pa.DataType | None = None) -> pa.Array:
    values: list[Any] = [sample.get(name) for sample in samples]
    try:
        if any(isinstance(value, np.ndarray) and value.ndim > 1 for value in values):
            column = pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(values))
        else:
            column = pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError) as error:
        raise DataError(f"field {name!r} fits no one column of Parquet: {error}") from error
    if kind is not None and column.type != kind:
        raise DataError(f"field {name!r} is {column.type} here and {kind} in the first block")
    return column
