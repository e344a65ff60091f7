"""Shards of samples behind a table of offsets, as MosaicML's MDS and LitData have them.

A shard is the number of its samples (u32), where each begins and the last ends (u32 each), whatever its format puts
there, and the samples: the sizes (u32) of the values whose columns do not say it, and all values. Owns that the places
and sizes in it agree with each other; what values mean is known to the format's columns.
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
    """One column. `size`: bytes of every value, None where they differ; `decoded_by`: an encoding of `columns`."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int | None: ...

    @property
    def decoded_by(self) -> str | None: ...

    def arrow(self, values: Sequence[Bytes]) -> pa.Array:
        """The values. ValueError, IndexError or struct.error for those that are not what they should be."""


def parse_offset_table(
    shard: Shard, size: int, read: Callable[[int, int], bytes]
) -> tuple[np.ndarray, bytes]:
    """Where the samples begin and the last ends, int64[samples + 1]; and what stands between the table and the first of
    them. `read(begin, end)` gives bytes of the shard, which has `size` of them, not compressed.
    """
    samples, first = struct.unpack("<II", read(0, min(8, size)).ljust(8, b"\0"))
    at = 4 + 4 * (samples + 1)
    if not at <= first <= size:
        raise shard.error(
            "its table of offsets does not fit into it: cut off, damaged, or of another format", 0
        )
    head = read(0, first)
    offsets = np.frombuffer(head, "<u4", samples + 1, 4).astype(np.int64)
    if (np.diff(offsets) < 0).any() or offsets[-1] > size:
        raise shard.error(
            f"its table of offsets ends at {offsets[-1]}, and it has {size} bytes: cut off or damaged",
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
    """The samples in `data`, which stands at `base` in the shard: the columns that are wanted, and `__offset__`, the
    byte of the sample.
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
    """Each sample's offset in the shard and its values by column."""
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
                "a sample's values are not where it ends: the shard is damaged or changed",
                base + begin,
            )
        yield base + begin, sample


# Values as Python libraries write them into shards, as files of a usual kind, for which there are
# decoders.


def npy(data: Bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """An array's bytes as an .npy file; ValueError where they are not as many as it has."""
    if len(data) != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{len(data)} bytes are no {dtype} array of shape {shape}")
    return npy_header(dtype, shape) + bytes(data)


def ppm(data: Bytes) -> bytes:
    """A Pillow image's width, height, mode and pixels as an image file of the simplest kind, in grey or RGB."""
    width, height, length = struct.unpack_from("<3I", data)
    mode = bytes(data[12 : 12 + length]).decode("ascii")
    pixels = bytes(data[12 + length :])
    if mode not in {"L", "RGB"}:
        pixels, mode = (
            Image.frombytes(mode, (width, height), pixels).convert("RGB").tobytes(),
            "RGB",
        )
    if len(pixels) != width * height * len(mode):
        raise ValueError(f"{len(pixels)} bytes are no image of {width} x {height} in mode {mode}")
    return b"P%d %d %d 255\n" % (5 if mode == "L" else 6, width, height) + pixels


def items(data: Bytes, skipped: int = 0) -> list[Bytes]:
    """A list's values: their number and sizes stand before them."""
    (count,) = struct.unpack_from("<I", data, skipped)
    sizes = struct.unpack_from(f"<{count}I", data, skipped + 4)
    ends = np.cumsum((skipped + 4 + 4 * count, *sizes)).tolist()
    if ends[-1] != len(data):
        raise ValueError(f"a list of {ends[-1]} bytes in {len(data)}")
    return [data[begin:end] for begin, end in pairwise(ends)]
