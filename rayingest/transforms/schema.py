"""Decide which fields a stream's samples have, and what each field's column is in every batch.

The schema is learned once, from the first samples of the data. From then on it is a rule: each
sample conforms to it or is bad by itself. So the columns of a batch never depend on its rows, nor
does an error depend on which rows come together:

- numbers become a 1-D array;
- 1-D arrays and flat lists of numbers are padded, and come with `<field>_length`, unless their
  source says that they have one length, and the first samples do not differ;
- arrays of two and more dimensions are stacked; with a `Pad` they, and lists of lists, are padded;
- everything else becomes a list.

Owns inferring a schema, checking samples against it, and merging the schemas of several sources.
`collate` puts columns together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.transforms.padding import PLAIN, Pad, mask_name
from rayingest.util.names import show_names

RESERVED = ("__index__", "__source__", "__valid__")
"""Columns that the loader adds to batches."""

NO_PADDING: Mapping[str, Pad] = MappingProxyType({})
_NUMBERS = frozenset({bool, int, float, complex})
_NEVER_NUMBERS = frozenset({str, bytes, dict, type(None)})
_MERGED_KINDS = {"i": "iu", "u": "iu"}
"""Kinds of dtypes that merge with another kind."""
_INT64, _FLOAT64, _BOOL = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.bool_)


@dataclass(frozen=True)
class FieldType:
    """The type of one field: arrays of `dtype` with `ndim` dimensions a sample, or a list (None).

    - `padded`: the first axes have any length and are padded as `pad` says; others are stacked.
    - `shape`: of every sample's array, or of its axes that are not padded. None if there are none,
      or if the first samples differ (then a batch of different shapes is an error).
    - `nullable`: None is left as it is, although no column can hold it.
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


def infer_schema(
    samples: Sequence[Mapping[str, Any]],
    fixed: Collection[str] = (),
    padding: Mapping[str, Pad] = NO_PADDING,
) -> dict[str, FieldType]:
    """Return the schema that these samples suggest.

    It has all fields that occur, with the smallest dtype that holds their numbers. 1-D arrays of
    the fields in `fixed` have one length, unless these samples or `padding` say otherwise;
    `padding` says which other arrays are padded. None and empty lists say nothing if other samples
    do. Raises ConfigError for values of one field that fit no common column, and for reserved
    names.
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
            raise ConfigError(f"a field has the name {name!r}: names of fields are strings")
        if name in RESERVED:
            raise ConfigError(
                f"the name {name!r} is reserved for a column that the loader adds: rename the "
                "field with .select or .map"
            )
        if field.padded and length_name(name) in names:
            raise ConfigError(
                f"field {name!r} is padded, which adds the column {length_name(name)!r}, but the "
                "samples have a field of that name: rename one of them"
            )
    return schema


def with_padding(schema: Schema, padding: Mapping[str, Pad]) -> dict[str, FieldType]:
    """Return the schema with these fields' padding.

    ConfigError for a field that cannot be padded.
    """
    padded = dict(schema)
    for name, pad in padding.items():
        field = padded.get(name)
        if field is None:
            raise ConfigError(
                f"pad: there is no field {name!r}; there are {show_names(schema, name)}"
            )
        if not field.padded or field.dtype is None or field.ndim < pad.axes:
            raise ConfigError(
                f"pad: field {name!r} is {field}, which has no {pad.axes} axes to pad"
            )
        if pad.mask and mask_name(name) in schema:
            raise ConfigError(
                f"pad: mask=True for {name!r} adds the column {mask_name(name)!r}, but the samples "
                "have a field of that name: rename one of them"
            )
        pad.check(name, field.dtype)
        padded[name] = replace(field, pad=pad)
    return padded


def schema_to_json(schema: Schema) -> list[list[Any]]:
    """Return a schema as JSON, without the padding, which the description holds."""
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
    """Return the schema that `schema_to_json` wrote."""
    return {
        name: FieldType(
            None if dtype is None else np.dtype(dtype), ndim, padded, shape and tuple(shape)
        )
        for name, dtype, ndim, padded, shape in rows
    }


def conform(sample: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the sample in the schema's order of fields, with arrays where the schema has them.

    Numbers may stay Python's; an array that already has the field's dtype is not copied. Raises
    DataError for an extra or missing field, and for a value that its column cannot hold exactly.
    """
    if sample.keys() != schema.keys():
        raise DataError(_field_mismatch(sample, schema))
    return {
        name: field.pad.fit(name, taken)
        if (taken := _take(name, sample[name], field)) is not None and field.padded
        else taken
        for name, field in schema.items()
    }


def length_name(field: str) -> str:
    """Return the name of the column that holds a padded field's lengths (int64)."""
    return f"{field}_length"


def as_array(value: Any) -> np.ndarray:
    """Return a tensor, or another value that converts itself, as a numpy array.

    Not copied if possible; a tensor's gradients are left behind. A tensor is known by its methods,
    so torch is not imported. TypeError, with a way out, for a dtype that numpy lacks, and for a
    masked array that masks a value: an array has no place for the mask.
    """
    if isinstance(value, np.ma.MaskedArray):
        return without_mask(value)
    if not hasattr(value, "detach"):
        return np.asarray(value)
    if hasattr(value, "get_mask"):  # torch's masked tensor, which numpy would take without its mask
        return without_mask(
            np.ma.masked_array(as_array(value.get_data()), ~as_array(value.get_mask()))
        )
    tensor = value.detach().cpu()
    try:
        return np.asarray(tensor.numpy())
    except TypeError as error:
        if "ScalarType" not in str(error):  # of a sparse tensor, say
            raise
        raise TypeError(
            f"numpy has no {str(tensor.dtype).removeprefix('torch.')}: return it as .float(), or "
            f"its bits as .view(torch.int{8 * tensor.element_size()}) and view these back in "
            "after_copy"
        ) from error


def without_mask(array: np.ma.MaskedArray[Any, Any]) -> np.ndarray:
    """Return the data of a masked array. TypeError, with a way out, if it masks a value."""
    if np.ma.is_masked(array):
        raise TypeError(
            "a masked value would come as data: fill it in with array.filled(value), or return "
            "array.data and array.mask as two fields"
        )
    return np.asarray(array.data)


def merge_schemas(schemas: Mapping[str, Schema]) -> dict[str, FieldType]:
    """Return the schema into which the samples of all sources, given by name, fit.

    All sources must have the same fields, each of one kind and shape; integers of different sizes
    become the largest, and so do floats. ConfigError names the source and the field that differ
    from the first source's.
    """
    (first, schema), *others = schemas.items()
    merged = dict(schema)
    for name, other in others:
        for field in [*merged, *other]:
            if field not in other or field not in merged:
                has, lacks = (first, name) if field in merged else (name, first)
                raise ConfigError(
                    f"sources differ in fields: {has!r} has field {field!r}, {lacks!r} does not; "
                    ".select only fields that all sources have, or add the field with .map"
                )
            both = _merge_types(merged[field], other[field])
            if both is None:
                raise ConfigError(
                    f"field {field!r} is {_describe_type(other[field])} in source {name!r}, "
                    f"and {_describe_type(merged[field])} in source {first!r}: convert it to "
                    "one of the two with .decode or .map, or pass .batch(collate=...)"
                )
            merged[field] = both
    return merged


def _merge_types(a: FieldType, b: FieldType) -> FieldType | None:
    if (a.dtype is None, a.ndim, a.padded) != (b.dtype is None, b.ndim, b.padded):
        return None
    if a.shape is not None and b.shape is not None and a.shape != b.shape:
        return None
    if a.dtype is None or b.dtype is None:
        return a
    dtype = np.result_type(a.dtype, b.dtype)
    if (
        a.dtype.kind not in _MERGED_KINDS.get(b.dtype.kind, b.dtype.kind)
        or dtype.kind not in a.dtype.kind + b.dtype.kind
    ):
        return None
    return replace(a, dtype=dtype, shape=a.shape if a.shape == b.shape else None)


def _describe_type(field: FieldType) -> str:
    return f"{field}, padded to one length" if field.padded else str(field)


def _common(name: str, values: Sequence[Any], fixed: bool, pad: Pad | None) -> FieldType:
    types = [type_ for value in values if (type_ := _type_of(name, value, fixed, pad)) is not None]
    shapes = {(type_.dtype is None, type_.ndim) for type_ in types}
    if len(shapes) > 1:
        found = ", ".join(
            dict.fromkeys(f"{type(v).__name__} ({_type_of(name, v, fixed, pad)})" for v in values)
        )
        raise ConfigError(
            f"field {name!r} is not of one kind in the first samples: {found}; "
            "convert it to one kind with .map, or pass .batch(collate=...)"
        )
    if types:
        first = types[0]
        dtypes = [type_.dtype.newbyteorder("=") for type_ in types if type_.dtype is not None]
        if not dtypes:
            return LISTED
        shape = first.shape if len({type_.shape for type_ in types}) == 1 else None
        # Lengths that differ, and arrays without numbers, promise no length.
        padded = first.padded or (first.ndim == 1 and shape in {None, (0,)})
        shape = None if padded and first.ndim == 1 else shape
        return FieldType(np.result_type(*dtypes), first.ndim, padded, shape)
    only_empty = all(isinstance(value, (list, tuple)) for value in values)
    return FieldType(_INT64, 1 if pad is None else pad.axes, padded=True) if only_empty else LISTED


def _type_of(name: str, value: Any, fixed: bool, pad: Pad | None) -> FieldType | None:
    """Return the type that one value suggests; None if it suggests none."""
    if value is None or (isinstance(value, (list, tuple)) and not value):
        return None
    if pad is not None and pad.axes > 1 and _is_nested(value):
        inner = _common(name, [number for part in value for number in part], fixed, None)
        return (
            None if not any(map(len, value)) else replace(inner, ndim=inner.ndim + 2, padded=True)
        )
    array = _numeric_array(name, value)
    if array is None:
        return LISTED
    if pad is not None and array.ndim > 1 and array.ndim >= pad.axes:
        return FieldType(array.dtype, array.ndim, True, array.shape[pad.axes :] or None)
    padded = array.ndim == 1 and (pad is not None or not fixed)
    return FieldType(
        array.dtype, array.ndim, padded, array.shape if array.ndim and not padded else None
    )


def _is_nested(value: Any) -> bool:
    """Return whether the value is a list of lists, or of 1-D arrays."""
    return isinstance(value, (list, tuple)) and all(
        isinstance(part, (list, tuple)) or (isinstance(part, np.ndarray) and part.ndim == 1)
        for part in value
    )


def _numeric_array(name: str, value: Any) -> np.ndarray | None:
    """Return numbers as an array, None if the value is not numeric.

    DataError if its dtype cannot be batched.
    """
    kind = type(value)
    if kind in _NEVER_NUMBERS:
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
    except Exception as error:  # of numbers, say, for which numpy has no dtype
        raise DataError(
            f"field {name!r} is a {kind.__name__} that cannot be made an array: {error}"
        ) from error
    if _is_numeric(array.dtype):
        return array
    if kind in _NUMBERS or isinstance(value, (list, tuple)):
        raise DataError(
            f"field {name!r} has numbers that do not fit into 64 bits: {_shorten(value)}"
        )
    return None


def _take(name: str, value: Any, field: FieldType) -> Any:
    kind = type(value)
    if field.dtype is None:
        if (
            kind in _NEVER_NUMBERS
            or (isinstance(value, (list, tuple)) and not value)
            or _numeric_array(name, value) is None
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
        array = np.zeros(0, field.dtype) if empty else _numeric_array(name, value)
        if array is not None and _fits(array.shape, field):
            taken = _exactly(array, field.dtype)
            if taken is not None:
                return taken
    if value is None and field.nullable:
        return None
    array = None if field.dtype is None else _numeric_array(name, value)
    is_longer = array is not None and array.ndim == field.ndim and not _fits(array.shape, field)
    axes = "" if array is None or array.shape[1:] == (field.shape or ())[1:] else "axes=2"
    advice = f"pad it with .batch(pad={{{name!r}: ri.Pad({axes})}})" if is_longer else ""
    raise DataError(
        f"field {name!r} is {_describe(name, value)} here, and {field} in the first samples of "
        f"the data: {advice or 'make it one of them with .map'}, or pass .batch(collate=...)"
    )


def _fits(shape: tuple[int, ...], field: FieldType) -> bool:
    return len(shape) == field.ndim and (
        field.shape is None or shape[-len(field.shape) :] == field.shape
    )


def _exactly(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray | None:
    """Return the same numbers in that dtype; None if it cannot hold them exactly."""
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
    """Return whether a tensor can hold this dtype: numbers of at most 64 bits (a part)."""
    return dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _field_mismatch(sample: Mapping[str, Any], schema: Schema) -> str:
    lacking = [name for name in schema if name not in sample]
    if lacking:
        return (
            f"field {lacking[0]!r} is missing (the sample has "
            f"{show_names(sample)}): fill it in with .map, or .select "
            "only fields that all samples have"
        )
    more = next(name for name in sample if name not in schema)
    return (
        f"field {more!r} is not among the first samples' fields "
        f"({show_names(schema)}): .select only fields that all samples have, "
        "or fill it in with .map"
    )


def _describe(name: str, value: Any) -> str:
    array = None if value is None else _numeric_array(name, value)
    if array is None:
        return "null" if value is None else f"{type(value).__name__} {_shorten(value)}"
    return f"{FieldType(array.dtype, array.ndim, shape=array.shape)}" + (
        "" if array.ndim else f" ({_shorten(value)})"
    )


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
