"""Putting samples together into columns, in one go or in parts.

Owns how a field's values become one column. A batch's fields never depend on its data: numbers become a 1-D array,
arrays of two and more dimensions are stacked, one-dimensional arrays and flat lists of numbers are always padded with
zeros at the end and come with `<field>_length`, everything else is a list. A field that is one of these in some
samples and another in others is refused. Both `collate` and `assemble` are one operation, joining pieces, which does
not care how rows were grouped: so parts may be made anywhere and put together later, bit for bit the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.plan.protocols import Column, Columns

Rows = slice | np.ndarray
"""Which rows of the whole a part fills: a slice, or an integer array."""

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""A writable array of this shape and dtype; its contents are undefined."""

Written = Sequence[tuple[np.ndarray, Sequence[np.ndarray]]]
"""Arrays made for a whole batch, each with the row views that decoders wrote into."""

_NUMBERS = frozenset({bool, int, float, complex})
_NO_ITEMS = np.zeros((1, 0), np.bool_)  # bool promotes to anything, so a list without items decides no dtype


class _Piece(NamedTuple):
    """Values of one field at some rows: an array or list of them, first axis the row; ragged: padded, with lengths."""

    rows: Rows
    data: Column
    ragged: bool = False

    @property
    def says_nothing(self) -> bool:
        """Only empty lists: they fit a field of number lists as well as one of other lists."""
        return self.ragged and isinstance(self.data, np.ndarray) and self.data.dtype == bool and not self.data.shape[1]


def collate(
    samples: Sequence[dict[str, Any]],
    *,
    fixed: Collection[str] = (),
    expected: Iterable[str] = (),
    ordinals: Sequence[int] | np.ndarray | None = None,
    written: Written = (),
) -> Columns:
    """Columns of n samples, by the rules above; {} for none.

    Fields in `fixed` are 1-D arrays known to have one length: stacked, without `_length`. `expected` must be there
    even if no sample has them. `ordinals` (n) only name samples in errors. An array of `written` whose row views still
    are the samples' values, in order, is used as it is.
    Dtypes: Python bool, int and float become bool, int64 and float64, arrays and numpy scalars keep theirs; where they
    differ inside a field see `promote`. Raises DataError for a field that a sample lacks, ConfigError for values
    that do not fit together.
    """
    names = field_names(samples, expected, ordinals)
    columns: Columns = {}
    for name in names:
        values = [sample[name] for sample in samples]
        whole = _written_whole(values, written, name in fixed)
        if whole is not None:
            columns[name] = whole
            continue
        pieces = _pieces(name, values, name in fixed)
        column = columns[name] = _join(name, pieces, len(samples), np.empty)
        if any(piece.ragged for piece in pieces):
            if length_name(name) in names:
                raise ConfigError(
                    f"field {name!r} is padded and its lengths are called {length_name(name)!r}, but the samples have "
                    f"a field of that name: rename one of them"
                )
            if not isinstance(column, list):
                columns[length_name(name)] = np.fromiter(map(len, values), np.int64, len(values))
    return columns


def assemble(parts: Sequence[tuple[Rows, Columns]], total: int, allocate: Allocate) -> Columns:
    """The columns of `total` samples of which each part holds those at its rows; every row belongs to one part.

    Equal to `collate` of all the samples. Arrays are written once, into what `allocate` gives. Raises DataError where a
    part lacks a field, ConfigError for parts that do not fit together.
    """
    parts = [(rows, columns) for rows, columns in parts if columns]
    names = list(dict.fromkeys(name for _, columns in parts for name in _fields(columns)))
    result: Columns = {}
    for name in names:
        pieces = []
        for rows, columns in parts:
            if name not in columns:
                raise DataError(
                    f"field {name!r} is missing in the samples at rows {rows} of a batch that has it elsewhere"
                )
            data = columns[name]
            pieces.append(_Piece(rows, data, _is_ragged(name, columns)))
        column = result[name] = _join(name, pieces, total, allocate)
        if any(piece.ragged for piece in pieces) and not isinstance(column, list):
            lengths = [_Piece(rows, columns[length_name(name)]) for rows, columns in parts]
            result[length_name(name)] = _join(length_name(name), lengths, total, allocate)
    return result


def length_name(field: str) -> str:
    """The column that holds a padded field's lengths (int64)."""
    return f"{field}_length"


def promote(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype for values of both: `np.result_type`, made independent of the order in which dtypes are met.

    numpy's own promotion of three dtypes depends on their grouping: int8 and uint8 have two smallest common types,
    int16 and float16. It does not when float16 takes in no integers and float32 those of int16: so float16 with int8 or
    uint8 is float32 here, and uint16 with float16 or float32 is float64 (complex alike).
    """
    if a == b:
        return a
    if "c" in (a.kind, b.kind):
        real = promote(_real(a), _real(b))
        return np.dtype(np.complex64 if real.itemsize <= 4 else np.complex128)
    whole, part = (a, b) if b.kind == "f" else (b, a)
    if part.kind == "f" and whole.kind in "iu":
        fits = whole.itemsize == 1 or whole == np.int16
        return np.dtype(np.float32) if fits and part.itemsize <= 4 else np.dtype(np.float64)
    return np.result_type(a, b)


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def field_names(
    samples: Sequence[dict[str, Any]], expected: Iterable[str], ordinals: Sequence[int] | np.ndarray | None
) -> list[str]:
    """The fields that all samples have, in the order of the first; DataError for the first sample that lacks one."""
    if not samples:
        return []
    names = list(samples[0])
    first = samples[0].keys()
    different = [sample for sample in samples if sample.keys() != first]
    names = list(dict.fromkeys([*names, *(name for sample in different for name in sample), *expected]))
    for row, sample in enumerate(samples if different or len(names) > len(first) else ()):
        lacking = [name for name in names if name not in sample]
        if lacking:
            raise DataError(
                f"field {lacking[0]!r} is missing (the sample has {', '.join(map(repr, sample)) or 'no fields'}): "
                f"fill it in with .map, or .select only what all samples have",
                sample=None if ordinals is None else int(ordinals[row]),
                key=sample.get("__key__"),
            )
    return names


def _written_whole(values: list[Any], written: Written, fixed: bool) -> np.ndarray | None:
    for whole, views in written:
        if values[0] is not views[0] or len(values) != len(views) or not (fixed or whole.ndim > 2):
            continue
        if all(value is view for value, view in zip(values, views, strict=True)):
            return whole
    return None


def _pieces(name: str, values: list[Any], fixed: bool) -> list[_Piece]:
    """The values as pieces to join; runs of one plain type as one piece, which is only quicker."""
    everything = slice(0, len(values))
    kinds = set(map(type, values))
    if len(kinds) == 1:
        (kind,) = kinds
        if kind in {bool, float}:
            return [_Piece(everything, np.array(values))]
        if kind is int and min(values) >= -(1 << 63) and max(values) < 1 << 63:
            return [_Piece(everything, np.array(values, np.int64))]
        if issubclass(kind, np.number | np.bool_) and _is_numeric(values[0].dtype):
            return [_Piece(everything, np.array(values))]
        if kind in {str, bytes, dict, type(None)}:
            return [_Piece(everything, values)]
    return [_piece(name, value, row, fixed) for row, value in enumerate(values)]


def _piece(name: str, value: Any, row: int, fixed: bool) -> _Piece:
    rows = slice(row, row + 1)
    if type(value) in _NUMBERS:
        return _Piece(rows, _numbers(name, [value]))
    if isinstance(value, (list, tuple)):
        if not value:
            return _Piece(rows, _NO_ITEMS, ragged=True)
        if all(kind in _NUMBERS or issubclass(kind, np.number | np.bool_) for kind in set(map(type, value))):
            return _Piece(rows, _numbers(name, value)[None], ragged=not fixed)
    elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        data = np.asarray(value)
        if _is_numeric(data.dtype):
            return _Piece(rows, data[None], ragged=data.ndim == 1 and not fixed)
    return _Piece(rows, [value])


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    """Numbers of at most 64 bits (a part): what a tensor can hold."""
    return dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _numbers(name: str, values: Sequence[Any]) -> np.ndarray:
    array = np.asarray(values)
    if not _is_numeric(array.dtype):
        raise ConfigError(f"field {name!r} has numbers that do not fit into 64 bits, such as {max(values, key=abs)}")
    return array


def _join(name: str, pieces: Sequence[_Piece], total: int, allocate: Allocate) -> Column:
    """One column of all rows; the single place where values of a field meet."""
    arrays = [(piece, piece.data) for piece in pieces if isinstance(piece.data, np.ndarray)]
    if len(arrays) < len(pieces):
        return _join_lists(name, pieces, total)
    shapes = {(data.ndim if piece.ragged else data.shape[1:], piece.ragged) for piece, data in arrays}
    if len(shapes) > 1:
        raise ConfigError(_misfit(name, [data for _, data in arrays]))
    dtype = reduce(promote, {data.dtype.newbyteorder("=") for _, data in arrays})
    if not arrays[0][0].ragged:
        out = allocate((total, *arrays[0][1].shape[1:]), dtype)
        for piece, data in arrays:
            out[piece.rows] = data
        return out
    out = allocate((total, max(data.shape[1] for _, data in arrays)), dtype)
    for piece, data in arrays:
        width = data.shape[1]
        out[piece.rows, :width] = data
        out[piece.rows, width:] = 0
    return out


def _join_lists(name: str, pieces: Sequence[_Piece], total: int) -> list[Any]:
    column: list[Any] = [None] * total
    places = np.arange(total)
    for piece in pieces:
        rows = places[piece.rows].tolist()
        if isinstance(piece.data, np.ndarray) and not piece.says_nothing:
            other = next(type(value).__name__ for p in pieces if isinstance(p.data, list) for value in p.data)
            raise ConfigError(
                f"field {name!r} holds numbers or arrays in some samples and {other} in others; make it one of them "
                f"with .map, or pass .batch(collate=...)"
            )
        values = piece.data if isinstance(piece.data, list) else [[] for _ in rows]
        for row, value in zip(rows, values, strict=True):
            column[row] = value
    return column


def _misfit(name: str, arrays: Sequence[np.ndarray]) -> str:
    shapes = list(dict.fromkeys(data.shape[1:] for data in arrays))
    shown = ", ".join(map(str, shapes[:4])) + (", ..." if len(shapes) > 4 else "")
    start = f"field {name!r} has values of shapes {shown}, which cannot be stacked: "
    if all(len(shape) == 3 for shape in shapes):
        return start + f"give images one size, as in .decode({name}=ri.images.RandomResizedCrop(224))"
    if all(len(shape) == 1 for shape in shapes):
        return start + "it comes from a source of fixed length; give what has another length a name of its own"
    return start + "pad or cut them to one shape in .map, or pass .batch(collate=...)"


def _is_ragged(name: str, columns: Columns) -> bool:
    data = columns[name]
    return isinstance(data, np.ndarray) and data.ndim == 2 and length_name(name) in columns


def _fields(columns: Columns) -> list[str]:
    """The names of a part's fields, without the lengths of padded ones."""
    lengths = {length_name(name) for name in columns if _is_ragged(name, columns)}
    return [name for name in columns if name not in lengths]
