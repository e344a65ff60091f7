"""Arrow columns made straight of their buffers.

Arrow's own conversion, `pa.array`, imports pandas where that is installed: half a second and 50 MB in every worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def int64_column(values: Any) -> pa.Array:
    """Whole numbers, an array or a sequence, without nulls."""
    data = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def text_column(texts: Sequence[str]) -> pa.Array:
    """Strings, without nulls; large_string where 32-bit offsets cannot address them."""
    pieces = [text.encode() for text in texts]
    return binary_column(pieces, np.fromiter(map(len, pieces), np.int64, len(pieces)), text=True)


def binary_column(
    pieces: Iterable[bytes | memoryview],
    sizes: np.ndarray,
    valid: np.ndarray | None = None,
    *,
    text: bool = False,
) -> pa.Array:
    """Pieces one after the other as a binary column: `sizes` int64[rows], 0 where not `valid` (bool[rows], None: all).

    The only copy of the bytes; of the large type where 32-bit offsets cannot address them. `text`: as strings, whose
    UTF-8 is looked at when they are decoded.
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
