"""A raw block that is open: what its fields are is found once, however many tasks take samples of it.

A task takes its samples from about as many blocks as it has samples, where the shuffle is wide: what is done once a
block in each task is done once a sample.

Owns when a block's columns can be had as they are: numbers and lists of numbers without nulls, in the very dtypes of
the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError
from rayingest.transforms.decoders import Decoder
from rayingest.transforms.program import FieldPlan, gives_fixed
from rayingest.transforms.rows import Rows, is_number, numbers
from rayingest.transforms.schema import FieldType, Schema

Plan = Callable[[tuple[str, ...]], tuple[FieldPlan, ...]]
"""What the fields of a table with these columns are; ConfigError where some are asked for that are not there."""


class Fields(NamedTuple):
    """The fields of a block's samples, each with what decodes it where nothing else was said.

    `fixed`: those of 1-D arrays that are known to have one length. `lacking`: what is asked for and is not there.
    """

    plans: tuple[tuple[FieldPlan, Decoder | None], ...] = ()
    fixed: frozenset[str] = frozenset()
    lacking: ConfigError | None = None


@dataclass(frozen=True)
class WholeColumn:
    """A field of all samples of a block: `values[i]`, or where there are bounds `values[bounds[i] : bounds[i + 1]]`."""

    values: np.ndarray
    bounds: np.ndarray | None = None

    def of(self, row: int) -> np.ndarray:
        """A view of one sample's value."""
        return (
            self.values[row]
            if self.bounds is None
            else self.values[self.bounds[row] : self.bounds[row + 1]]
        )


class OpenBlock:
    """A raw block, to take samples from many times. `schema`: that of samples that are finished when they are read."""

    def __init__(self, table: pa.Table, plan: Plan, schema: Schema | None = None) -> None:
        self.table, self._plan, self._schema = table, plan, schema

    @cached_property
    def rows(self) -> Rows:
        """What reads it row by row."""
        return Rows(self.table)

    @cached_property
    def columns(self) -> Mapping[str, WholeColumn] | None:
        """Its fields as arrays, which share its memory; None where samples have to be looked at one by one."""
        return None if self._schema is None else _columns(self.rows, self._plan, self._schema)

    @cached_property
    def fields(self) -> Fields:
        """Those of every row; of a block of documents, where each row has its own, none."""
        if self.rows.has_documents:
            return Fields()
        try:
            plans = self._plan(self.rows.names)
        except ConfigError as error:
            return Fields(lacking=error)
        return Fields(
            tuple(
                (field, None if field.decoders else self.rows.default(field.raw)) for field in plans
            ),
            frozenset(field.name for field in plans if self._is_fixed(field)),
        )

    def _is_fixed(self, field: FieldPlan) -> bool:
        return gives_fixed(field.decoders[-1]) if field.decoders else self.rows.is_fixed(field.raw)


def _columns(rows: Rows, plan: Plan, schema: Schema) -> dict[str, WholeColumn] | None:
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
    """The column, where every value is what the schema says."""
    kind, is_fixed = column.type, pa.types.is_fixed_size_list(column.type)
    is_list = is_fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if column.null_count or field.ndim != is_list or field.padded != (is_list and not is_fixed):
        return None
    array = (
        column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    )  # the latter copies
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
