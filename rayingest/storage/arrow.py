"""Build Arrow columns straight from their buffers.

Arrow's own conversion, `pa.array`, imports pandas if it is installed: half a second and 50 MB in
each worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def int64_column(values: Any) -> pa.Array:
    """Return integers, an array or a sequence, as a column without nulls."""
    data = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def text_column(texts: Sequence[str]) -> pa.Array:
    """Return strings as a column without nulls; large_string beyond 32-bit offsets."""
    pieces = [text.encode() for text in texts]
    return binary_column(pieces, np.fromiter(map(len, pieces), np.int64, len(pieces)), text=True)


def binary_column(
    pieces: Iterable[bytes | memoryview],
    sizes: np.ndarray,
    valid: np.ndarray | None = None,
    *,
    text: bool = False,
) -> pa.Array:
    """Return pieces, one after the other, as a binary column; with `text`, as strings.

    `sizes`: int64[rows], 0 where not `valid` (bool[rows], None: all valid). The type is the large
    one beyond 32-bit offsets. The bytes are copied once. UTF-8 is checked when strings are decoded.
    """
    data = b"".join(pieces)
    large = len(data) >= 1 << 31
    type_ = (
        (pa.large_string() if text else pa.large_binary())
        if large
        else (pa.string() if text else pa.binary())
    )
    offsets = np.zeros(len(sizes) + 1, np.int64 if large else np.int32)
    np.cumsum(sizes, out=offsets[1:])
    mask = None
    if valid is not None and not valid.all():
        mask = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        type_, len(sizes), [mask, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
