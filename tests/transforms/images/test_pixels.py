"""Every kind of image file gives its true colours, or the declared error."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from rayingest.errors import ConfigError, DataError
from rayingest.transforms import images
from rayingest.transforms.images import pixels
from rayingest.transforms.images.jpeg import BACKENDS, PILLOW
from rayingest.transforms.stages import Decode
from tests.support.transform_cases import block, run


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    """Turn warnings into errors: one per sample would fill a training run's logs."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(autouse=True, params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> None:
    """Run each test with every image backend."""
    _backend[0] = request.param


_backend = [PILLOW]


def picture(height=30, width=40) -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def decoded(data: bytes, name="jpg", **how) -> np.ndarray:
    """Return the pixels that a sample with this file gets, by `how` or by default."""
    stages = [Decode({name: how["decode"]})] if how else []
    return run(stages, block(KEY=["a"], **{name: [data]}), image_backend=_backend[0])[name][0]


def png(
    width: int, height: int, depth: int, color: int, rows: bytes, *chunks: tuple[bytes, bytes]
) -> bytes:
    """Return a PNG of `rows`, with a filter byte each."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    middle = b"".join(chunk(*each) for each in chunks)
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + middle
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


FILES = {
    "JPEG": encoded(picture(), "JPEG"),
    "progressive JPEG": encoded(picture(), "JPEG", progressive=True),
    "CMYK JPEG": encoded(picture().convert("CMYK"), "JPEG"),
    "PNG": encoded(picture(), "PNG"),
    "palette PNG": encoded(picture().convert("P"), "PNG"),
    "PPM": encoded(picture(), "PPM"),
    "PBM": encoded(picture().convert("1"), "PPM"),
    "lossy WebP": encoded(picture(), "WEBP"),
    "lossless WebP": encoded(picture(), "WEBP", lossless=True),
    "BMP": encoded(picture(), "BMP"),
    "TIFF": encoded(picture(), "TIFF"),
    "LZW TIFF": encoded(picture(), "TIFF", compression="tiff_lzw"),
    "fax TIFF": encoded(picture().convert("1"), "TIFF", compression="group4"),
    "GIF": encoded(picture(), "GIF"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_cut_anywhere_is_an_error(kind: str) -> None:
    """A truncated file gives an error, or the whole image; never grey or blurred parts."""
    warnings.simplefilter("ignore")  # Pillow tells of some damage twice
    data = FILES[kind]
    whole = decoded(data)
    for cut in {
        0,
        1,
        *range(2, len(data), max(1, len(data) // 40)),
        *range(len(data) - 12, len(data)),
    }:
        try:
            found = decoded(data[:cut])
        except DataError as error:
            where = error.sample, error.key, error.shard
            assert where == (100, "a", "mem://data/a.tar")
        else:
            assert kind in {"GIF", "fax TIFF"}
            np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("kind", ["PNG", "palette PNG"])
def test_any_flipped_bit_of_a_png_is_found(kind: str) -> None:
    """Its checksums, which Pillow does not check, find any flipped bit."""
    data = FILES[kind]
    for at in {*range(40), *range(0, len(data), 53), *range(len(data) - 12, len(data))}:
        with pytest.raises(DataError):
            decoded(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])


@pytest.mark.parametrize("name", ["jpg", "png", "tiff", "webp"])
def test_content_decides_not_the_name(name: str) -> None:
    """A PNG with the extension .jpg is read as a PNG."""
    for kind in ("JPEG", "PNG", "GIF", "LZW TIFF", "PPM"):
        np.testing.assert_array_equal(decoded(FILES[kind], name), images.Decode()(FILES[kind]))
    with pytest.raises(DataError, match=r"decode of '\w+': not an image .*begin b'hello'"):
        decoded(b"hello", name)
    with pytest.raises(DataError, match="no bytes"):
        decoded(b"", name)


def test_progressive_jpegs_are_what_baseline_ones_are() -> None:
    """All scans of a progressive file are decoded."""
    np.testing.assert_array_equal(decoded(FILES["progressive JPEG"]), decoded(FILES["JPEG"]))


@pytest.mark.parametrize("color", [(255, 0, 0), (255, 255, 255), (0, 0, 0), (20, 90, 160)])
def test_cmyk_jpegs_with_and_without_adobes_marker(color: tuple[int, int, int]) -> None:
    """Both are inverted, as Adobe writes them."""
    data = encoded(Image.new("RGB", (16, 16), color).convert("CMYK"), "JPEG", quality=95)
    at = data.index(b"\xff\xee")
    assert data[at + 4 : at + 9] == b"Adobe"
    plain = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
    for tried in (data, plain):
        assert abs(decoded(tried).astype(int) - color).max() <= 5


def test_palettes_keep_their_colours_whatever_is_transparent() -> None:
    """In PNG and GIF, with one transparent colour, opacities or none, in each mode."""
    image = picture().convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
    colours = np.asarray(image.convert("RGB"))
    alpha = np.asarray(image) * 10
    for form, transparency in (
        ("PNG", None),
        ("PNG", 3),
        ("PNG", bytes(range(0, 160, 10))),
        ("GIF", 3),
    ):
        data = encoded(
            image, form, **({} if transparency is None else {"transparency": transparency})
        )
        np.testing.assert_array_equal(decoded(data), colours)
        rgba = decoded(data, decode=images.Decode("RGBA"))
        if isinstance(transparency, bytes):
            np.testing.assert_array_equal(rgba, np.dstack([colours, alpha]))
        grey = decoded(data, decode=images.Decode("L"))[..., 0]
        assert abs(grey.astype(int) - np.asarray(image.convert("RGB").convert("L"))).max() <= 1


def test_transparent_grey_and_coloured_files_lose_their_alpha_only() -> None:
    """An alpha channel or a transparent colour is dropped; colours stay."""
    grey = Image.fromarray(np.arange(200, dtype=np.uint8).reshape(10, 20))
    both = grey.copy().convert("LA")
    both.putalpha(Image.new("L", (20, 10), 7))
    expected = np.repeat(np.asarray(grey)[:, :, None], 3, axis=2)
    for data in (encoded(both, "PNG"), encoded(grey, "PNG", transparency=5), encoded(grey, "PNG")):
        np.testing.assert_array_equal(decoded(data), expected)
    np.testing.assert_array_equal(
        decoded(encoded(both, "PNG"), decode=images.Decode("RGBA"))[..., 3], 7
    )
    rgba = picture().convert("RGBA")
    rgba.putalpha(0)
    for data in (encoded(rgba, "PNG"), encoded(picture(), "PNG", transparency=(1, 2, 3))):
        np.testing.assert_array_equal(decoded(data), np.asarray(picture()))


def test_sixteen_bits_become_eight() -> None:
    """Grey is rounded; Pillow keeps the upper 8 bits of colours; white stays white."""
    wide = np.array([[0, 257 * 9 + 100, 257 * 100, 65_535]], ">u2")
    grey = png(4, 1, 16, 0, b"\0" + wide.tobytes())
    np.testing.assert_array_equal(decoded(grey)[0, :, 0], [0, 9, 100, 255])
    colours = png(4, 1, 16, 2, b"\0" + np.repeat(wide[:, :, None], 3, axis=2).tobytes())
    np.testing.assert_array_equal(decoded(colours)[0, :, 1], wide[0] >> 8)
    alpha = png(
        4, 1, 16, 4, b"\0" + np.stack([wide, wide[:, ::-1]], axis=2).astype(">u2").tobytes()
    )
    np.testing.assert_array_equal(decoded(alpha)[0, :, 2], wide[0] >> 8)


@pytest.mark.parametrize(
    ("form", "options"), [("PNG", {}), ("PPM", {}), ("TIFF", {"compression": "group4"})]
)
def test_one_bit_is_black_and_white(form: str, options: dict) -> None:
    """One-bit images give 0 and 255, the right way round in each format."""
    bits = np.random.default_rng(0).integers(0, 2, (9, 21)).astype(bool)
    found = decoded(encoded(Image.fromarray(bits), form, **options))
    np.testing.assert_array_equal(found, np.repeat(bits[:, :, None] * np.uint8(255), 3, axis=2))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_if_chosen(form: str, orientation: int) -> None:
    """All eight orientations work; by default pixels stay as stored, but for TIFF."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(
        picture(8, 16), form, exif=exif, **({"lossless": True} if form == "WEBP" else {})
    )
    stored = decoded(
        encoded(picture(8, 16), form, **({"lossless": True} if form == "WEBP" else {}))
    )
    assert stored.shape == (8, 16, 3)
    turns = {1: 0, 2: 0, 3: 2, 4: 2, 5: -1, 6: -1, 7: 1, 8: 1}
    expected = np.rot90(stored, turns[orientation])
    expected = expected[:, ::-1] if orientation in {2, 4, 5, 7} else expected
    np.testing.assert_array_equal(decoded(data, decode=images.Decode(exif=True)), expected)
    np.testing.assert_array_equal(decoded(data), expected if form == "TIFF" else stored)


def bomb(side: int) -> bytes:
    """Return a PNG of side x side pixels that has only a header."""
    return png(side, side, 1, 0, b"")


def test_a_bomb_is_refused_from_its_header() -> None:
    """50,000 x 50,000 pixels are refused; the message says how to raise the limit."""
    before = Image.MAX_IMAGE_PIXELS
    data = bomb(50_000)
    assert len(data) < 100
    for how in ({}, {"decode": images.Resize(8)}, {"decode": images.Compose(images.CenterCrop(8))}):
        with pytest.raises(DataError, match=r"refused: .*images\.Decode\(max_pixels=\.\.\.\)"):
            decoded(data, **how)
    with pytest.raises(DataError, match="10000x10000 pixels refused: the limit is 89478485"):
        decoded(bomb(10_000), decode=images.Decode(max_pixels=pixels.MAX_PIXELS))
    with pytest.raises(DataError, match="refused"):  # between Pillow's warning and its error
        decoded(bomb(10_000))
    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("kind", FILES)
def test_max_pixels_allows_larger_images(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`max_pixels` raises the limit past Pillow's, also as the first of several steps."""
    data = FILES[kind]
    whole = decoded(data)
    held = "TIFF" in kind or "WebP" in kind
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 900 if held else 500)
    with pytest.raises(DataError, match="max_pixels"):
        decoded(data)
    if held:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    np.testing.assert_array_equal(decoded(data, decode=images.Decode(max_pixels=1200)), whole)
    small = images.Compose(images.Decode(max_pixels=1200), images.Resize((6, 8)))
    assert decoded(data, decode=small).shape == (6, 8, 3)
    with pytest.raises(DataError, match="40x30 pixels refused: the limit is 1199"):
        decoded(data, decode=images.Decode(max_pixels=1199))
    with pytest.raises(DataError, match="not an image"):
        decoded(b"hello", decode=images.Decode(max_pixels=1200))
    if held:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
        with pytest.raises(DataError, match="exceeds limit of 1000 pixels"):
            decoded(data, decode=images.Decode(max_pixels=1200))


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "1"])
def test_a_wrong_limit_is_refused(limit: object) -> None:
    """ConfigError is raised at construction."""
    with pytest.raises(ConfigError, match="max_pixels"):
        images.Decode(max_pixels=limit)  # type: ignore[arg-type]
