"""Features of Hugging Face datasets in Arrow tables: images, audio, video and arrays of one shape as what they are.

Owns what the schema's metadata say of columns (https://huggingface.co/docs/datasets, `Features`): media are kept as a
struct of bytes and a path, arrays as lists of lists. Other columns are as Arrow has them.
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
    """The table with columns of bytes, or of arrays' bytes, in the place of structs and nested lists.

    DataError where media are not in the table but in files that it names.
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
                encodings[name] = "jpg"  # whose decoder takes every kind of image
        elif kind in {"Array2D", "Array3D", "Array4D", "Array5D"}:
            shape, dtype = feature["shape"], np.dtype(feature["dtype"])
            column = _arrays(table.column(name), shape, dtype)
            if column is not None:
                table = table.set_column(place, name, column)
                encodings[name] = array_encoding(dtype, shape)
    return with_encodings(table, encodings) if encodings else table


def _media(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow.compute as pc  # slow to import, for a case that most readers of Parquet never meet

    data, path = pc.struct_field(column, "bytes"), pc.struct_field(column, "path")
    elsewhere = pc.and_(pc.is_null(data), pc.is_valid(path))
    if pc.any(elsewhere).as_py():
        raise DataError(
            f"field {name!r} names a file and does not hold it: write the data with its media embedded"
        )
    return data


def _arrays(column: pa.ChunkedArray, shape: list[Any], dtype: np.dtype[Any]) -> pa.Array | None:
    """The bytes of each array, None where they are not all there or not of this shape."""
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
