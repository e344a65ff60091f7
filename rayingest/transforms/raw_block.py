"""Read a raw block, an Arrow table of undecoded samples, row by row as Python values.

Owns the meaning of the columns of each kind of block, and the conversion of Arrow types. Every
value that it returns is a copy: nothing keeps a block's memory alive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayingest.errors import DataError
from rayingest.formats.columns import ENCODING, parse_array_encoding
from rayingest.formats.protocol import NUMBER
from rayingest.transforms.decoders import (
    Decoder,
    decoder_for,
    encoding_decoder,
    encoding_value,
    media_decoder,
)

OFFSET, FILE, FAULT, KEY, JSON, EXAMPLE = (
    "__offset__",
    "__file__",
    "__fault__",
    "__key__",
    "__json__",
    "__example__",
)
_PLAIN_NUMBERS = (pa.int64(), pa.float64(), pa.bool_())

Getter = Callable[[int], Any]


class RawBlock:
    """One raw block, read row by row. A block is of one of these kinds:

    - documents: a `__json__` column holds a line of JSON, or `__example__` a `tf.train.Example`,
      per sample; each row has fields of its own;
    - WebDataset members: has a `__key__` column; null means that the sample lacks that member;
    - numbers: has `__number__`, the number of each row;
    - typed columns: all others.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.names = tuple(name for name in table.column_names if name not in {OFFSET, FILE, FAULT})
        self.has_documents = JSON in self.names or EXAMPLE in self.names
        self.has_members = KEY in self.names
        self._getters: dict[str, Getter] = {}

    @cached_property
    def shard(self) -> str | None:
        """The shard's URL; None if the block does not name it."""
        url = (self.table.schema.metadata or {}).get(b"shard")
        return None if url is None else url.decode()

    @cached_property
    def faults(self) -> Mapping[int, str]:
        """Rows that the format could not read, by number, with the reason."""
        if FAULT not in self.table.column_names:
            return {}
        return {
            row: fault
            for row, fault in enumerate(self.table.column(FAULT).to_pylist())
            if fault is not None
        }

    def where(self, row: int) -> dict[str, Any]:
        """Return `shard`, `offset` and `key` of a row, for an error."""
        offset = (
            self.table.column(OFFSET)[row].as_py() if OFFSET in self.table.column_names else None
        )
        offset = row % self.table.num_rows if NUMBER in self.names else offset
        key = self.table.column(KEY)[row].as_py() if self.has_members else None
        shard = (
            self.table.column(FILE)[row].as_py() if FILE in self.table.column_names else self.shard
        )
        return {"shard": shard, "offset": offset, "key": key}

    def describe_split(self, row: int) -> str:
        """Return the cause of a missing member, if the files of a key lie apart in a tar, or "".

        Neighbouring files with one key are a sample, so such a key is there twice.
        """
        if not self.has_members:
            return ""
        keys = self.table.column(KEY)
        key = keys[row]
        if pc.sum(pc.equal(keys, key)).as_py() < 2:
            return ""
        return (
            f"; the files of key {key.as_py()!r} are not next to each other in the tar, so each "
            "part counts as a sample: write the tar again with its names sorted"
        )

    def document(self, row: int) -> Mapping[str, Any]:
        """Return the fields of a row of a block of documents.

        Raises DataError if the row holds no document. Reading a field of the result raises
        DataError if that field cannot be read.
        """
        if EXAMPLE in self.names:
            from rayingest.formats.tfrecord import Example

            return Example(self.table.column(EXAMPLE)[row].as_py(), self._lists)
        try:
            document = json.loads(self.table.column(JSON)[row].as_py())
        except (ValueError, RecursionError) as error:  # the latter from deep nesting
            raise DataError(f"not readable JSON: {error}") from error
        if not isinstance(document, dict):
            raise DataError(
                f"a line of JSON Lines must be an object, this one is a {type(document).__name__}"
            )
        return document | {
            name: self.value(name, row) for name in self._of_folders if name not in document
        }

    @cached_property
    def _of_folders(self) -> tuple[str, ...]:
        """Columns beside the documents, which the shard's folders give."""
        return tuple(name for name in self.names if name != JSON)

    @cached_property
    def _lists(self) -> frozenset[str]:
        return frozenset(json.loads(self._encoding(EXAMPLE) or "[]"))

    def value(self, name: str, row: int) -> Any:
        """Return the undecoded value of one field.

        int64, float64 and bool columns give Python numbers, narrower ones numpy scalars, so that a
        batch keeps the column's dtype. Lists of numbers give 1-D arrays; tensors and encoded arrays
        give arrays. Null is None. All else is Arrow's own Python value.
        """
        getter = self._getters.get(name)
        if getter is None:
            if name == NUMBER:
                return row
            encoding, column = self._encoding(name), self.table.column(name)
            decode = None if encoding is None else encoding_value(encoding)
            getter = self._getters[name] = (
                _getter(name, column) if decode is None else _decoded_getter(decode, column)
            )
        return getter(row)

    def default_decoder(self, name: str) -> Decoder | None:
        """Return the decoder of a column for which the user chose none; None if it stays as it is.

        The column's encoding decides or, for bytes, the extension that its name ends in.
        """
        encoding = self._encoding(name)
        if encoding is not None:
            is_list = pa.types.is_list(self.table.schema.field(name).type)
            return encoding_decoder(name, encoding, in_list=is_list)
        if not _is_binary(self.table.schema.field(name).type):
            return None
        return decoder_for(name) if self.has_members else media_decoder(name)

    def has_fixed_length(self, name: str) -> bool:
        """Return whether every value is a 1-D array of one length."""
        kind = self.table.schema.field(name).type
        array = parse_array_encoding(self._encoding(name) or "")
        if array is not None:
            return len(array[1]) == 1
        if isinstance(kind, pa.FixedShapeTensorType):
            return len(kind.shape) == 1
        return pa.types.is_fixed_size_list(kind) and is_number(kind.value_type)

    def is_encoded(self, name: str) -> bool:
        """Return whether the column's values are encodings of the real ones."""
        return self._encoding(name) is not None

    def _encoding(self, name: str) -> str | None:
        encoding = (self.table.schema.field(name).metadata or {}).get(ENCODING)
        return None if encoding is None else encoding.decode()


def _is_binary(kind: pa.DataType) -> bool:
    return (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of this type are integers, floats or bools."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _decoded_getter(decode: Decoder, column: pa.ChunkedArray) -> Getter:
    return lambda row: None if (data := column[row].as_py()) is None else decode(data)


def _getter(name: str, column: pa.ChunkedArray) -> Getter:
    if pa.types.is_dictionary(column.type):
        if not is_number(column.type.value_type):
            # A cast would repeat the values, for as long as the block is open.
            return lambda row: column[row].as_py()
        column = column.cast(column.type.value_type)
    kind = column.type
    if is_number(kind):
        return _number_getter(column)
    if (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ) and is_number(kind.value_type):
        return lambda row: _list_values(name, column[row])
    if isinstance(kind, pa.FixedShapeTensorType):
        return lambda row: column[row].to_numpy().copy() if column[row].is_valid else None
    return lambda row: column[row].as_py()


def _number_getter(column: pa.ChunkedArray) -> Getter:
    plain = column.type in _PLAIN_NUMBERS
    if column.null_count:
        if plain:
            return lambda row: column[row].as_py()
        scalar_type = np.dtype(column.type.to_pandas_dtype()).type
        return lambda row: None if (value := column[row].as_py()) is None else scalar_type(value)
    # combine_chunks copies, so a single chunk is taken as it is.
    values = numbers(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())
    return values.item if plain else values.__getitem__


def _list_values(name: str, scalar: pa.Scalar) -> np.ndarray | None:
    if not scalar.is_valid:
        return None
    values = scalar.values
    if values.null_count:
        raise DataError(
            f"field {name!r} has a null inside a list of numbers, which an array cannot hold"
        )
    return numbers(values).copy()


def numbers(values: pa.Array) -> np.ndarray:
    """Return numbers without nulls as a numpy array that shares their memory (bools are copied).

    Arrow's own conversion would import pandas: half a second and 50 MB in every worker.
    """
    if pa.types.is_boolean(values.type):
        return np.from_dlpack(values.cast(pa.uint8())).view(np.bool_)
    return np.from_dlpack(values)
