"""Name fields inside structs and objects by dotted paths, as in `meta.score`.

Owns how a path is read: a field whose own name is the whole path comes first, else the longest name
that begins it. A null struct has null fields. Lists have no fields.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rayingest.formats.extension_types import storage_of, storage_type

Path = tuple[str, tuple[str, ...]]
"""The name of a field, and the names below it."""


def split_path(name: str, names: Collection[str]) -> Path | None:
    """Return the field among `names` that a dotted name begins with; None if there is none."""
    head, _, rest = name.rpartition(".")
    below: tuple[str, ...] = (rest,)
    while head:
        if head in names:
            return head, below
        head, _, rest = head.rpartition(".")
        below = (rest, *below)
    return None


def top_of(name: str, names: Collection[str]) -> str:
    """Return the field among `names` that holds a name: the field itself, or that of a path."""
    path = None if name in names else split_path(name, names)
    return name if path is None else path[0]


def take_path(value: Any, below: Sequence[str]) -> Any:
    """Return what lies at this path in a mapping of mappings; None in None. KeyError if absent."""
    for name in below:
        if value is None:
            return None
        if not isinstance(value, Mapping) or name not in value:
            raise KeyError(name)
        value = value[name]
    return value


def has_path(schema: pa.Schema, name: str) -> bool:
    """Return whether a dotted name leads to a field inside a struct column."""
    path = split_path(name, schema.names)
    if path is None:
        return False
    kind = storage_type(schema.field(path[0]).type)
    for part in path[1]:
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            return False
        kind = storage_type(kind.field(part).type)
    return True


def select_paths(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return these columns of the table; dotted names give fields of its structs."""
    if all(name in table.column_names for name in names):
        return table.select(list(names))
    fields, columns = [], []
    for name in names:
        field, column = _column(table, name)
        fields.append(field)
        columns.append(column)
    return pa.table(columns, pa.schema(fields, table.schema.metadata))


def _column(table: pa.Table, name: str) -> tuple[pa.Field, pa.ChunkedArray]:
    path = None if name in table.column_names else split_path(name, table.column_names)
    if path is None:
        return table.schema.field(name), table.column(name)
    import pyarrow.compute as pc  # slow to import, and rarely needed

    field, column = table.schema.field(path[0]), table.column(path[0])
    for part in path[1]:
        column = storage_of(column)
        field = column.type.field(part)
        column = pc.struct_field(column, part)
    return field.with_name(name).with_nullable(True), column
