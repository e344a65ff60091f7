"""JPEG bytes to the pixels of a view, through libjpeg-turbo (simplejpeg) and a SIMD resizer (cykooz-resizer).

Owns which JPEGs are read this way and how little of them is decoded: no row below the view, and at half the size where
the view is reduced by twice that and is smooth enough for it. Unscaled pixels are Pillow's, bit for bit, as both use
one library; resized ones differ by rounding. Refuses files of which libjpeg says that pixels are damaged, as Pillow
would not tell. Everything else is left to Pillow, in whose place this module raises no error: other formats, grey and
CMYK, what is cut short, what libjpeg complains of otherwise.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.transforms.images.region import View

LIBRARIES = {"simplejpeg": "simplejpeg", "cykooz_resizer": "cykooz-resizer"}
"""What has to be imported, and what to install for it."""

_SOI, _EOI, _SOS = b"\xff\xd8", b"\xff\xd9", 0xDA
_BASELINE, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ROWS_LEFT = "extraneous bytes before marker"
_DAMAGE = re.compile(
    "premature end of data segment|bad (Huffman|arithmetic) code|found marker .* instead of RST|"
    f"{_ROWS_LEFT} 0xd[0-7]"  # a restart amid the pixels; before the end it is only something that follows them
)
"""What libjpeg warns of where pixels are lost, for which it puts others; it tells of the first that it meets."""
_HALVED = 2
"""By this libjpeg reduces at no cost. By a quarter and an eighth it saves little more, and letters become grey."""
_SPARE = 2
"""How much more than wanted stays after libjpeg's reduction: with less, fine lines come out otherwise than Pillow's."""
_SHARP = 1000
"""Where pixels that were halved differ more from those beside them and below, in mean squares together, Pillow's would
be others: text has 1,200 to 6,000, with as little as 34 dB; 97 of 100 photographs have less than 700, with 48 or more.
"""
_LINES = 32
"""Rows and columns that are looked at for that."""
_MARGIN = 32
"""Rows decoded below the view: those that smoothing of the colours looks at, at any scale."""


@dataclass(frozen=True)
class Jpeg:
    """An 8-bit JPEG of three components. `rows_at`: where its height stands, if a smaller one may be put there."""

    data: bytes | bytearray
    height: int
    width: int
    rows_at: int | None

    def read(self, view: View) -> np.ndarray | None:
        """uint8[height, width, 3] of the view, maybe read-only or not contiguous; None where Pillow is to judge.

        Raises DataError where what has to be decoded for it is damaged.
        """
        left, top, right, bottom = view.box
        if left < 0 or top < 0 or right > self.width or bottom > self.height:
            return None
        rows, scale = min(self.height, bottom + _MARGIN), _scale(view)
        pixels = self._decode(rows, scale)
        if pixels is not None and scale > 1:
            first, last, begin, end = (side // scale for side in (top, bottom, left, right))
            if _is_sharp(pixels[first:last, begin:end]):
                pixels, scale = self._decode(rows, 1), 1
        if pixels is None:
            return None
        if view.is_resized:
            pixels = _resized(
                pixels, (left / scale, top / scale, right / scale, bottom / scale), *view.size
            )
            left, top, right, bottom = view.trim
        if pixels.shape[:2] != (bottom - top, right - left):
            pixels = pixels[top:bottom, left:right]
        return pixels[:, ::-1] if view.mirrored else pixels

    def _decode(self, rows: int, scale: int) -> np.ndarray | None:
        """uint8[ceil(height / scale), ceil(width / scale), 3], or of at least the first `rows` rows; None: odd."""
        data, cut = self.data, False
        if self.rows_at is None or rows == self.height:
            rows = self.height
        else:
            data, cut = bytearray(data), True
            data[self.rows_at : self.rows_at + 2] = rows.to_bytes(2, "big")
        height, width = -(-rows // scale), -(-self.width // scale)
        pixels = np.empty((height, width, 3), np.uint8)
        least = {"min_height": height, "min_width": width, "min_factor": scale}
        try:
            found = _libraries().simplejpeg.decode_jpeg(data, "RGB", buffer=pixels, **least)
        except ValueError as error:
            if cut and _ROWS_LEFT in str(error):
                return pixels  # once all rows are there, libjpeg looks for the end, and finds the rows cut off
            if _DAMAGE.search(str(error)):
                raise DataError(f"damaged JPEG: {error}") from None
            return None
        return pixels if found.shape == pixels.shape else None


def open_jpeg(data: bytes | bytearray | memoryview) -> Jpeg | None:
    """The JPEG that these bytes are, if they are one that is read here (https://www.w3.org/Graphics/JPEG/itu-t81.pdf).

    A scan that is followed by an end of image was not cut short, since no scan contains one. (Of several scans only the
    last need be whole; but those are decoded to the end, and libjpeg tells.) ConfigError where libraries are missing.
    """
    check_libraries()
    if isinstance(data, memoryview):
        data = bytes(data)
    if data[:2] != _SOI:
        return None
    at, frame = 2, None
    while at + 4 <= len(data) and data[at] == 0xFF:
        kind, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == _SOS:
            return _opened(data, at, length, frame)
        if kind in _OTHER_FRAMES:
            return None
        if kind in _BASELINE or kind == _PROGRESSIVE:
            frame = at
        at += 2 + length
    return None


def check_libraries() -> None:
    """ConfigError, with what to install, where this process lacks them."""
    _libraries()


def _opened(data: bytes | bytearray, scan: int, length: int, frame: int | None) -> Jpeg | None:
    """The JPEG whose first scan, with a header of this length, and frame header are at these places."""
    if frame is None or data.rfind(_EOI, scan + 2 + length) < 0:
        return None
    precision, components = data[frame + 4], data[frame + 9]
    height, width = (int.from_bytes(data[frame + at : frame + at + 2], "big") for at in (5, 7))
    if precision != 8 or components != 3 or not height or not width:
        return None
    one_scan = data[frame + 1] in _BASELINE and data[scan + 4] == components
    return Jpeg(data, height, width, frame + 5 if one_scan else None)


def _scale(view: View) -> int:
    """By how much libjpeg may reduce the image."""
    left, top, right, bottom = view.box
    reduction = min((bottom - top) / view.size[0], (right - left) / view.size[1])
    return _HALVED if reduction >= _HALVED * _SPARE else 1


def _is_sharp(pixels: np.ndarray) -> bool:
    """Whether pixels that were halved tell of detail that halving loses."""
    rows, columns = pixels.shape[:2]
    across = np.diff(pixels[:: max(1, rows // _LINES)].astype(np.float32), axis=1)
    down = np.diff(pixels[:, :: max(1, columns // _LINES)].astype(np.float32), axis=0)
    return bool(np.square(across).mean() + np.square(down).mean() > _SHARP)


class _Libraries(NamedTuple):
    simplejpeg: Any
    resizer: Any
    options: Any
    """For a resize of everything."""


@cache
def _libraries() -> _Libraries:
    """What this module works with; ConfigError that tells what is missing."""
    try:
        simplejpeg, resizer = map(importlib.import_module, LIBRARIES)
    except ImportError as error:
        packages = " ".join(LIBRARIES.values())
        raise ConfigError(
            f"this process cannot decode by 'turbo': {error}. Have `pip install {packages}` done wherever samples are "
            f"decoded, or make the loader with image_backend='pillow'"
        ) from error
    return _Libraries(simplejpeg, resizer, _options(resizer))


def _options(resizer: Any, **crop: Any) -> Any:
    bilinear = resizer.ResizeAlg.convolution(resizer.FilterType.bilinear)
    return resizer.ResizeOptions(bilinear, use_alpha=False, **crop)


def _resized(
    pixels: np.ndarray, box: tuple[float, float, float, float], height: int, width: int
) -> np.ndarray:
    """uint8[height, width, 3], read-only: this box of the pixels, which need not lie on their borders, antialiased."""
    _, resizer, options = _libraries()
    left, top = int(box[0]), int(box[1])
    part = pixels[top : -int(-box[3] // 1), left : -int(-box[2] // 1)]
    rows, columns = part.shape[:2]
    if (columns, rows) != (box[2] - box[0], box[3] - box[1]):
        right, bottom = min(box[2] - left, columns), min(box[3] - top, rows)
        x, y = box[0] - left, box[1] - top
        options = _options(resizer, crop_box=resizer.CropBox(x, y, right - x, bottom - y))
    source = resizer.ImageData(columns, rows, resizer.PixelType.U8x3, part.tobytes())
    result = resizer.ImageData(width, height, resizer.PixelType.U8x3)
    resizer.Resizer().resize(source, result, options)
    return np.frombuffer(result.get_buffer(), np.uint8).reshape(height, width, 3)
