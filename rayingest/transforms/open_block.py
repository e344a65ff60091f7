"""Open a raw block: find its fields once, for all decode tasks that take samples of it.

Where the shuffle is wide, a task takes about one sample from each of many blocks: work that is done
once per block and task would be done once per sample.

Owns the rule when a batch's columns can be copied from blocks whole, without a value per sample:
numbers and lists of numbers without nulls, in exactly the dtypes of the schema, with no stage on
them. No sample can be bad there, and the columns are, bit for bit, those that collating the samples
gives. All other blocks, and all errors, are left to the path sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError
from rayingest.plan.protocols import Columns
from rayingest.transforms.decoders import Decoder
from rayingest.transforms.padding import mask_name
from rayingest.transforms.raw_block import RawBlock, is_number, numbers
from rayingest.transforms.schema import FieldType, Schema, length_name
from rayingest.transforms.stages import FieldPlan, has_fixed_length

PlanFields = Callable[[tuple[str, ...]], tuple[FieldPlan, ...]]
"""From the names of raw fields to the fields of a sample; ConfigError if one is absent."""


class Fields(NamedTuple):
    """The fields of a block's samples, each with its default decoder, if it has one.

    `fixed`: fields of 1-D arrays that are known to have one length. `error`: set, and the rest
    empty, where the stages name a field that the block lacks.
    """

    plans: tuple[tuple[FieldPlan, Decoder | None], ...] = ()
    fixed: frozenset[str] = frozenset()
    error: ConfigError | None = None


@dataclass(frozen=True)
class WholeColumn:
    """A field of all samples of a block.

    Sample i is `values[i]` or, with `bounds`, `values[bounds[i] : bounds[i + 1]]`.
    """

    values: np.ndarray
    bounds: np.ndarray | None = None

    def view(self, row: int) -> np.ndarray:
        """Return one sample's value as a view."""
        if self.bounds is None:
            return self.values[row]
        return self.values[self.bounds[row] : self.bounds[row + 1]]


class OpenBlock:
    """A raw block from which many tasks take samples.

    `schema` is given where samples are finished as soon as they are read: no stage but renames.
    """

    def __init__(self, table: pa.Table, plan: PlanFields, schema: Schema | None = None) -> None:
        self.table, self._plan, self._schema = table, plan, schema

    @cached_property
    def rows(self) -> RawBlock:
        """The block's reader, row by row."""
        return RawBlock(self.table)

    @cached_property
    def columns(self) -> Mapping[str, WholeColumn] | None:
        """The fields as arrays that share the block's memory; None if samples must be read
        singly.
        """
        return None if self._schema is None else _columns(self.rows, self._plan, self._schema)

    @cached_property
    def fields(self) -> Fields:
        """The fields of every row; empty for documents, whose rows have fields of their own."""
        if self.rows.has_documents:
            return Fields()
        try:
            plans = self._plan(self.rows.names)
        except ConfigError as error:
            return Fields(error=error)
        return Fields(
            tuple(
                (field, None if field.decoders else self.rows.default_decoder(field.raw))
                for field in plans
            ),
            frozenset(field.name for field in plans if self._is_fixed(field)),
        )

    def _is_fixed(self, field: FieldPlan) -> bool:
        if field.decoders:
            return has_fixed_length(field.decoders[-1])
        return self.rows.has_fixed_length(field.raw)


def _columns(rows: RawBlock, plan: PlanFields, schema: Schema) -> dict[str, WholeColumn] | None:
    if rows.has_documents or rows.has_members or rows.faults:
        return None
    try:
        fields = plan(rows.names)
    except ConfigError:
        return None
    if {field.name for field in fields} != schema.keys() or any(field.decoders for field in fields):
        return None
    columns: dict[str, WholeColumn] = {}
    for field in fields:
        encoded = rows.is_encoded(field.raw)
        column = None if encoded else _column(rows.table.column(field.raw), schema[field.name])
        if column is None:
            return None
        columns[field.name] = column
    return columns


def _column(column: pa.ChunkedArray, field: FieldType) -> WholeColumn | None:
    """Return the column if every value in it conforms to the schema, else None."""
    kind, is_fixed = column.type, pa.types.is_fixed_size_list(column.type)
    is_list = is_fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if column.null_count or field.ndim != is_list or field.padded != (is_list and not is_fixed):
        return None
    # combine_chunks copies, so a single chunk is taken as it is.
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    flat = array.flatten() if is_list else array
    if flat.null_count or not is_number(flat.type):
        return None
    values = numbers(flat)
    if values.dtype != field.dtype or (
        field.shape is not None and field.shape != (kind.list_size,)
    ):
        return None
    if field.padded:
        bounds = numbers(array.offsets).astype(np.int64)
        return WholeColumn(values, bounds - bounds[0])
    return WholeColumn(values.reshape(-1, kind.list_size) if is_fixed else values)


def whole_columns(
    blocks: Sequence[OpenBlock], block_of: np.ndarray, row_of: np.ndarray, schema: Schema
) -> Columns | None:
    """Return the columns of n samples; None if samples must be looked at singly.

    Sample i is row `row_of[i]` of `blocks[block_of[i]]`.
    """
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
            padded = _pad_lists(name, parts, len(block_of), field)
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
    """Return the same samples one by one, as views of the blocks' memory; None likewise."""
    if any(blocks[number].columns is None for number in np.unique(block_of)):
        return None
    samples = []
    for number, row in zip(block_of.tolist(), row_of.tolist(), strict=True):
        columns = blocks[number].columns
        assert columns is not None
        samples.append({name: columns[name].view(row) for name in schema})
    return samples


_Part = tuple[Mapping[str, WholeColumn], np.ndarray, np.ndarray]
"""A block's columns, rows of it, and their places in the batch."""


def _pad_lists(name: str, parts: Sequence[_Part], n: int, field: FieldType) -> Columns | None:
    """Return lists as padded rows, their lengths and their mask; None if one is too long."""
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
        for place, begin, length in zip(
            places.tolist(), begins.tolist(), lengths[places].tolist(), strict=True
        ):
            whole[place, pad.place(length, width)] = values[begin : begin + length]
    result: Columns = {name: whole, length_name(name): lengths}
    if pad.mask:
        own = np.arange(width) < lengths[:, None]
        result[mask_name(name)] = own if pad.side == "right" else np.ascontiguousarray(own[:, ::-1])
    return result
