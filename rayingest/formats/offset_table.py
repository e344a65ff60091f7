"""Read shards of samples behind an offset table, which MosaicML's MDS and LitData have in common.

A shard is the number of its samples (u32), the begin of each and the end of the last (u32 each), a
description that depends on the format, and the samples: the sizes (u32) of values whose columns
have no fixed size, then all values. Owns that offsets and sizes agree, and the encodings of values
that both formats have. The meaning of a value is known to the columns of the format.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from PIL import Image

from rayingest.formats.columns import Bytes, npy_header
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    Columns,
    Shard,
    check_columns,
    check_samples,
    raw_table,
)


class Column(Protocol):
    """One column. `size`: bytes of each value, None if they differ.

    `decoded_by`: an encoding of `columns`, or None.
    """

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int | None: ...

    @property
    def decoded_by(self) -> str | None: ...

    def arrow(self, values: Sequence[Bytes]) -> pa.Array:
        """Return the values as a column; ValueError, IndexError or struct.error if damaged."""


def parse_offset_table(
    shard: Shard, size: int, read: Callable[[int, int], bytes]
) -> tuple[np.ndarray, bytes]:
    """Return the offsets, and the bytes between the table and the first sample.

    Offsets are int64[samples + 1]: the begin of each sample, and the end of the last. `read(begin,
    end)` returns bytes of the uncompressed shard, which has `size` bytes.
    """
    samples, first = struct.unpack("<II", read(0, min(8, size)).ljust(8, b"\0"))
    at = 4 + 4 * (samples + 1)
    if not at <= first <= size:
        raise shard.error(
            "its offset table does not fit into it: it is cut off, damaged, or of another format", 0
        )
    head = read(0, first)
    offsets = np.frombuffer(head, "<u4", samples + 1, 4).astype(np.int64)
    if (np.diff(offsets) < 0).any() or offsets[-1] > size:
        raise shard.error(
            f"its offset table ends at {offsets[-1]}, and it has {size} bytes: cut off or damaged",
            0,
        )
    return offsets, head[at:]


def samples_table(
    shard: Shard,
    columns: Sequence[Column],
    data: memoryview,
    base: int,
    block: Block,
    wanted: Columns,
) -> pa.Table:
    """Return the samples in `data`, which stands at `base` in the shard, as a raw table.

    Has the wanted columns, and `__offset__`: the byte of the sample.
    """
    by_name = {column.name: column for column in columns}
    chosen = {name: by_name[name] for name in check_columns(shard, list(by_name), wanted)}
    values: dict[str, list[Bytes]] = {name: [] for name in chosen}
    offsets = []
    for at, sample in _samples(shard, columns, data, base):
        offsets.append(at)
        for name, pieces in values.items():
            pieces.append(sample[name])
    check_samples(shard, block, len(offsets))
    try:
        arrays = {name: column.arrow(values[name]) for name, column in chosen.items()}
    except (ValueError, IndexError, struct.error) as error:
        raise shard.error(f"damaged values: {error}", block[0]) from error
    encodings = {name: column.decoded_by for name, column in chosen.items() if column.decoded_by}
    return raw_table(shard, {**arrays, OFFSET: pa.array(offsets, pa.int64())}, encodings)


def _samples(
    shard: Shard, columns: Sequence[Column], data: memoryview, base: int
) -> Iterator[tuple[int, dict[str, Bytes]]]:
    """Yield each sample's offset in the shard, and its values by column."""
    variable = struct.Struct(f"<{sum(column.size is None for column in columns)}I")
    at = 0
    while at < len(data):
        begin = at
        sample: dict[str, Bytes] = {}
        at += variable.size
        if at <= len(data):
            sizes = iter(variable.unpack_from(data, begin))
            for column in columns:
                size = next(sizes) if column.size is None else column.size
                sample[column.name] = data[at : at + size]
                at += size
        if at > len(data) or at == begin:
            raise shard.error(
                "a sample's values do not end where it ends: the shard is damaged or was changed",
                base + begin,
            )
        yield base + begin, sample


def encode_npy(data: Bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return an array's bytes as an .npy file; ValueError if their number is wrong."""
    if len(data) != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{len(data)} bytes are not a {dtype} array of shape {shape}")
    return npy_header(dtype, shape) + bytes(data)


def encode_ppm(data: Bytes) -> bytes:
    """Return a Pillow image (width, height, mode, pixels) as a PPM or PGM file."""
    width, height, length = struct.unpack_from("<3I", data)
    mode = bytes(data[12 : 12 + length]).decode("ascii")
    pixels = bytes(data[12 + length :])
    if mode not in {"L", "RGB"}:
        pixels, mode = (
            Image.frombytes(mode, (width, height), pixels).convert("RGB").tobytes(),
            "RGB",
        )
    if len(pixels) != width * height * len(mode):
        raise ValueError(
            f"{len(pixels)} bytes are not an image of {width} x {height} in mode {mode}"
        )
    return b"P%d %d %d 255\n" % (5 if mode == "L" else 6, width, height) + pixels


def split_list(data: Bytes, skipped: int = 0) -> list[Bytes]:
    """Return the values of a list, whose number and sizes stand before them."""
    (count,) = struct.unpack_from("<I", data, skipped)
    sizes = struct.unpack_from(f"<{count}I", data, skipped + 4)
    ends = np.cumsum((skipped + 4 + 4 * count, *sizes)).tolist()
    if ends[-1] != len(data):
        raise ValueError(f"a list takes {ends[-1]} bytes, and there are {len(data)}")
    return [data[begin:end] for begin, end in pairwise(ends)]
