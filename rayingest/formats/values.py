"""Values as Python libraries write them into shards, as files of a usual kind, for which there are decoders."""

from __future__ import annotations

import math
import struct
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from rayingest.formats.columns import Bytes, npy_header


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
