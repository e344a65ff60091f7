"""Decode JPEGs fast: through libjpeg-turbo (simplejpeg) and a SIMD resizer (cykooz-resizer).

Owns which JPEGs are read this way, and how little of each is decoded: no row below the region, and
at half the size if the region is reduced by at least four and is smooth enough for it. Pixels that
are not resized are Pillow's, bit for bit, because both use one library; resized ones differ by
rounding. Refuses files in which libjpeg reports lost pixels, because Pillow would not.

Everything else is left to Pillow, and raises no error here: other formats, grey and CMYK, truncated
files, and files that libjpeg complains of for other reasons.

Owns also the choice between these libraries and Pillow alone, the image backend. There is one
choice for a whole run: it is made where the loader is made, and travels with the work. A state
records its name, because resized pixels differ.
"""

from __future__ import annotations

import importlib
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.transforms.images.region import Region

PILLOW = "pillow"
"""Pillow decodes everything."""
TURBO = "turbo"
"""This module decodes the JPEGs that it can, Pillow everything else."""

BACKENDS = (PILLOW, TURBO)

LIBRARIES = {"simplejpeg": "simplejpeg", "cykooz_resizer": "cykooz-resizer"}
"""Modules to import, each with the package to install for it."""

_SOI, _EOI, _SOS = b"\xff\xd8", b"\xff\xd9", 0xDA
_BASELINE, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ROWS_LEFT = "extraneous bytes before marker"
_DAMAGE = re.compile(
    "premature end of data segment|bad (Huffman|arithmetic) code|found marker .* instead of RST|"
    # A restart marker amid the pixels; other markers there only follow the pixels.
    f"{_ROWS_LEFT} 0xd[0-7]"
)
"""Warnings of libjpeg that mean lost pixels, which it replaces. It reports the first that it
meets.
"""
_HALVED = 2
"""The reduction that libjpeg makes at no cost. By 4 and 8 it saves little more, and blurs
letters.
"""
_SPARE = 2
"""How much larger than wanted the image stays after that: with less, fine lines differ from
Pillow's.
"""
_SHARP = 1000
"""The largest mean square difference of halved pixels to those beside plus below them.

Above it Pillow's result is another: text has 1,200 to 6,000, with as little as 34 dB; 97 of 100
photographs have less than 700, with 48 dB or more.
"""
_LINES = 32
"""Rows and columns that are sampled for that."""
_MARGIN = 32
"""Rows decoded below the region: smoothing of the colours reads them, at any scale."""


def choose_backend(name: str | None) -> str:
    """Return this backend or, for None, the fastest whose libraries are installed.

    Raises ConfigError for an unknown name, or if its libraries are missing.
    """
    if name is None:
        with suppress(ConfigError):
            return choose_backend(TURBO)
        return PILLOW
    if name not in BACKENDS:
        raise ConfigError(f"image_backend={name!r}: choose one of {', '.join(map(repr, BACKENDS))}")
    if name == TURBO:
        _libraries()
    return name


@dataclass(frozen=True)
class Jpeg:
    """An 8-bit JPEG of three components.

    `rows_at`: the byte at which its height stands, if a smaller one may be written there.
    """

    data: bytes | bytearray
    height: int
    width: int
    rows_at: int | None

    def read(self, region: Region) -> np.ndarray | None:
        """Return the region as uint8[height, width, 3], perhaps read-only or not contiguous.

        None if Pillow is to decode or refuse the image. Raises DataError if the part that has to be
        decoded is damaged.
        """
        left, top, right, bottom = region.box
        if left < 0 or top < 0 or right > self.width or bottom > self.height:
            return None
        rows, scale = min(self.height, bottom + _MARGIN), _scale(region)
        pixels = self._decode(rows, scale)
        if pixels is not None and scale > 1:
            first, last, begin, end = (side // scale for side in (top, bottom, left, right))
            if _is_sharp(pixels[first:last, begin:end]):
                pixels, scale = self._decode(rows, 1), 1
        if pixels is None:
            return None
        if region.is_resized:
            pixels = _resize(
                pixels, (left / scale, top / scale, right / scale, bottom / scale), *region.size
            )
            left, top, right, bottom = region.trim
        if pixels.shape[:2] != (bottom - top, right - left):
            pixels = pixels[top:bottom, left:right]
        return pixels[:, ::-1] if region.mirrored else pixels

    def _decode(self, rows: int, scale: int) -> np.ndarray | None:
        """Return uint8[ceil(height / scale), ceil(width / scale), 3], or at least its first rows.

        `rows`: how many are needed, in rows of the full size. None if libjpeg complains.
        """
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
                # All rows are there; libjpeg looks for the end, and finds the rows below.
                return pixels
            if _DAMAGE.search(str(error)):
                raise DataError(f"damaged JPEG: {error}") from None
            return None
        return pixels if found.shape == pixels.shape else None


def open_jpeg(data: bytes | bytearray | memoryview) -> Jpeg | None:
    """Return the JPEG in these bytes; None if they are not one that is read here.

    A scan followed by an end of image was not truncated, because no scan contains that marker. (Of
    several scans only the last need be whole; but those are decoded to the end, and libjpeg reports
    damage.) ConfigError if libraries are missing. The format is
    https://www.w3.org/Graphics/JPEG/itu-t81.pdf.
    """
    _libraries()
    if isinstance(data, memoryview):
        data = bytes(data)
    if data[:2] != _SOI:
        return None
    at, frame = 2, None
    while at + 4 <= len(data) and data[at] == 0xFF:
        kind, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == _SOS:
            return _from_headers(data, at, length, frame)
        if kind in _OTHER_FRAMES:
            return None
        if kind in _BASELINE or kind == _PROGRESSIVE:
            frame = at
        at += 2 + length
    return None


def _from_headers(
    data: bytes | bytearray, scan: int, length: int, frame: int | None
) -> Jpeg | None:
    """Return the JPEG with its first scan (header of this length) and frame header at these
    bytes.
    """
    if frame is None or data.rfind(_EOI, scan + 2 + length) < 0:
        return None
    precision, components = data[frame + 4], data[frame + 9]
    height, width = (int.from_bytes(data[frame + at : frame + at + 2], "big") for at in (5, 7))
    if precision != 8 or components != 3 or not height or not width:
        return None
    one_scan = data[frame + 1] in _BASELINE and data[scan + 4] == components
    return Jpeg(data, height, width, frame + 5 if one_scan else None)


def _scale(region: Region) -> int:
    """Return the factor by which libjpeg may reduce the image."""
    left, top, right, bottom = region.box
    reduction = min((bottom - top) / region.size[0], (right - left) / region.size[1])
    return _HALVED if reduction >= _HALVED * _SPARE else 1


def _is_sharp(pixels: np.ndarray) -> bool:
    """Return whether halved pixels show detail that halving loses."""
    rows, columns = pixels.shape[:2]
    across = np.diff(pixels[:: max(1, rows // _LINES)].astype(np.float32), axis=1)
    down = np.diff(pixels[:, :: max(1, columns // _LINES)].astype(np.float32), axis=0)
    return bool(np.square(across).mean() + np.square(down).mean() > _SHARP)


class _Libraries(NamedTuple):
    simplejpeg: Any
    resizer: Any
    options: Any
    """Options to resize a whole image."""


@cache
def _libraries() -> _Libraries:
    """Import the libraries. Raises ConfigError, which names the packages to install."""
    try:
        simplejpeg, resizer = map(importlib.import_module, LIBRARIES)
    except ImportError as error:
        packages = " ".join(LIBRARIES.values())
        raise ConfigError(
            f"this process lacks libraries for image_backend='turbo': {error}. Run `pip install "
            f"{packages}` wherever samples are decoded, or make the loader with "
            "image_backend='pillow'"
        ) from error
    return _Libraries(simplejpeg, resizer, _options(resizer))


def _options(resizer: Any, **crop: Any) -> Any:
    bilinear = resizer.ResizeAlg.convolution(resizer.FilterType.bilinear)
    return resizer.ResizeOptions(bilinear, use_alpha=False, **crop)


def _resize(
    pixels: np.ndarray, box: tuple[float, float, float, float], height: int, width: int
) -> np.ndarray:
    """Return a box of the pixels, antialiased, as read-only uint8[height, width, 3].

    The sides of the box may lie between pixels.
    """
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
