"""Read HDF5: the rows of all datasets of a file are samples, a field per dataset.

Owns which datasets are fields, and which rows are a block; h5py reads them
(https://www.hdfgroup.org/solutions/hdf5). Blocks are whole chunks of the file, if it has chunks, so
that no chunk is decompressed twice. Checksums are verified if the writer made them (`fletcher32`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError
from rayingest.formats.arrays import check_rows, row_blocks, rows_table
from rayingest.formats.protocol import Block, Columns, Format, Shard, check_columns
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.util.names import show_names
from rayingest.util.optional import import_optional

FIELDS = "fields"
"""The option: which datasets are fields."""

_VARIABLE = 64
"""The assumed bytes of a value of variable length, before it is read."""


class Hdf5(Format):
    """HDF5 files."""

    name = "hdf5"
    suffixes = (".h5", ".hdf5", ".hdf")
    option_names = (FIELDS,)

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        with _open(shard) as file:
            fields = _fields(shard, file)
            rows = {name: len(data) for name, data in fields.items()}
            if len(set(rows.values())) != 1:
                raise ConfigError(
                    f"the datasets of {shard.safe_url} differ in length: {rows}; choose datasets "
                    f"of one length with {FIELDS}=[...]"
                )
            nbytes = sum(_row_bytes(data) for data in fields.values())
            chunks = {data.chunks[0] for data in fields.values() if data.chunks}
            together = max(chunks, default=1)
            return row_blocks(next(iter(rows.values())), nbytes, block_bytes, together)

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return the datasets by path, or those asked for in that order, with `__offset__`.

        `__offset__` is the row.
        """
        with _open(shard) as file:
            fields = _fields(shard, file)
            names = check_columns(shard, list(fields), columns)
            return [
                rows_table(shard, block, {name: _rows(fields[name], block) for name in names})
                for block in blocks
            ]


FORMAT = Hdf5()


def _fields(shard: Shard, file: Any) -> dict[str, Any]:
    """Return the datasets that are fields: the chosen ones, else all that have rows."""
    h5py = import_optional("h5py", "hdf5", "reading HDF5")
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape:
            found[name] = item

    file.visititems(visit)
    wanted = shard.options.get(FIELDS)
    missing = [name for name in wanted or () if name not in found]
    if missing or not found:
        there = show_names(found, missing[0] if missing else "")
        raise ConfigError(
            f"there is no dataset {missing[0] if missing else ''!r} with rows; there are "
            f"{there} [shard {shard.short_url}]"
        )
    fields = {name: found[name] for name in wanted} if wanted else found
    for name, data in fields.items():
        if data.is_virtual or data.external:
            raise ConfigError(
                f"the dataset {name!r} of {shard.safe_url} is a view of other files: read those, "
                f"or choose others with {FIELDS}=[...]"
            )
        if not data.dtype.hasobject:
            check_rows(shard, repr(name), data.dtype, data.shape[1:])
            continue
        text = h5py.check_string_dtype(data.dtype) is not None
        if not (text or h5py.check_vlen_dtype(data.dtype) is not None) or len(data.shape) > 1:
            held = "several values of variable length" if text else str(data.dtype)
            raise ConfigError(
                f"the dataset {name!r} of {shard.safe_url} holds {held} per row, which is not "
                f"supported: choose others with {FIELDS}=[...]"
            )
    return fields


def _rows(data: Any, block: Block) -> np.ndarray:
    h5py = import_optional("h5py", "hdf5", "reading HDF5")
    source = data.asstr() if h5py.check_string_dtype(data.dtype) is not None else data
    rows: np.ndarray = source[block[0] : block[1]]
    return rows


def _row_bytes(data: Any) -> int:
    item = _VARIABLE if data.dtype.hasobject else data.dtype.itemsize
    return int(item * math.prod(data.shape[1:]))


@contextmanager
def _open(shard: Shard) -> Iterator[Any]:
    h5py = import_optional("h5py", "hdf5", "reading HDF5")
    with shard.storage.translate_errors(shard.url), shard.open() as source:
        try:
            with h5py.File(source, "r") as file:
                yield file
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            if isinstance(error, ConfigError) or getattr(error, "errno", None):
                raise
            raise shard.error(f"damaged HDF5 file, or not HDF5: {error}", 0) from error
