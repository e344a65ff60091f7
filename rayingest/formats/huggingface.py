"""Convert features of Hugging Face datasets in Arrow tables: media and arrays.

Owns what the schema's metadata (https://huggingface.co/docs/datasets, `Features`) say of columns:
media are a struct of bytes and a path, arrays are lists of lists. Other columns stay as they are.
"""

from __future__ import annotations

import json

import pyarrow as pa

from rayingest.errors import DataError
from rayingest.formats.columns import with_encodings
from rayingest.formats.extension_types import array_column, is_encoded

_MEDIA = {"Image", "Audio", "Video"}
_ARRAYS = {"Array2D", "Array3D", "Array4D", "Array5D"}


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
        elif kind in _ARRAYS and not is_encoded(table.schema.field(name)):
            try:
                column, encoding = array_column(
                    table.column(name), feature["shape"], feature["dtype"]
                )
            except ValueError as error:
                raise DataError(f"field {name!r} is an {kind}: {error}") from error
            table = table.set_column(place, name, column)
            if encoding is not None:
                encodings[name] = encoding
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
