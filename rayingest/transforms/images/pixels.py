"""Decode encoded images to pixels through Pillow, and copy pixels to arrays.

Owns which images are decoded, and refuses all others: formats whose decoders are not plain
libraries (nothing may start an interpreter), images above `MAX_PIXELS`, truncated files, PNGs with
a wrong checksum (other formats have none), and ranges of numbers that no known rule scales to 8
bits. Owns no geometry. Pillow's own settings belong to the user and are never changed.
"""

from __future__ import annotations

import io
import zlib
from contextlib import suppress
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageOps
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from rayingest.errors import ConfigError, DataError

_EXTENSIONS_OF: dict[type[ImageFile], tuple[str, ...]] = {
    JpegImageFile: ("jpg", "jpeg"),
    PngImageFile: ("png",),
    PpmImageFile: ("ppm", "pgm", "pbm", "pnm"),
    WebPImageFile: ("webp",),
    BmpImageFile: ("bmp",),
    TiffImageFile: ("tif", "tiff"),
    GifImageFile: ("gif",),
}
"""The registry of image formats: by the Pillow class that opens one, the extensions of its files.

A new format is one line here. Nothing else is opened, so that bad data cannot reach a rarely used
decoder.
"""
FORMATS = tuple(str(opener.format) for opener in _EXTENSIONS_OF)
"""The names by which Pillow knows these formats."""
EXTENSIONS = tuple(extension for found in _EXTENSIONS_OF.values() for extension in found)
"""The extensions of image files, for default decoders and for folders of images."""
MAX_PIXELS = 89_478_485
"""The largest image: from this size on Pillow itself warns of a decompression bomb."""

ImageLike: TypeAlias = bytes | bytearray | memoryview | np.ndarray | Image.Image
_OPT_IN = "to raise it, decode the field with ri.images.Decode(max_pixels=...)"
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
_SAMPLE_FORMAT, _SIGNED = 339, 2
"""The tag of a TIFF that names the kind of its numbers, and its value for signed integers."""
_WIDENED = {"L;2": 85, "L;4": 17}
"""By what Pillow multiplies grey of 2 and of 4 bits, so that white is 255."""


def open_image(data: ImageLike, max_pixels: int | None = None) -> Image.Image:
    """Return a Pillow image of encoded bytes (not decoded yet), of a uint8 array, or as it is.

    An array is (H, W) or (H, W, 1|3|4). Raises DataError for bytes that are not an image of
    `FORMATS`, for other values, and for an image of more than `max_pixels` (default: `MAX_PIXELS`,
    or Pillow's own setting if less).
    """
    if isinstance(data, (bytes, bytearray, memoryview)):
        image = _identify(data, allow_bombs=max_pixels is not None)
        limit = MAX_PIXELS if max_pixels is None else max_pixels
        if image.width * image.height > limit:
            raise DataError(
                f"image of {image.width}x{image.height} pixels refused: the limit is {limit}; "
                f"{_OPT_IN}"
            )
        if image.format == "PNG":
            _check_png(memoryview(data))
        return _unsigned(image)
    if isinstance(data, Image.Image):
        return _unsigned(data)
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        raise DataError("an image has no place for a mask: fill it in with array.filled(value)")
    if isinstance(data, np.ndarray) and data.dtype == np.uint8:
        if data.ndim == 3 and data.shape[2] == 1:
            data = data[:, :, 0]
        if data.ndim == 2 or (data.ndim == 3 and data.shape[2] in {3, 4}):
            return Image.fromarray(data)
    found = (
        f"{data.dtype} array of shape {data.shape}"
        if isinstance(data, np.ndarray)
        else type(data).__name__
    )
    raise DataError(
        f"not an image: {found}; give encoded bytes, a uint8 (H, W[, 1|3|4]) array or a Pillow "
        "image"
    )


def size_limit(max_pixels: int | None = None) -> int:
    """Return the number of pixels up to which no image is refused for its size."""
    return (
        min(MAX_PIXELS, Image.MAX_IMAGE_PIXELS or MAX_PIXELS) if max_pixels is None else max_pixels
    )


def _identify(data: bytes | bytearray | memoryview, allow_bombs: bool) -> Image.Image:
    """Return the image of this header; with `allow_bombs`, even if Pillow takes it for a bomb."""
    try:
        if not allow_bombs:
            return Image.open(io.BytesIO(data), formats=FORMATS)
        for opener in _EXTENSIONS_OF:
            with suppress(SyntaxError):  # raised for a file of another format
                return opener(io.BytesIO(data))
    except Image.UnidentifiedImageError:
        pass
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        how = "PIL.Image.MAX_IMAGE_PIXELS is yours to set" if allow_bombs else _OPT_IN
        raise DataError(f"image refused: {error}; {how}") from None
    raise DataError(f"not an image ({', '.join(FORMATS)}): {_preview(data)}")


def _unsigned(image: Image.Image) -> Image.Image:
    """Return the image; DataError for signed 8-bit numbers, which Pillow takes for unsigned."""
    kinds = getattr(image, "tag_v2", {}).get(_SAMPLE_FORMAT, ())
    if image.mode not in {"I", "F"} and _SIGNED in kinds:
        raise DataError(_unknown_range("signed"))
    return image


def _check_png(data: memoryview) -> None:
    """Raise DataError for a missing chunk or a wrong checksum, which Pillow does not check.

    See https://www.w3.org/TR/png-3/.
    """
    at, kind = 8, b""
    while kind != b"IEND":
        kind, end = bytes(data[at + 4 : at + 8]), at + 8 + int.from_bytes(data[at : at + 4], "big")
        if len(data) < end + 4:
            raise DataError(f"PNG is truncated: {len(data)} bytes end inside a chunk")
        if zlib.crc32(data[at + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            raise DataError(
                f"damaged PNG: the checksum of its chunk {kind!r} at byte {at} is wrong"
            )
        at = end + 4


def _preview(data: bytes | bytearray | memoryview) -> str:
    return f"{len(data)} bytes that begin {bytes(data[:12])!r}" if len(data) else "no bytes"


def to_mode(image: Image.Image, mode: str) -> Image.Image:
    """Read the pixels, and return the image in 8 bits a channel, as "RGB", "L", "RGBA" or "P".

    Palettes are looked up; CMYK is converted (inverted, in a JPEG as Adobe writes it); alpha is
    dropped unless `mode` has it. 16-bit grey is scaled by 1/257 (white stays white); Pillow cuts
    16-bit colours to 8 bits. DataError for signed, 32-bit integer and float images: their range is
    unknown. "P" keeps the numbers in the file, as `_class_numbers` does.
    """
    if mode == "P":
        return _class_numbers(image)
    if image.mode in _SIXTEEN_BIT or (image.mode == "I" and image.format in {"PPM", "PNG"}):
        wide = np.asarray(image).astype(np.uint32)  # Pillow would clip at 255 instead of scaling
        image = Image.fromarray(((wide * 255 + 32_895) >> 16).astype(np.uint8))
    elif image.mode in {"I", "F"}:
        raise DataError(
            _unknown_range("signed or 32-bit integer" if image.mode == "I" else "float")
        )
    elif image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        # Pillow warns where these palettes are converted to any other mode.
        image = image.convert("RGBA")
    if image.mode == mode:
        image.load()
        return image
    return image.convert(mode)


def _unknown_range(kind: str) -> str:
    return f"{kind} image: its range is not known; give the field a decoder of your own"


def _class_numbers(image: Image.Image) -> Image.Image:
    """Return the numbers of a palette's colours, or of grey of at most 8 bits, in mode "P".

    Pillow resizes an image of this mode without mixing numbers. DataError for other images.
    """
    if image.mode not in {"P", "L", "1"}:
        raise DataError(
            f"an image of mode {image.mode} has no class numbers: Decode('P') takes images with a "
            "palette, and grey images of at most 8 bits"
        )
    factor = _WIDENED.get(_packing(image), 1)
    image.load()
    if image.mode == "P":
        return image
    numbers = np.asarray(image).astype(np.uint8) // factor
    return Image.frombytes("P", image.size, numbers.tobytes())


def _packing(image: Image.Image) -> str:
    """Return how the file packs pixels, in Pillow's words; "" for pixels that are read already."""
    tiles = getattr(image, "tile", ())
    arguments = tiles[0][3] if tiles else ""
    return arguments if isinstance(arguments, str) else str(next(iter(arguments or ()), ""))


def turn_upright(image: Image.Image) -> Image.Image:
    """Return the image turned as its EXIF orientation says."""
    turned: Image.Image = ImageOps.exif_transpose(image)
    turned.format = image.format  # a copy loses it, and `to_mode` needs it for integer pixels
    return turned


def to_array(image: Image.Image, out: np.ndarray | None) -> np.ndarray:
    """Return uint8[H, W, C] of an 8-bit image: `out`, filled, or a new writable array."""
    pixels = np.asarray(image)
    return write_pixels(pixels[:, :, None] if pixels.ndim == 2 else pixels, out)


def write_pixels(pixels: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Return pixels, uint8[H, W, C], in `out` if given, else in an array of the caller's own."""
    if out is None:
        if pixels.base is None and pixels.flags.writeable:
            return pixels
        out = np.empty(pixels.shape, np.uint8)
    elif out.shape != pixels.shape or out.dtype != np.uint8:
        raise ConfigError(
            f"out is {out.dtype}{list(out.shape)}, the image uint8{list(pixels.shape)}"
        )
    if pixels.strides[1] > 0:
        out[...] = pixels
    else:  # mirrored: numpy would copy three bytes at a time, which takes six times as long
        for channel in range(pixels.shape[2]):
            out[:, :, channel] = pixels[:, :, channel]
    return out
