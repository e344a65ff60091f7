"""One schema of several sources' schemas, where they agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rayingest.errors import ConfigError
from rayingest.transforms.schema import FieldType, Schema

_KINDS = {"i": "iu", "u": "iu"}


def agreed(schemas: Mapping[str, Schema]) -> dict[str, FieldType]:
    """The schema that the samples of all sources, by their names, fit into.

    All must have the same fields, each of one kind and shape; whole numbers of different sizes become the larger ones,
    so do fractions. ConfigError names the source and the field that do not agree with the first source's.
    """
    (first, found), *others = schemas.items()
    made = dict(found)
    for name, schema in others:
        for field in [*made, *schema]:
            if field not in schema or field not in made:
                one, other = (first, name) if field in made else (name, first)
                raise ConfigError(
                    f"source {one!r} has a field {field!r}, and source {other!r} has none: .select what all have, or "
                    "fill it in with .map"
                )
            both = _both(made[field], schema[field])
            if both is None:
                raise ConfigError(
                    f"field {field!r} is {_words(schema[field])} in source {name!r}, and {_words(made[field])} in "
                    f"source {first!r}: make it one of them with .decode or .map, or pass .batch(collate=...)"
                )
            made[field] = both
    return made


def _both(a: FieldType, b: FieldType) -> FieldType | None:
    if (a.dtype is None, a.ndim, a.padded) != (b.dtype is None, b.ndim, b.padded):
        return None
    if a.shape is not None and b.shape is not None and a.shape != b.shape:
        return None
    if a.dtype is None or b.dtype is None:
        return a
    dtype = np.result_type(a.dtype, b.dtype)
    if (
        a.dtype.kind not in _KINDS.get(b.dtype.kind, b.dtype.kind)
        or dtype.kind not in a.dtype.kind + b.dtype.kind
    ):
        return None
    return replace(a, dtype=dtype, shape=a.shape if a.shape == b.shape else None)


def _words(field: FieldType) -> str:
    return f"{field}, padded to one length" if field.padded else str(field)
