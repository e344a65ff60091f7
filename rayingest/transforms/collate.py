"""Put samples together into the columns of a batch.

Owns the three ways: by the schema (`collate`, and `assemble` for parts), packed into rows of one
length (`PackedFields`), and by the user's own function (`collate_with`). `collate` and `assemble`
only lay rows side by side, so parts may be made anywhere and put together later, bit for bit the
same. The schema has decided before what each column is; the plan, which piece of a packed row lies
where.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from rayingest.errors import ConfigError
from rayingest.plan.order.step_samples import Layout
from rayingest.plan.protocols import Column, Columns
from rayingest.transforms.functions import Function, failure, is_interrupt
from rayingest.transforms.global_random import call_seeded
from rayingest.transforms.padding import PLAIN, Pad, mask_name
from rayingest.transforms.schema import FieldType, Schema, as_array, length_name

BatchRows = slice | np.ndarray
"""The rows of the batch that a part fills: a slice, or an integer array."""

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""Return a writable array of this shape and dtype; its contents are undefined."""

InPlace = Sequence[tuple[np.ndarray, Sequence[np.ndarray]]]
"""Arrays of a whole batch, each with the row views that decoders wrote into."""

CollateFunction = Callable[..., Any]
"""From the list of a step's samples, or the list and rng, to a dict of arrays or lists with the
batch as first axis."""

_COPY_BYTES = 4 << 20
_memmove = ctypes.PyDLL(None).memmove
_memmove.argtypes, _memmove.restype = (
    (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    ctypes.c_void_p,
)


def collate(
    samples: Sequence[Mapping[str, Any]], schema: Schema, *, in_place: InPlace = ()
) -> Columns:
    """Return the columns of n samples that conform to the schema; {} for no samples.

    An array of `in_place` is used as it is if its row views still are the samples' values, in
    order. Raises ConfigError for arrays of different shapes in a field that is stacked.
    """
    columns: Columns = {}
    for name, field_type in schema.items() if samples else ():
        values = [sample[name] for sample in samples]
        whole = _find_in_place(values, field_type, in_place)
        columns[name] = _column(name, values, field_type) if whole is None else whole
        if field_type.padded:
            columns[length_name(name)] = field_type.pad.lengths(values)
        if field_type.pad.mask:
            columns[mask_name(name)] = field_type.pad.own_mask(values)
    return columns


def assemble(
    parts: Sequence[tuple[BatchRows, Columns]],
    total: int,
    allocate: Allocate,
    padding: Mapping[str, Pad] = MappingProxyType({}),
) -> Columns:
    """Return the columns of `total` samples from parts, each with the rows that it fills.

    Every row belongs to one part. The result equals `collate` of all the samples; `padding` is the
    schema's. Each array is written once, into memory that `allocate` returns. Raises ConfigError
    for parts whose shapes differ.
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
        result[name] = _join(name, column, total, allocate, pad)
    return result


def collate_with(
    function: Function,
    samples: list[dict[str, Any]],
    key: int,
    rng: Callable[[], np.random.Generator],
) -> Columns:
    """Return the columns that the user's function makes of samples.

    `rng` makes the generator that it gets if it takes one; `key` seeds the global generators.
    Raises DataError for an exception in it, ConfigError for a result that is not a dict of arrays
    or lists with one item per sample.
    """
    label = function.label
    extra = (rng(),) if function.rng == "positional" else ()
    named = {"rng": rng()} if function.rng == "keyword" else {}
    try:
        result = call_seeded(key, lambda: function.fn(samples, *extra, **named))
    except BaseException as error:
        if isinstance(error, ConfigError) or is_interrupt(error):
            raise
        raise failure(label, error, function.fn) from error
    if not isinstance(result, dict):
        raise ConfigError(
            f"{label} returned a {type(result).__name__}; it must be a dict of arrays or lists"
        )
    columns: Columns = {}
    for name, value in result.items():
        try:
            column = as_array(value) if hasattr(value, "__array__") else value
        except Exception as error:  # of numbers, say, for which numpy has no dtype
            kind = type(value).__name__
            raise ConfigError(
                f"{label} returned a {kind} for {name!r} that cannot be an array: {error}"
            ) from error
        listed = isinstance(column, list) or (isinstance(column, np.ndarray) and column.ndim > 0)
        if not isinstance(name, str) or not listed or len(column) != len(samples):
            raise ConfigError(
                f"{label} returned {_describe(column)} for {name!r}; each field must be an array "
                f"or list with the batch, here {len(samples)} samples, as first axis"
            )
        columns[name] = column
    return columns


def _describe(column: Any) -> str:
    if isinstance(column, np.ndarray):
        return f"an array of shape {np.shape(column)}"
    if isinstance(column, list):
        return f"a list of {len(column)}"
    return f"a {type(column).__name__}"


PACKED_COLUMNS = ("position_ids", "segment_ids", "cu_seqlens")
"""Columns that every packed batch has beside the packed fields."""


@dataclass(frozen=True)
class PackedFields:
    """The fields that are packed and, by field, the value that fills rows up (default 0).

    A packed batch of B rows of length T has these columns:

    - each packed field: [B, T] in its own dtype;
    - `segment_ids`: int32[B, T], 1 for a row's first piece of a sample, 2 for the next, 0 where
      the row is filled up;
    - `position_ids`: int32[B, T], counted from 0 in every segment;
    - `cu_seqlens`: int32[segments + 1], the begin of each segment, and the end of the last, in the
      B rows laid end to end, as variable-length attention takes it. The filled-up rest of a row is
      a segment too.
    """

    names: tuple[str, ...]
    fill: Mapping[str, float] = field(default_factory=dict)

    def check(self, schema: Schema) -> None:
        """Raise ConfigError for a field without rows of numbers, or whose dtype lacks its fill."""
        for name in self.names:
            found = schema[name]
            if found.dtype is None or found.ndim != 1:
                raise ConfigError(
                    f"pack: field {name!r} is {found}; a packed field holds 1-D arrays of numbers, "
                    "such as tokens"
                )
            with np.errstate(all="ignore"):
                value = np.array(self.fill.get(name, 0)).astype(found.dtype).item()
            if found.dtype.kind != "f" and value != self.fill.get(name, 0):
                raise ConfigError(
                    f"pad: field {name!r} of {found.dtype} has no value {self.fill[name]!r}"
                )

    def misfit(self, sample: Mapping[str, Any], length: int) -> str:
        """Return how a sample's length differs from the planned one; "" if it does not."""
        for name in self.names:
            if len(sample[name]) != length:
                return (
                    f"field {name!r} has {len(sample[name])} values here, and .length said "
                    f"{length}: all packed fields must have that length in every epoch"
                )
        return ""

    def pack(self, samples: Sequence[Mapping[str, Any]], layout: Layout) -> Columns:
        """Return the columns of the layout's samples, in its order; at least one."""
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
            pieces = (layout.places, layout.sample, layout.begin, layout.end)
            for place, sample, begin, end in zip(
                *(column.tolist() for column in pieces), strict=True
            ):
                flat[place : place + end - begin] = values[sample][begin:end]
            columns[name] = flat.reshape(layout.rows, layout.length)
        columns["position_ids"] = positions.reshape(layout.rows, layout.length)
        columns["segment_ids"] = (
            np.repeat(segment, sizes).astype(np.int32).reshape(layout.rows, layout.length)
        )
        columns["cu_seqlens"] = begins.astype(np.int32)
        return columns


def _copy_into(out: np.ndarray, rows: BatchRows, data: np.ndarray) -> None:
    """Copy the data to these rows of `out`.

    Contiguous data is copied a few megabytes at a time with the GIL held: numpy releases it for
    each copy, and beside a loop in Python then waits 5 ms to get it back, where a copy takes 1 ms.
    """
    places = np.arange(len(out))[rows]
    first, last = (int(places[0]), int(places[-1])) if len(places) else (0, -1)
    in_a_row = len(places) == len(data) == last - first + 1 and bool((np.diff(places) == 1).all())
    alike = data.dtype == out.dtype and not data.dtype.hasobject and data.shape[1:] == out.shape[1:]
    if not (in_a_row and alike and data.flags.c_contiguous and out.flags.c_contiguous):
        out[rows] = data
        return
    target, source = out[first:].ctypes.data, data.ctypes.data
    for at in range(0, data.nbytes, _COPY_BYTES):
        _memmove(target + at, source + at, min(_COPY_BYTES, data.nbytes - at))


def _join(
    name: str,
    parts: Sequence[tuple[BatchRows, Column]],
    total: int,
    allocate: Allocate,
    pad: Pad | None,
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
            raise ConfigError(_shapes_differ(name, shapes))
        shape = tuple(map(max, zip(*shapes, strict=True)))
    out = allocate((total, *shape), arrays[0][1].dtype)
    for rows, data in arrays:
        if data.shape[1:] == shape:
            _copy_into(out, rows, data)
        else:
            assert pad is not None
            out[rows] = pad.value
            out[rows, *pad.places(data.shape[1:], shape)] = data
    return out


def _column(name: str, values: list[Any], field_type: FieldType) -> Column:
    if field_type.dtype is None:
        return values
    if not field_type.ndim:
        return np.array(values, field_type.dtype)
    if field_type.padded:
        try:
            return field_type.pad.column(values, field_type.dtype)
        except ValueError:
            raise ConfigError(_shapes_differ(name, dict.fromkeys(map(np.shape, values)))) from None
    shapes = dict.fromkeys(value.shape for value in values)
    if len(shapes) > 1:
        raise ConfigError(_shapes_differ(name, shapes))
    return np.stack(values)


def _find_in_place(
    values: list[Any], field_type: FieldType, in_place: InPlace
) -> np.ndarray | None:
    for whole, views in in_place:
        if values[0] is not views[0] or len(values) != len(views) or field_type.padded:
            continue
        if all(value is view for value, view in zip(values, views, strict=True)):
            return whole
    return None


def _shapes_differ(name: str, found: Iterable[tuple[int, ...]]) -> str:
    shapes = list(found)
    shown = ", ".join(map(str, shapes[:4])) + (", ..." if len(shapes) > 4 else "")
    if all(len(shape) == 3 for shape in shapes):
        advice = (
            f"give images one size, as in .decode({name}=ri.images.RandomResizedCrop(224)), or pad "
            f"the first axes with .batch(pad={{{name!r}: ri.Pad(axes=2)}})"
        )
    elif all(len(shape) == 1 for shape in shapes):
        advice = (
            f"pad the field with .batch(pad={{{name!r}: ri.Pad()}}), or give arrays of another "
            "length a field of their own"
        )
    else:
        second = {shape[1:2] for shape in shapes}
        pad = "ri.Pad(axes=2)" if len(second) > 1 else "ri.Pad()"
        advice = (
            f"pad the field with .batch(pad={{{name!r}: {pad}}}), cut it to one shape in .map, "
            "or pass .batch(collate=...)"
        )
    return f"field {name!r} has values of shapes {shown}, which cannot be stacked: {advice}"
