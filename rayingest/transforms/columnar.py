"""Whole columns: a batch's columns from blocks whose samples have nothing done to them, without a value for each.

Owns when that is possible: numbers and lists of numbers without nulls, in the very dtypes of the schema. There no
sample can be at fault, and the columns are, bit for bit, those that collating the samples would give. Everything else
is left to the path that goes sample by sample, and so are all errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError
from rayingest.plan.protocols import Columns
from rayingest.transforms.padding import mask_name
from rayingest.transforms.program import FieldPlan
from rayingest.transforms.rows import Rows, is_number, numbers
from rayingest.transforms.schema import FieldType, Schema, length_name

Plan = Callable[[tuple[str, ...]], tuple[FieldPlan, ...]]
"""What the fields of a table with these columns are."""


@dataclass(frozen=True)
class _Column:
    """A field of all samples of a block: `values[i]`, or where there are bounds `values[bounds[i] : bounds[i + 1]]`."""

    values: np.ndarray
    bounds: np.ndarray | None = None

    def of(self, row: int) -> np.ndarray:
        """A view of one sample's value."""
        return self.values[row] if self.bounds is None else self.values[self.bounds[row] : self.bounds[row + 1]]


@dataclass(frozen=True)
class OpenBlock:
    """A raw block, and its fields as arrays, which share its memory; `columns` is None where samples have to be looked
    at one by one.
    """

    table: pa.Table
    columns: dict[str, _Column] | None = None


def open_block(table: pa.Table, plan: Plan, schema: Schema) -> OpenBlock:
    """The block, opened for samples that are finished when they have been read."""
    return OpenBlock(table, _columns(Rows(table), plan, schema))


def whole_columns(
    blocks: Sequence[OpenBlock], block_of: np.ndarray, row_of: np.ndarray, schema: Schema
) -> Columns | None:
    """The columns of n samples, sample i being row `row_of[i]` of `blocks[block_of[i]]`, if they can be had so."""
    parts = []
    for number in np.unique(block_of).tolist():
        columns = blocks[number].columns
        if columns is None:
            return None
        places = np.flatnonzero(block_of == number)
        parts.append((columns, row_of[places], places))
    result: Columns = {}
    for name, field in schema.items() if parts else ():
        shapes = {columns[name].values.shape[1:] for columns, _, _ in parts}
        if len(shapes) > 1:
            return None
        if field.padded:
            padded = _padded(name, parts, len(block_of), field)
            if padded is None:
                return None
            result |= padded
        else:
            whole = np.empty((len(block_of), *shapes.pop()), field.dtype)
            for columns, rows, places in parts:
                whole[places] = columns[name].values[rows]
            result[name] = whole
    return result


def sample_views(
    blocks: Sequence[OpenBlock], block_of: np.ndarray, row_of: np.ndarray, schema: Schema
) -> list[dict[str, np.ndarray]] | None:
    """The same samples one by one, as views of the blocks' memory, if they can be had so."""
    if any(blocks[number].columns is None for number in np.unique(block_of)):
        return None
    samples = []
    for number, row in zip(block_of.tolist(), row_of.tolist(), strict=True):
        columns = blocks[number].columns
        assert columns is not None
        samples.append({name: columns[name].of(row) for name in schema})
    return samples


_Part = tuple[dict[str, _Column], np.ndarray, np.ndarray]
"""A block's columns, rows of it, and their places in the batch."""


def _padded(name: str, parts: Sequence[_Part], n: int, field: FieldType) -> Columns | None:
    """The lists as padded rows, their lengths, and their mask; None where one is longer than it may be."""
    pad = field.pad
    lengths = np.empty(n, np.int64)
    spans = []
    for columns, rows, places in parts:
        bounds = columns[name].bounds
        assert bounds is not None
        begins = bounds[rows]
        lengths[places] = bounds[rows + 1] - begins
        spans.append((columns[name].values, begins, places))
    if pad.longest is not None:
        if not pad.truncate and lengths.max() > pad.longest:
            return None
        lengths = np.minimum(lengths, pad.longest)
    width = pad.width(int(lengths.max()))
    whole = np.full((n, width), pad.value, field.dtype)
    for values, begins, places in spans:
        for place, begin, length in zip(places.tolist(), begins.tolist(), lengths[places].tolist(), strict=True):
            whole[place, pad.place(length, width)] = values[begin : begin + length]
    result: Columns = {name: whole, length_name(name): lengths}
    if pad.mask:
        own = np.arange(width) < lengths[:, None]
        result[mask_name(name)] = own if pad.side == "right" else np.ascontiguousarray(own[:, ::-1])
    return result


def _columns(rows: Rows, plan: Plan, schema: Schema) -> dict[str, _Column] | None:
    if rows.has_documents or rows.has_members or rows.faults:
        return None
    try:
        fields = plan(rows.names)
    except ConfigError:
        return None
    if {field.name for field in fields} != schema.keys() or any(field.decoders for field in fields):
        return None
    columns: dict[str, _Column] = {}
    for field in fields:
        encoded = rows.is_encoded(field.raw)
        column = None if encoded else _column(rows.table.column(field.raw), schema[field.name])
        if column is None:
            return None
        columns[field.name] = column
    return columns


def _column(column: pa.ChunkedArray, field: FieldType) -> _Column | None:
    """The column, where every value is what the schema says."""
    kind, is_fixed = column.type, pa.types.is_fixed_size_list(column.type)
    is_list = is_fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if column.null_count or field.ndim != is_list or field.padded != (is_list and not is_fixed):
        return None
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # the latter copies
    flat = array.flatten() if is_list else array
    if flat.null_count or not is_number(flat.type):
        return None
    values = numbers(flat)
    if values.dtype != field.dtype or (field.shape is not None and field.shape != (kind.list_size,)):
        return None
    if field.padded:
        bounds = numbers(array.offsets).astype(np.int64)
        return _Column(values, bounds - bounds[0])
    return _Column(values.reshape(-1, kind.list_size) if is_fixed else values)
