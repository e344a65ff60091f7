"""Read folders named `key=value` as columns, as pyarrow, Spark and Ray Data do.

Owns what such a folder says: the key is the column's name, the value is that of all rows below it.
A value is int32 if all values of its key are whole numbers in that range, else text; both are
percent-decoded. A key that a shard's path lacks, and Hive's name for no value, are null. A column
of the file itself comes before one of its folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from rayingest.formats.protocol import Columns, Shard
from rayingest.plan.order.manifest import Manifest
from rayingest.storage.arrow import text_column
from rayingest.storage.file_info import within_url
from rayingest.storage.listing import Listing

_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?[0-9]+")
_INT32 = range(-(1 << 31), 1 << 31)


def folder_types(shards: Listing | Manifest) -> dict[str, pa.DataType]:
    """Return the columns that the folders of the shards give, and their types."""
    folders = dict.fromkeys(path.rpartition("/")[0] for path in shards.paths)
    values: dict[str, set[str]] = {}
    for folder in folders:
        for key, value in folder_values(f"{shards.root}{folder}/").items():
            values.setdefault(key, set()).update(() if value is None else (value,))
    return {key: _type_of(found) for key, found in values.items()}


def folder_values(url: str) -> dict[str, str | None]:
    """Return what the folders of a file's URL say, by key; the innermost folder counts."""
    values = {}
    for folder in within_url(url).rpartition("/")[0].split("/"):
        key, equals, value = folder.partition("=")
        if key and equals and not key.startswith("__"):
            values[unquote(key)] = None if value == _NULL else unquote(value)
    return values


def with_folder_columns(shard: Shard, tables: list[pa.Table], columns: Columns) -> list[pa.Table]:
    """Return the tables of a shard with the columns of its folders that are asked for."""
    wanted = [name for name in shard.folder_types if columns is None or name in columns]
    values = folder_values(shard.url) if wanted else {}
    return [_append(table, shard.folder_types, wanted, values) for table in tables]


def _append(
    table: pa.Table,
    types: Mapping[str, pa.DataType],
    wanted: Sequence[str],
    values: Mapping[str, str | None],
) -> pa.Table:
    for name in wanted:
        if name not in table.column_names:
            column = _column(values.get(name), types[name], table.num_rows)
            table = table.append_column(pa.field(name, types[name]), column)
    return table


def _type_of(values: Iterable[str]) -> pa.DataType:
    whole = all(_WHOLE.fullmatch(value) and int(value) in _INT32 for value in values)
    return pa.int32() if whole and values else pa.string()


def _column(value: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    """Return a column of one value, without pandas."""
    if value is None:
        return pa.nulls(rows, kind)
    if pa.types.is_string(kind):
        return text_column([value] * rows).cast(kind)
    numbers = np.full(rows, int(value), np.int32)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(numbers)])
