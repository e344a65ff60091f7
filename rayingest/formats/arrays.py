"""Samples as rows of arrays: columns of them, and blocks of rows of about the size that was asked for."""

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
    """Bytes of a row of this dtype and shape."""
    return dtype.itemsize * math.prod(shape)


def check_rows(shard: Shard, name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
    """ConfigError for an array whose rows, of this dtype and shape, are nothing that a batch can hold."""
    if dtype.kind not in "biufcSU" or dtype.char in "gG":
        raise ConfigError(
            f"{shard.safe_url}: {name} holds {dtype}, which is not read; save it as numbers or text"
        )
    if 0 in shape:
        raise ConfigError(
            f"{shard.safe_url}: the rows of {name} have the shape {tuple(shape)}: there is nothing in them"
        )


def row_blocks(rows: int, nbytes: int, block_bytes: int, together: int = 1) -> ShardBlocks:
    """Blocks [begin, end) of rows of `nbytes` each, at borders of `together` rows that cannot be read apart."""
    length = max(1, min(block_bytes // max(1, nbytes), MAX_BLOCK_SAMPLES) // together) * together
    begins = np.arange(0, rows, length, dtype=np.int64)
    ends = np.minimum(begins + length, rows)
    return ShardBlocks(begins, ends, ends - begins, (ends - begins) * nbytes)


def rows_table(shard: Shard, block: Block, columns: Mapping[str, np.ndarray]) -> pa.Table:
    """The rows of a block, an array for each column, and `__offset__`: the row's number in the shard."""
    begin, _, samples = block
    for rows in columns.values():
        check_samples(shard, block, len(rows))
    made = {name: _column(rows) for name, rows in columns.items()}
    encodings = {
        name: array_encoding(rows.dtype, rows.shape[1:])
        for name, rows in columns.items()
        if _is_bytes(rows)
    }
    return raw_table(
        shard, {**made, OFFSET: pa.array(np.arange(begin, begin + samples))}, encodings
    )


def _is_bytes(rows: np.ndarray) -> bool:
    """Whether a row goes as its bytes, and not as a value that Arrow has."""
    return rows.ndim > 1 or rows.dtype.kind == "c"


def _column(rows: np.ndarray) -> pa.Array:
    data = np.ascontiguousarray(rows).data.cast("B") if rows.size else b""
    if _is_bytes(rows):
        return fixed_column(data, len(rows))
    if rows.dtype.kind in "iuf":
        return number_column(data, rows.dtype)
    return pa.array(rows.tolist())  # text, flags
