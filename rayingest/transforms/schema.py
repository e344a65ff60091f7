"""The schema: which fields a stream's samples have, and what each field's column is in every batch.

Learnt once, from the first samples of the data, and from then on a rule that each sample keeps or is at fault by
itself. So what a batch looks like never depends on which rows are in it, nor an error on which rows met: numbers become
a 1-D array, arrays of two and more dimensions are stacked, one-dimensional arrays and flat lists of numbers are always
padded at the end and come with `<field>_length`, everything else is a list. With a `Pad` arrays of more dimensions, and
lists of lists, are padded too. Putting columns together is not done here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.transforms.padding import PLAIN, Pad, mask_name
from rayingest.transforms.tensors import as_array

RESERVED = ("__index__", "__source__", "__valid__")
"""Columns that every batch may have of the loader's own."""

NOTHING: Mapping[str, Pad] = MappingProxyType({})
_NUMBERS = frozenset({bool, int, float, complex})
_LISTED = frozenset({str, bytes, dict, type(None)})
_INT64, _FLOAT64, _BOOL = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.bool_)


@dataclass(frozen=True)
class FieldType:
    """What becomes of one field: an array of `dtype` with `ndim` dimensions a sample, or (dtype None) a list.

    `padded`: the first axes are of any length, and padded as `pad` says; others are stacked. `shape`: that of every
    sample's array, or of its axes that are not padded; None where there are none, or the first samples do not share one
    (then a batch of different shapes is an error). `nullable`: None is left as it is, which no column can hold.
    """

    dtype: np.dtype[Any] | None = None
    ndim: int = 0
    padded: bool = False
    shape: tuple[int, ...] | None = None
    pad: Pad = PLAIN
    nullable: bool = False

    def __str__(self) -> str:
        if self.dtype is None:
            return "no number or array of numbers"
        if not self.ndim:
            return f"{self.dtype}"
        plain = self.shape is None or self.padded
        return f"an array of {self.dtype} {f'with {self.ndim} dimensions' if plain else self.shape}"


LISTED = FieldType()
Schema = Mapping[str, FieldType]
"""The fields in their order."""


def infer(
    samples: Sequence[Mapping[str, Any]],
    fixed: Collection[str] = (),
    padding: Mapping[str, Pad] = NOTHING,
) -> dict[str, FieldType]:
    """The schema that these samples suggest: all fields that occur, and the smallest type that holds their numbers.

    1-D arrays of the fields in `fixed` are known to have one length; `padding` says what is padded besides 1-D arrays.
    None and lists without items say nothing where others do. Raises ConfigError for values of one field that have no
    column in common, and for names that are taken.
    """
    names = dict.fromkeys(name for sample in samples for name in sample)
    schema = {
        name: _common(
            name, [s[name] for s in samples if name in s], name in fixed, padding.get(name)
        )
        for name in names
    }
    if not names and samples:
        raise ConfigError("the samples have no fields: a .map that returns an empty dict?")
    for name, field in schema.items():
        if not isinstance(name, str):
            raise ConfigError(f"a field is called {name!r}: names of fields are strings")
        if name in RESERVED:
            raise ConfigError(
                f"a field is called {name!r}, which the loader adds itself: rename it with .select or .map"
            )
        if field.padded and length_name(name) in names:
            raise ConfigError(
                f"field {name!r} is padded and its lengths are called {length_name(name)!r}, but the samples have a "
                "field of that name: rename one of them"
            )
    return schema


def with_padding(schema: Schema, padding: Mapping[str, Pad]) -> dict[str, FieldType]:
    """The schema with these fields padded so. ConfigError for a field that cannot be."""
    made = dict(schema)
    for name, pad in padding.items():
        field = made.get(name)
        if field is None:
            raise ConfigError(
                f"pad: there is no field {name!r}; there are {', '.join(map(repr, schema)) or 'none'}"
            )
        if not field.padded or field.dtype is None or field.ndim < pad.axes:
            raise ConfigError(
                f"pad: field {name!r} is {field}: nothing to pad on {pad.axes} axes of any length"
            )
        if pad.mask and mask_name(name) in schema:
            raise ConfigError(
                f"pad: the mask of {name!r} is called {mask_name(name)!r}, as a field is: rename one"
            )
        pad.check(name, field.dtype)
        made[name] = replace(field, pad=pad)
    return made


def schema_to_json(schema: Schema) -> list[list[Any]]:
    """A schema as JSON, without the padding, which a description says."""
    return [
        [
            name,
            None if one.dtype is None else one.dtype.str,
            one.ndim,
            one.padded,
            one.shape and [*one.shape],
        ]
        for name, one in schema.items()
    ]


def schema_from_json(rows: Sequence[Sequence[Any]]) -> dict[str, FieldType]:
    """The schema that `schema_to_json` gave."""
    return {
        name: FieldType(
            None if dtype is None else np.dtype(dtype), ndim, padded, shape and tuple(shape)
        )
        for name, dtype, ndim, padded, shape in rows
    }


def conform(sample: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The sample with its fields in the schema's order, and arrays where the schema has them.

    Numbers may stay Python's; what is an array of the field's dtype already is not copied. Raises DataError for a field
    too many or too few, and for a value that its column cannot hold exactly.
    """
    if sample.keys() != schema.keys():
        raise DataError(_different_fields(sample, schema))
    return {
        name: field.pad.fit(name, taken)
        if (taken := _take(name, sample[name], field)) is not None and field.padded
        else taken
        for name, field in schema.items()
    }


def length_name(field: str) -> str:
    """The column that holds a padded field's lengths (int64)."""
    return f"{field}_length"


def _common(name: str, values: Sequence[Any], fixed: bool, pad: Pad | None) -> FieldType:
    types = [type_ for value in values if (type_ := _type_of(name, value, fixed, pad)) is not None]
    shapes = {(type_.dtype is None, type_.ndim) for type_ in types}
    if len(shapes) > 1:
        found = ", ".join(
            dict.fromkeys(f"{type(v).__name__} ({_type_of(name, v, fixed, pad)})" for v in values)
        )
        raise ConfigError(
            f"field {name!r} is not of one kind in the first samples: {found}; make it one with .map, or pass "
            ".batch(collate=...)"
        )
    if types:
        first = types[0]
        dtypes = [type_.dtype.newbyteorder("=") for type_ in types if type_.dtype is not None]
        if not dtypes:
            return LISTED
        shape = first.shape if len({type_.shape for type_ in types}) == 1 else None
        return FieldType(np.result_type(*dtypes), first.ndim, first.padded, shape)
    only_empty = all(isinstance(value, (list, tuple)) for value in values)
    return (
        FieldType(_INT64, 1 if pad is None else pad.axes, padded=not fixed)
        if only_empty
        else LISTED
    )


def _type_of(name: str, value: Any, fixed: bool, pad: Pad | None) -> FieldType | None:
    """What the value by itself suggests; None for nothing."""
    if value is None or (isinstance(value, (list, tuple)) and not value):
        return None
    if pad is not None and pad.axes > 1 and _is_nested(value):
        inner = _common(name, [number for part in value for number in part], fixed, None)
        return (
            None if not any(map(len, value)) else replace(inner, ndim=inner.ndim + 2, padded=True)
        )
    array = _as_array(name, value)
    if array is None:
        return LISTED
    if pad is not None and array.ndim > 1 and array.ndim >= pad.axes:
        return FieldType(array.dtype, array.ndim, True, array.shape[pad.axes :] or None)
    padded = array.ndim == 1 and not fixed
    return FieldType(
        array.dtype, array.ndim, padded, array.shape if array.ndim and not padded else None
    )


def _is_nested(value: Any) -> bool:
    """Whether it is a list of lists, or of 1-D arrays."""
    return isinstance(value, (list, tuple)) and all(
        isinstance(part, (list, tuple)) or (isinstance(part, np.ndarray) and part.ndim == 1)
        for part in value
    )


def _as_array(name: str, value: Any) -> np.ndarray | None:
    """Numbers as an array; None for what is none. DataError for what is none that a batch can have."""
    kind = type(value)
    if kind in _LISTED:
        return None
    if isinstance(value, (list, tuple)):
        if not all(
            kind in _NUMBERS or issubclass(kind, np.number | np.bool_)
            for kind in set(map(type, value))
        ):
            return None
    elif kind not in _NUMBERS and not (
        hasattr(value, "__array__") or hasattr(value, "__array_interface__")
    ):
        return None
    try:
        array = as_array(value)
    except Exception as error:  # numbers that numpy has not, say
        raise DataError(
            f"field {name!r} is a {kind.__name__} that cannot be made an array: {error}"
        ) from error
    if _is_numeric(array.dtype):
        return array
    if kind in _NUMBERS or isinstance(value, (list, tuple)):
        raise DataError(f"field {name!r} has numbers that do not fit into 64 bits: {_shown(value)}")
    return None


def _take(name: str, value: Any, field: FieldType) -> Any:
    kind = type(value)
    if field.dtype is None:
        if (
            kind in _LISTED
            or (isinstance(value, (list, tuple)) and not value)
            or _as_array(name, value) is None
        ):
            return value
    elif kind is np.ndarray or isinstance(value, np.generic):
        if value.dtype == field.dtype and _fits(value.shape, field):
            return value
    elif not field.ndim and (
        (kind is int and field.dtype == _INT64 and -(1 << 63) <= value < 1 << 63)
        or (kind is float and field.dtype == _FLOAT64)
        or (kind is bool and field.dtype == _BOOL)
    ):
        return value
    if field.dtype is not None:
        if field.padded and field.pad.axes > 1 and field.ndim == 2 and _is_nested(value):
            line = FieldType(field.dtype, 1, padded=True)
            return [_take(name, part, line) for part in value]
        empty = field.ndim == 1 and isinstance(value, (list, tuple)) and not value
        array = np.zeros(0, field.dtype) if empty else _as_array(name, value)
        if array is not None and _fits(array.shape, field):
            taken = _exactly(array, field.dtype)
            if taken is not None:
                return taken
    if value is None and field.nullable:
        return None
    raise DataError(
        f"field {name!r} is {_described(name, value)} here, and {field} in the first samples of the data: make it one "
        "of them with .map, or pass .batch(collate=...)"
    )


def _fits(shape: tuple[int, ...], field: FieldType) -> bool:
    return len(shape) == field.ndim and (
        field.shape is None or shape[-len(field.shape) :] == field.shape
    )


def _exactly(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray | None:
    """The same numbers in that dtype; None where it does not have them."""
    if np.can_cast(array.dtype, dtype, "safe") and (
        array.dtype.kind in "b" + dtype.kind or array.dtype.itemsize < 8
    ):
        return array.astype(dtype, copy=False)
    if array.dtype.kind == "c" and dtype.kind != "c":
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(dtype, casting="unsafe")
        parts = cast.real if array.dtype.kind != "c" and dtype.kind == "c" else cast
        back = parts.astype(array.dtype, casting="unsafe")
    same = np.array_equal(back, array, equal_nan=array.dtype.kind in "fc") and np.array_equal(
        cast < 0, array < 0
    )
    return cast if same else None


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    """Numbers of at most 64 bits (a part): what a tensor can hold."""
    return dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _different_fields(sample: Mapping[str, Any], schema: Schema) -> str:
    lacking = [name for name in schema if name not in sample]
    if lacking:
        return (
            f"field {lacking[0]!r} is missing (the sample has {', '.join(map(repr, sample)) or 'no fields'}): fill it "
            "in with .map, or .select only what all samples have"
        )
    more = next(name for name in sample if name not in schema)
    return (
        f"field {more!r} is none of the first samples' ({', '.join(map(repr, schema)) or 'no fields'}): .select only "
        "what all samples have, or fill it in with .map"
    )


def _described(name: str, value: Any) -> str:
    array = None if value is None else _as_array(name, value)
    if array is None:
        return "null" if value is None else f"{type(value).__name__} {_shown(value)}"
    return f"{FieldType(array.dtype, array.ndim, shape=array.shape)}" + (
        "" if array.ndim else f" ({_shown(value)})"
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
