"""Convert features of Hugging Face datasets in Arrow tables: media and arrays of one shape.

Owns what the schema's metadata (https://huggingface.co/docs/datasets, `Features`) say of columns:
media are a struct of bytes and a path, arrays are lists of lists. Other columns stay as they are.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import DataError
from rayingest.formats.columns import array_encoding, fixed_column, with_encodings

_MEDIA = {"Image", "Audio", "Video"}


def convert_features(table: pa.Table) -> pa.Table:
    """Return the table with columns of bytes instead of structs and nested lists.

    DataError if the table names media files instead of holding them.
    """
    features = (
        json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        .get("info", {})
        .get("features", {})
    )
    encodings: dict[str, str] = {}
    for place, name in enumerate(table.column_names):
        feature = features.get(name)
        kind = feature.get("_type") if isinstance(feature, dict) else None
        if kind in _MEDIA and pa.types.is_struct(table.schema.field(name).type):
            table = table.set_column(place, name, _media(name, table.column(name)))
            if kind == "Image":
                encodings[name] = "jpg"  # its decoder takes every kind of image
        elif kind in {"Array2D", "Array3D", "Array4D", "Array5D"}:
            shape, dtype = feature["shape"], np.dtype(feature["dtype"])
            column = _arrays(table.column(name), shape, dtype)
            if column is not None:
                table = table.set_column(place, name, column)
                encodings[name] = array_encoding(dtype, shape)
    return with_encodings(table, encodings) if encodings else table


def _media(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow.compute as pc  # slow to import, and rarely needed

    data, path = pc.struct_field(column, "bytes"), pc.struct_field(column, "path")
    elsewhere = pc.and_(pc.is_null(data), pc.is_valid(path))
    if pc.any(elsewhere).as_py():
        raise DataError(
            f"field {name!r} names a file instead of holding it: write the data with embedded media"
        )
    return data


def _arrays(column: pa.ChunkedArray, shape: list[Any], dtype: np.dtype[Any]) -> pa.Array | None:
    """Return the bytes of each array, or None if a value is missing or has another shape."""
    values = column.combine_chunks()
    while pa.types.is_list(values.type):
        if values.null_count:
            return None
        values = values.flatten()
    if None in shape or values.null_count or len(values) != len(column) * math.prod(shape):
        return None
    data = np.asarray(
        values.to_pylist() if pa.types.is_boolean(values.type) else np.from_dlpack(values), dtype
    )
    return fixed_column(data.tobytes(), len(column))
