"""Putting samples together into columns by their schema, in one go or in parts.

Both `collate` and `assemble` only lay rows side by side, so it does not matter how rows were grouped: parts may be made
anywhere and put together later, bit for bit the same. What a column is was decided before, by the schema.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.protocols import Column, Columns
from rayingest.transforms.padding import PLAIN, Pad, mask_name
from rayingest.transforms.schema import FieldType, Schema, length_name

Rows = slice | np.ndarray
"""Which rows of the whole a part fills: a slice, or an integer array."""

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""A writable array of this shape and dtype; its contents are undefined."""

Written = Sequence[tuple[np.ndarray, Sequence[np.ndarray]]]
"""Arrays made for a whole batch, each with the row views that decoders wrote into."""


_STRETCH = 4 << 20
_memmove = ctypes.PyDLL(None).memmove
_memmove.argtypes, _memmove.restype = (
    (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    ctypes.c_void_p,
)


def collate(
    samples: Sequence[Mapping[str, Any]], schema: Schema, *, written: Written = ()
) -> Columns:
    """Columns of n samples that conform to the schema; {} for none.

    An array of `written` whose row views still are the samples' values, in order, is used as it is. Raises ConfigError
    for arrays of different shapes in a field that is stacked.
    """
    columns: Columns = {}
    for name, field in schema.items() if samples else ():
        values = [sample[name] for sample in samples]
        whole = _written_whole(values, field, written)
        columns[name] = _column(name, values, field) if whole is None else whole
        if field.padded:
            columns[length_name(name)] = field.pad.lengths(values)
        if field.pad.mask:
            columns[mask_name(name)] = field.pad.own(values)
    return columns


def assemble(
    parts: Sequence[tuple[Rows, Columns]],
    total: int,
    allocate: Allocate,
    padding: Mapping[str, Pad] = MappingProxyType({}),
) -> Columns:
    """The columns of `total` samples of which each part holds those at its rows; every row belongs to one part.

    Equal to `collate` of all the samples; `padding` as the schema has it. Arrays are written once, into what `allocate`
    gives. Raises ConfigError for parts whose shapes do not fit together.
    """
    parts = [(rows, columns) for rows, columns in parts if columns]
    result: Columns = {}
    pads = {
        **padding,
        **{mask_name(name): replace(pad, value=0) for name, pad in padding.items() if pad.mask},
    }
    for name in parts[0][1] if parts else ():
        column = [(rows, columns[name]) for rows, columns in parts]
        pad = pads.get(name, PLAIN if length_name(name) in parts[0][1] else None)
        result[name] = _joined(name, column, total, allocate, pad)
    return result


def _put(out: np.ndarray, rows: Rows, data: np.ndarray) -> None:
    """The data to these rows of `out`; into one stretch of memory a few megabytes at a time, the GIL held meanwhile.

    NumPy lets go of it for each copy, and beside a loop in Python waits 5 ms to have it back, where a copy takes 1 ms.
    """
    places = np.arange(len(out))[rows]
    first, last = (int(places[0]), int(places[-1])) if len(places) else (0, -1)
    in_a_row = len(places) == len(data) == last - first + 1 and bool((np.diff(places) == 1).all())
    alike = data.dtype == out.dtype and not data.dtype.hasobject and data.shape[1:] == out.shape[1:]
    if not (in_a_row and alike and data.flags.c_contiguous and out.flags.c_contiguous):
        out[rows] = data
        return
    target, source = out[first:].ctypes.data, data.ctypes.data
    for at in range(0, data.nbytes, _STRETCH):
        _memmove(target + at, source + at, min(_STRETCH, data.nbytes - at))


def _joined(
    name: str, parts: Sequence[tuple[Rows, Column]], total: int, allocate: Allocate, pad: Pad | None
) -> Column:
    arrays = [(rows, data) for rows, data in parts if isinstance(data, np.ndarray)]
    if not arrays:
        column: list[Any] = [None] * total
        places = np.arange(total)
        for rows, values in parts:
            for row, value in zip(places[rows].tolist(), values, strict=True):
                column[row] = value
        return column
    shapes = dict.fromkeys(data.shape[1:] for _, data in arrays)
    shape = next(iter(shapes))
    if len(shapes) > 1:
        if pad is None or len({one[pad.axes :] for one in shapes}) > 1:
            raise ConfigError(_misfit(name, shapes))
        shape = tuple(map(max, zip(*shapes, strict=True)))
    out = allocate((total, *shape), arrays[0][1].dtype)
    for rows, data in arrays:
        if data.shape[1:] == shape:
            _put(out, rows, data)
        else:
            assert pad is not None
            out[rows] = pad.value
            out[rows, *pad.places(data.shape[1:], shape)] = data
    return out


def _column(name: str, values: list[Any], field: FieldType) -> Column:
    if field.dtype is None:
        return values
    if not field.ndim:
        return np.array(values, field.dtype)
    if field.padded:
        try:
            return field.pad.column(values, field.dtype)
        except ValueError:
            raise ConfigError(_misfit(name, dict.fromkeys(map(np.shape, values)))) from None
    shapes = dict.fromkeys(value.shape for value in values)
    if len(shapes) > 1:
        raise ConfigError(_misfit(name, shapes))
    return np.stack(values)


def _written_whole(values: list[Any], field: FieldType, written: Written) -> np.ndarray | None:
    for whole, views in written:
        if values[0] is not views[0] or len(values) != len(views) or field.padded:
            continue
        if all(value is view for value, view in zip(values, views, strict=True)):
            return whole
    return None


def _misfit(name: str, found: Iterable[tuple[int, ...]]) -> str:
    shapes = list(found)
    shown = ", ".join(map(str, shapes[:4])) + (", ..." if len(shapes) > 4 else "")
    start = f"field {name!r} has values of shapes {shown}, which cannot be stacked: "
    if all(len(shape) == 3 for shape in shapes):
        return (
            start + f"give images one size, as in .decode({name}=ri.images.RandomResizedCrop(224))"
        )
    if all(len(shape) == 1 for shape in shapes):
        return (
            start
            + "it comes from a source of fixed length; give what has another length a name of its own"
        )
    return start + "pad or cut them to one shape in .map, or pass .batch(collate=...)"
