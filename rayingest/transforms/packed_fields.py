"""Packed rows: the samples of a step laid into rows of one length, with what attention kernels need to keep them apart.

Owns the columns of a packed batch of B rows of T: the packed fields [B, T] in their own dtype, filled up where a row is
not full; `segment_ids` (int32[B, T]): 1 for a row's first piece of a sample, 2 for the next, and 0 where it is filled
up; `position_ids` (int32[B, T]), from 0 in every segment; `cu_seqlens` (int32[segments + 1]): where segments begin, and
the last ends, in the B rows laid behind one another, as variable-length attention wants it. What a row's pieces leave
over is a segment too. Which piece lies where is the plan's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.layout import Layout
from rayingest.plan.protocols import Columns
from rayingest.transforms.schema import Schema

ADDED = ("position_ids", "segment_ids", "cu_seqlens")
"""Columns that every packed batch has."""


@dataclass(frozen=True)
class PackedFields:
    """Which fields are packed, and by field what fills rows up (0 where nothing is said)."""

    names: tuple[str, ...]
    fill: Mapping[str, float] = field(default_factory=dict)

    def check(self, schema: Schema) -> None:
        """ConfigError for a field that holds no rows of numbers, or has no such value to be filled with."""
        for name in self.names:
            found = schema[name]
            if found.dtype is None or found.ndim != 1:
                raise ConfigError(
                    f"pack: field {name!r} is {found}; packed are numbers in a row, such as tokens"
                )
            with np.errstate(all="ignore"):
                value = np.array(self.fill.get(name, 0)).astype(found.dtype).item()
            if found.dtype.kind != "f" and value != self.fill.get(name, 0):
                raise ConfigError(
                    f"pad: field {name!r} of {found.dtype} has no value {self.fill[name]!r}"
                )

    def misfit(self, sample: Mapping[str, Any], length: int) -> str:
        """What is wrong with the length of a sample that is planned to be so long; "" for nothing."""
        for name in self.names:
            if len(sample[name]) != length:
                return (
                    f"field {name!r} has {len(sample[name])} values here, and .length said {length}: all packed fields "
                    "must be as long as that in every epoch"
                )
        return ""

    def pack(self, samples: Sequence[Mapping[str, Any]], layout: Layout) -> Columns:
        """The columns of these samples, which are those of the layout, in order; at least one, to show the dtypes."""
        begins, piece = layout.segments
        size = layout.rows * layout.length
        sizes = np.diff(begins)
        positions = np.arange(size, dtype=np.int32) - np.repeat(begins[:-1], sizes).astype(np.int32)
        number = np.arange(len(layout.row)) - np.searchsorted(layout.row, layout.row) + 1
        segment = np.where(piece < 0, 0, number[piece] if len(number) else 0)
        columns: Columns = {}
        for name in self.names:
            values = [sample[name] for sample in samples]
            flat = np.full(size, self.fill.get(name, 0), values[0].dtype)
            where = (layout.places, layout.sample, layout.begin, layout.end)
            for place, which, begin, end in zip(
                *(column.tolist() for column in where), strict=True
            ):
                flat[place : place + end - begin] = values[which][begin:end]
            columns[name] = flat.reshape(layout.rows, layout.length)
        columns["position_ids"] = positions.reshape(layout.rows, layout.length)
        columns["segment_ids"] = (
            np.repeat(segment, sizes).astype(np.int32).reshape(layout.rows, layout.length)
        )
        columns["cu_seqlens"] = begins.astype(np.int32)
        return columns
