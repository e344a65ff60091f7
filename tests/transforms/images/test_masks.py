"""Segmentation masks keep their class numbers, and images of unknown numbers are refused."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

import rayingest as ri
from rayingest.errors import ConfigError, DataError

CLASSES = np.array([[0, 1, 2, 15], [15, 2, 1, 0], [3, 3, 3, 3]], np.uint8)
PALETTE = [v for i in range(256) for v in ((i * 37) % 256, (i * 91) % 256, (i * 5) % 256)]


def palette_image(numbers: np.ndarray) -> Image.Image:
    image = Image.frombytes("P", numbers.shape[::-1], numbers.tobytes())
    image.putpalette(PALETTE)
    return image


def encoded(image: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def tiff(numbers: np.ndarray, kind: int) -> bytes:
    """Return a TIFF of these numbers; `kind` is its SampleFormat: 1 unsigned, 2 signed, 3 float."""
    data, (height, width) = numbers.tobytes(), numbers.shape
    bits = numbers.dtype.itemsize * 8
    entries = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 273: 8, 277: 1, 278: height}
    entries |= {279: len(data), 339: kind}
    table = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries.items())
    head = b"II*\0" + struct.pack("<I", 8 + len(data))
    return head + data + struct.pack("<H", len(entries)) + table + struct.pack("<I", 0)


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF"])
def test_decode_p_gives_the_numbers_of_the_palette(form):
    """One channel of uint8, whatever the colours are."""
    found = ri.images.Decode("P")(encoded(palette_image(CLASSES), form))
    np.testing.assert_array_equal(found, CLASSES[:, :, None])
    assert found.dtype == np.uint8


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_narrow_palettes_keep_their_numbers(bits):
    """A file packs several numbers into a byte; transparency changes none."""
    numbers = CLASSES & np.uint8((1 << bits) - 1)
    image = Image.frombytes("P", numbers.shape[::-1], numbers.tobytes())
    image.putpalette(PALETTE[: 3 << bits])
    data = encoded(image, "PNG", bits=bits, transparency=b"\0" * (1 << bits))
    np.testing.assert_array_equal(ri.images.Decode("P")(data)[:, :, 0], numbers)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_grey_masks_keep_their_numbers(bits):
    """Grey PNGs of few bits are not spread over 0 to 255."""
    numbers = CLASSES & np.uint8((1 << bits) - 1)
    spread = np.unpackbits(numbers[:, :, None], axis=2)[:, :, 8 - bits :]
    rows = np.packbits(spread.reshape(3, -1), axis=1)

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    header = struct.pack(">IIBBBBB", 4, 3, bits, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    np.testing.assert_array_equal(ri.images.Decode("P")(png)[:, :, 0], numbers)


def test_resized_masks_mix_no_numbers():
    """Steps behind `Decode("P")` take the nearest number; their shape is known."""
    steps = ri.images.Compose(ri.images.Decode("P"), ri.images.Resize((5, 7)))
    found = steps(encoded(palette_image(CLASSES), "PNG"))
    assert steps.output_shape == found.shape == (5, 7, 1)
    assert set(found.ravel().tolist()) <= set(CLASSES.ravel().tolist())
    crop = ri.images.Compose(ri.images.Decode("P"), ri.images.RandomResizedCrop(6))
    cropped = crop(encoded(palette_image(CLASSES), "PNG"), rng=np.random.default_rng(0))
    assert set(cropped.ravel().tolist()) <= set(CLASSES.ravel().tolist())


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "I;16"])
def test_images_without_class_numbers_are_refused(mode):
    """Colours, alpha and 16 bits are no numbers of a palette."""
    with pytest.raises(DataError, match="no class numbers"):
        ri.images.Decode("P")(encoded(Image.new(mode, (4, 3)), "PNG"))


def test_an_unknown_mode_names_the_modes():
    """The modes that exist are in the message."""
    with pytest.raises(ConfigError, match="RGB, L, RGBA, P"):
        ri.images.Decode("PA")


@pytest.mark.parametrize(("dtype", "kind"), [("<i1", 2), ("<i2", 2), ("<i4", 2), ("<u4", 1)])
def test_tiffs_of_signed_or_wide_integers_are_refused(dtype, kind):
    """Their range is not known; Pillow would give -1 as 255."""
    numbers = np.arange(12, dtype=dtype).reshape(3, 4)
    for mode in ("L", "RGB", "P"):
        with pytest.raises(DataError, match=r"range is not known|no class numbers"):
            ri.images.Decode(mode)(tiff(numbers, kind))


@pytest.mark.parametrize(("dtype", "reason"), [("<f4", "range"), ("<f8", "not an image")])
def test_tiffs_of_floats_are_refused(dtype, reason):
    """Pillow reads floats of 32 bits, whose range is not known, and no others."""
    with pytest.raises(DataError, match=reason):
        ri.images.Decode("L")(tiff(np.zeros((3, 4), dtype), 3))


@pytest.mark.parametrize(("dtype", "most"), [("<u1", 255), ("<u2", 65_535)])
def test_tiffs_of_unsigned_integers_are_scaled_to_eight_bits(dtype, most):
    """Black stays black and white white."""
    found = ri.images.Decode("L")(tiff(np.array([[0, most]], dtype), 1))
    assert found.ravel().tolist() == [0, 255]
