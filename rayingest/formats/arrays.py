"""Cut arrays into blocks of rows, and turn rows of arrays into raw tables. A row is a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError
from rayingest.formats.columns import array_encoding, fixed_column, number_column
from rayingest.formats.protocol import OFFSET, Block, Shard, check_samples, raw_table
from rayingest.plan.order.manifest import MAX_BLOCK_SAMPLES, ShardBlocks


def row_bytes(dtype: np.dtype[Any], shape: Sequence[int]) -> int:
    """Return the bytes of a row of this dtype and shape."""
    return dtype.itemsize * math.prod(shape)


def check_rows(shard: Shard, name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
    """Raise ConfigError for an array whose rows, of this dtype and shape, cannot be batched."""
    if dtype.kind not in "biufcSU" or dtype.char in "gG":
        raise ConfigError(
            f"{name} in {shard.safe_url} holds {dtype}, which cannot be batched: save numbers or "
            f"text"
        )
    if 0 in shape:
        raise ConfigError(
            f"the rows of {name} in {shard.safe_url} are empty: their shape is {tuple(shape)}"
        )


def row_blocks(rows: int, nbytes: int, block_bytes: int, together: int = 1) -> ShardBlocks:
    """Return blocks [begin, end) of about `block_bytes`, for `rows` rows of `nbytes` each.

    Borders are multiples of `together` rows, which can only be read together.
    """
    length = max(1, min(block_bytes // max(1, nbytes), MAX_BLOCK_SAMPLES) // together) * together
    begins = np.arange(0, rows, length, dtype=np.int64)
    ends = np.minimum(begins + length, rows)
    return ShardBlocks(begins, ends, ends - begins, (ends - begins) * nbytes)


def rows_table(shard: Shard, block: Block, columns: Mapping[str, np.ndarray]) -> pa.Table:
    """Return the rows of a block, given by column, with `__offset__`: the row's number in the
    shard.
    """
    begin, _, samples = block
    for rows in columns.values():
        check_samples(shard, block, len(rows))
    values = {name: _column(rows) for name, rows in columns.items()}
    encodings = {
        name: array_encoding(rows.dtype, rows.shape[1:])
        for name, rows in columns.items()
        if _is_bytes(rows)
    }
    return raw_table(
        shard, {**values, OFFSET: pa.array(np.arange(begin, begin + samples))}, encodings
    )


def _is_bytes(rows: np.ndarray) -> bool:
    """Return whether a row becomes its bytes, for lack of an Arrow type."""
    return rows.ndim > 1 or rows.dtype.kind == "c"


def _column(rows: np.ndarray) -> pa.Array:
    data = np.ascontiguousarray(rows).data.cast("B") if rows.size else b""
    if _is_bytes(rows):
        return fixed_column(data, len(rows))
    if rows.dtype.kind in "iuf":
        return number_column(data, rows.dtype)
    return pa.array(rows.tolist())  # text and booleans
