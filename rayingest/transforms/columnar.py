"""Whole columns: a batch's columns from blocks whose samples have nothing done to them, without a value for each.

`opened` says when that is possible. There no sample can be at fault, and the columns are, bit for bit, those that
collating the samples would give. Everything else is left to the path that goes sample by sample, and so are all errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rayingest.plan.protocols import Columns
from rayingest.transforms.open_block import OpenBlock, WholeColumn
from rayingest.transforms.padding import mask_name
from rayingest.transforms.schema import FieldType, Schema, length_name


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


_Part = tuple[Mapping[str, WholeColumn], np.ndarray, np.ndarray]
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
        for place, begin, length in zip(
            places.tolist(), begins.tolist(), lengths[places].tolist(), strict=True
        ):
            whole[place, pad.place(length, width)] = values[begin : begin + length]
    result: Columns = {name: whole, length_name(name): lengths}
    if pad.mask:
        own = np.arange(width) < lengths[:, None]
        result[mask_name(name)] = own if pad.side == "right" else np.ascontiguousarray(own[:, ::-1])
    return result
