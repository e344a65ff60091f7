"""The fast backend gives Pillow's pixels, random numbers and errors."""

from __future__ import annotations

import io
import statistics

import numpy as np
import pytest
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_images

from rayingest.errors import DataError
from rayingest.transforms import images as ri
from rayingest.transforms.images.jpeg import PILLOW, TURBO, Jpeg, open_jpeg
from rayingest.transforms.images.region import Region

HEIGHT, WIDTH = 150, 213


def photographs() -> list[Image.Image]:
    return [Image.fromarray(pixels) for pixels in load_sample_images().images]


def encoded(image: Image.Image, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def small() -> Image.Image:
    return photographs()[0].resize((WIDTH, HEIGHT))


KINDS = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "RGB": {"keep_rgb": True},
    "optimized": {"optimize": True, "quality": 30},
    "restart markers": {"restart_marker_rows": 1},
    "comment and profile": {"comment": b"\xff\xd9 no end", "icc_profile": bytes(3000)},
    "progressive": {"progressive": True},
}


def opened(data: bytes) -> Jpeg:
    jpeg = open_jpeg(data)
    assert jpeg is not None
    return jpeg


def through_pillow(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    error = np.mean((one.astype(np.float32) - other) ** 2)
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


def both(transform: ri.Transform, data: bytes, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return Pillow's result and the fast one; both draw the same random numbers."""
    rngs = [np.random.Generator(np.random.Philox(seed)) for _ in range(2)]
    results = [
        transform(data, rng, image_backend=path)
        for rng, path in zip(rngs, (PILLOW, TURBO), strict=True)
    ]
    assert rngs[0].random() == rngs[1].random()
    return results[0], results[1]


@pytest.mark.parametrize("kind", KINDS)
def test_unresized_pixels_are_pillows_bit_for_bit(small: Image.Image, kind: str) -> None:
    """Any part of any kind of file, although rows below it are not decoded."""
    data = encoded(small, **KINDS[kind])
    jpeg, whole = opened(data), through_pillow(data)
    assert (jpeg.height, jpeg.width) == (HEIGHT, WIDTH)
    assert (jpeg.rows_at is None) == (kind == "progressive")
    for bottom in (1, 16, 17, 60, 101, HEIGHT - 1, HEIGHT):
        view = Region.whole(HEIGHT, WIDTH).crop((bottom % 50, bottom // 2, WIDTH - 7, bottom))
        assert view is not None
        np.testing.assert_array_equal(
            jpeg.read(view), whole[bottom // 2 : bottom, bottom % 50 : WIDTH - 7]
        )
        np.testing.assert_array_equal(jpeg.read(view.mirror()), jpeg.read(view)[:, ::-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1, 2])
def test_fewer_rows_are_the_same_rows(small: Image.Image, kind: str, scale: int) -> None:
    """At every scale, down to the last row of a region."""
    jpeg = opened(encoded(small, **KINDS[kind]))
    whole = jpeg._decode(HEIGHT, scale)
    assert whole.shape == (-(-HEIGHT // scale), -(-WIDTH // scale), 3)
    for bottom in (1, 15, 16, 60, 99):
        rows = -(-bottom // scale)
        np.testing.assert_array_equal(jpeg._decode(bottom + 32, scale)[:rows], whole[:rows])


def test_photographs_are_as_good_as_pillows() -> None:
    """The median is 45 dB, the minimum 35 dB, with libjpeg's scaling and without."""
    data = [encoded(photo, quality=90) for photo in photographs()]
    for side, least in ((224, 50), (96, 40), (40, 40)):
        crop = ri.Compose(ri.RandomResizedCrop(side), ri.RandomHorizontalFlip())
        found = [psnr(*both(crop, one, seed)) for one in data for seed in range(12)]
        assert statistics.median(found) > max(45, least)
        assert min(found) > least


def test_text_and_stripes_are_as_good_as_pillows() -> None:
    """Letters and stripes, which halving would lose, are not halved."""
    page = Image.new("RGB", (1200, 900), "white")
    draw = ImageDraw.Draw(page)
    for line in range(0, 900, 11):
        draw.text(
            (2, line),
            "The quick brown fox 0123456789 jumps over it. " * 5,
            fill=(line * 7 % 200, 0, 80),
        )
    stripes = [
        np.repeat(np.arange(1200) // wide % 2 * 255, 900).reshape(1200, 900).T for wide in (3, 4, 8)
    ]
    images = [page, *(Image.fromarray(one.astype(np.uint8)).convert("RGB") for one in stripes)]
    data = [encoded(image, quality=quality) for image in images for quality in (60, 90)]
    for side in (128, 64, 32):
        crop = ri.Compose(ri.RandomResizedCrop(side), ri.RandomHorizontalFlip())
        found = [psnr(*both(crop, one, seed)) for one in data for seed in range(6)]
        assert statistics.median(found) > 45
        assert min(found) > 40


CHAINS = [
    ri.Decode(),
    ri.Resize(64),
    ri.Resize((20, 30)),
    ri.CenterCrop(100),
    ri.CenterCrop((100, 400)),
    ri.RandomHorizontalFlip(1.0),
    ri.RandomResizedCrop(24, scale=(0.2, 0.9)),
    ri.Compose(ri.Decode(), ri.Resize(96), ri.CenterCrop((64, 96)), ri.RandomHorizontalFlip()),
    ri.Compose(ri.RandomHorizontalFlip(1.0), ri.RandomResizedCrop(32), ri.RandomHorizontalFlip()),
    ri.Compose(ri.Resize(120), ri.RandomResizedCrop(64)),
    ri.Compose(ri.CenterCrop(100), ri.RandomResizedCrop(64), ri.CenterCrop(40), ri.CenterCrop(20)),
    ri.Compose(ri.Resize(64), ri.Resize(200), ri.Decode("L")),
]


@pytest.mark.parametrize("chain", CHAINS, ids=repr)
def test_any_chain_gives_what_it_gives_through_pillow(
    small: Image.Image, chain: ri.Transform
) -> None:
    """Any chain draws the same numbers, and gives a new array or writes in place."""
    data = encoded(small)
    for seed in range(3):
        slow, fast = both(chain, data, seed)
        assert fast.shape == slow.shape
        assert psnr(slow, fast) > 45
        assert fast.flags.writeable and fast.flags.c_contiguous  # noqa: PT018
        out = np.zeros_like(fast)
        assert chain(data, np.random.Generator(np.random.Philox(seed)), out, TURBO) is out
        np.testing.assert_array_equal(out, fast)


class Inverted(ri.Transform):
    """A user's transform that implements `apply` alone."""

    def __repr__(self):
        return "Inverted()"

    def apply(self, image: Image.Image, rng: object) -> Image.Image:
        return image.point(lambda value: 255 - value)

    def extent_after(self, extent):
        return extent


@pytest.mark.parametrize(
    ("options", "chain"),
    [
        ({}, ri.Decode("L")),
        ({}, ri.Compose(ri.Decode(exif=True), ri.RandomResizedCrop(20))),
        ({}, ri.Compose(ri.RandomResizedCrop(20), Inverted(), ri.RandomHorizontalFlip())),
        ({}, ri.CenterCrop(300)),
        ({"mode": "L"}, ri.RandomResizedCrop(20)),
        ({"mode": "CMYK"}, ri.RandomResizedCrop(20)),
        ({"behind": b"one more byte"}, ri.RandomHorizontalFlip()),
    ],
    ids=str,
)
def test_odd_files_are_pillows(small: Image.Image, options: dict, chain: ri.Transform) -> None:
    """Pillow decodes odd files, bit for bit, and random numbers are drawn once."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(small.convert(options.get("mode", "RGB")), exif=exif) + options.get(
        "behind", b""
    )
    for seed in range(3):
        np.testing.assert_array_equal(*both(chain, data, seed))


def outcome(data: bytes, path: str) -> np.ndarray | str:
    try:
        return ri.RandomResizedCrop(40)(data, np.random.default_rng(len(data)), image_backend=path)
    except (DataError, OSError, SyntaxError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_files_raise_the_errors_of_pillow(small: Image.Image, kind: str) -> None:
    """Wherever a file ends, its error is the one through Pillow."""
    data = encoded(small, **KINDS[kind])
    for cut in (
        *range(2, len(data), len(data) // 25),
        *range(len(data) - 60, len(data), 7),
        len(data) - 1,
    ):
        told = outcome(data[:cut], PILLOW)
        assert isinstance(told, str)
        assert outcome(data[:cut], TURBO) == told


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_fail_where_they_fail_through_pillow(small: Image.Image, kind: str) -> None:
    """The error is Pillow's, except for lost pixels, which Pillow does not report."""
    data = encoded(small, **KINDS[kind])
    failed = refused = 0
    for seed in range(60):
        rng, damaged = np.random.default_rng(seed), bytearray(data)
        for _ in range(int(rng.integers(1, 20))):
            damaged[int(rng.integers(len(data)))] = int(rng.integers(256))
        slow, fast = outcome(bytes(damaged), PILLOW), outcome(bytes(damaged), TURBO)
        if isinstance(fast, str) and "damaged JPEG" in fast:
            refused += 1
            continue
        assert isinstance(slow, str) == isinstance(fast, str)
        if isinstance(slow, str):
            assert slow == fast
            failed += 1
    assert failed
    assert refused


@pytest.mark.parametrize("kind", ["optimized", "restart markers", "progressive"])
def test_pixels_that_are_lost_are_an_error(small: Image.Image, kind: str) -> None:
    """A lost sector, which libjpeg fills with grey and reports, is a DataError."""
    data = encoded(small, **KINDS[kind])
    middle = len(data) * 2 // 3
    for damaged in (
        data[:middle] + bytes(1000) + data[middle + 1000 :],
        data[: middle // 2] + data[-2:],
    ):
        with pytest.raises(DataError, match=r"damaged JPEG: Corrupt JPEG data: \w"):
            ri.Resize(40)(damaged, image_backend=TURBO)


def test_damage_below_the_region_is_not_found(small: Image.Image) -> None:
    """Rows below the region are not decoded, so damage there is not found."""
    data = encoded(small, optimize=True)
    middle, top = len(data) * 2 // 3, Region.whole(HEIGHT, WIDTH).crop((0, 0, WIDTH, HEIGHT // 3))
    pixels = opened(data[:middle] + bytes(1000) + data[middle + 1000 :]).read(top)
    assert pixels is not None
    np.testing.assert_array_equal(pixels, through_pillow(data)[: HEIGHT // 3])


def test_harmless_complaints_are_pillows(small: Image.Image) -> None:
    """Bytes after the last pixel are harmless: all pixels are there."""
    data = encoded(small)
    odd = data[:-2] + b"padding" + data[-2:]
    np.testing.assert_array_equal(*both(ri.Decode(), odd))
    np.testing.assert_array_equal(
        ri.Decode()(odd, image_backend=TURBO), ri.Decode()(data, image_backend=TURBO)
    )
    assert opened(odd).read(Region.whole(HEIGHT, WIDTH)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xda\0\4\3\0\xff\xd9",
        b"\xff\xd8\xff\xc0\0\2\xff\xda\xff\xd9",
        b"\x89PNG\r\n\x1a\n",
        b"hello" * 9,
    ],
    ids=repr,
)
def test_other_bytes_are_not_opened_as_jpeg(data: bytes) -> None:
    """Bytes that only begin like a JPEG are not opened either."""
    assert open_jpeg(data) is None
    assert open_jpeg(memoryview(data)) is None
