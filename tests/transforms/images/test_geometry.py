"""Image transforms: sizes, colours, random numbers, and writing in place."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from PIL import Image

from rayingest.errors import ConfigError, DataError
from rayingest.transforms import images as ri
from rayingest.transforms.images import pixels


def picture(height=60, width=80, seed=0) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, form="PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def rng(seed=0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


ALL = [
    ri.Decode(),
    ri.Decode("L", exif=True),
    ri.Resize(32),
    ri.Resize((20, 30)),
    ri.CenterCrop(24),
    ri.RandomResizedCrop(24, scale=(0.2, 0.9)),
    ri.RandomHorizontalFlip(0.3),
    ri.Compose(ri.Resize(32), ri.CenterCrop((24, 16)), ri.RandomHorizontalFlip()),
]


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_transforms_are_values(transform):
    """Transforms pickle, compare and hash, and their repr rebuilds them."""
    again = pickle.loads(pickle.dumps(transform))
    assert again == transform
    assert hash(again) == hash(transform)
    assert eval(repr(transform), vars(ri).copy()) == transform
    with pytest.raises(AttributeError):
        transform.size = 3


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_same_pixels_however_the_image_comes(transform):
    """Bytes, a Pillow image and an array give the same result, uint8 (H, W, C), writable."""
    image = picture()
    results = [transform(source, rng(4)) for source in (encoded(image), image, np.asarray(image))]
    for result in results:
        assert (result.dtype, result.ndim) == (np.uint8, 3)
        assert result.flags.writeable
        np.testing.assert_array_equal(result, results[0])
    assert transform.output_shape in {None, results[0].shape}


@pytest.mark.parametrize("transform", [t for t in ALL if t.output_shape is not None], ids=repr)
def test_results_are_written_in_place(transform):
    """A known output shape means that `out` is filled and returned, and only its own row."""
    batch = np.full((3, *transform.output_shape), 7, np.uint8)
    result = transform(encoded(picture()), rng(1), batch[1])
    assert np.shares_memory(result, batch)
    np.testing.assert_array_equal(batch[1], transform(encoded(picture()), rng(1)))
    assert (batch[[0, 2]] == 7).all()


def test_out_of_another_shape_is_refused():
    """`out` that does not fit is an error that names both."""
    with pytest.raises(ConfigError, match=r"uint8\[9, 9, 3\].*uint8\[8, 8, 3\]"):
        ri.Resize((8, 8))(picture(), out=np.empty((9, 9, 3), np.uint8))


@pytest.mark.parametrize(
    ("transform", "shape"),
    [
        (ri.Decode(), None),
        (ri.Resize(32), None),
        (ri.Resize((32, 48)), (32, 48, 3)),
        (ri.CenterCrop(24), (24, 24, 3)),
        (ri.RandomResizedCrop((24, 12)), (24, 12, 3)),
        (ri.RandomHorizontalFlip(), None),
        (ri.Compose(ri.Resize(32), ri.CenterCrop(24), ri.RandomHorizontalFlip()), (24, 24, 3)),
        (ri.Compose(ri.Decode("L"), ri.Resize((8, 6))), (8, 6, 1)),
        (ri.Compose(ri.Resize((8, 6)), ri.Resize(3)), (4, 3, 3)),
        (ri.Compose(ri.Resize((8, 6)), ri.Decode("RGBA")), (8, 6, 4)),
    ],
    ids=repr,
)
def test_output_shape(transform, shape):
    """`output_shape` is every result's shape, or None."""
    assert transform.output_shape == shape
    if shape is not None:
        assert transform(picture(), rng()).shape == shape


def test_resize_keeps_the_aspect_ratio():
    """An integer sets the shorter side, height or width."""
    assert ri.Resize(30)(picture(60, 81)).shape == (30, 40, 3)
    assert ri.Resize(30)(picture(81, 60)).shape == (40, 30, 3)


def test_center_crop_is_the_middle_and_frames_small_images_in_zeros():
    """Larger images lose equal rims, smaller ones get black rims."""
    array = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3) + 1
    np.testing.assert_array_equal(ri.CenterCrop((3, 3))(array), array[1:4, 2:5])
    framed = ri.CenterCrop(9)(array)
    np.testing.assert_array_equal(framed[2:7, 1:8], array)
    assert framed.sum() == array.sum(dtype=np.int64)


@pytest.mark.parametrize("seed", range(8))
def test_random_resized_crop_is_crop_then_resize(seed):
    """The result is its box, cut out with Pillow and resized alone, antialiased bilinear."""
    image = picture(97, 133)
    transform = ri.RandomResizedCrop(40)
    box = transform.box(97, 133, rng(seed))
    expected = np.asarray(image.crop(box).resize((40, 40), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(transform(image, rng(seed)), expected)


def test_random_resized_crop_boxes_follow_scale_and_ratio():
    """Boxes lie inside the image, areas uniform in `scale`, ratios log-uniform in `ratio`."""
    transform = ri.RandomResizedCrop(10, scale=(0.1, 0.5))
    generator = rng(0)
    boxes = np.array([transform.box(400, 400, generator) for _ in range(4_000)])
    left, top, right, bottom = boxes.T
    assert min(left.min(), top.min()) >= 0
    assert max(right.max(), bottom.max()) <= 400
    width, height = right - left, bottom - top
    area, aspect = width * height / 400**2, np.log(width / height)
    assert 0.095 < area.min() < 0.11
    assert 0.49 < area.max() < 0.505
    assert area.mean() == pytest.approx(0.3, abs=0.01)
    assert np.abs(aspect).max() < np.log(4 / 3) + 0.02
    assert aspect.mean() == pytest.approx(0, abs=0.01)
    assert aspect.std() == pytest.approx(2 * np.log(4 / 3) / np.sqrt(12), abs=0.01)
    assert (left / (400 - width)).mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [
        (100, 10, (0, 43, 10, 56)),
        (10, 100, (43, 0, 56, 10)),
        (1, 1, (0, 0, 1, 1)),
        (1, 50, (24, 0, 25, 1)),
    ],
)
def test_random_resized_crop_falls_back_to_the_centre(height, width, box):
    """If no try fits, it takes the largest central part within `ratio`."""
    assert ri.RandomResizedCrop(8, scale=(4.0, 5.0)).box(height, width, rng()) == box


def test_flip_mirrors_with_its_probability():
    """p=1 mirrors all images, p=0 none, p=0.3 three in ten."""
    image = np.asarray(picture())
    np.testing.assert_array_equal(ri.RandomHorizontalFlip(1)(image, rng()), image[:, ::-1])
    np.testing.assert_array_equal(ri.RandomHorizontalFlip(0)(image, rng()), image)
    tiny = np.array([[[0, 0, 0], [255, 255, 255]]], np.uint8)
    generator = rng(0)
    flips = [ri.RandomHorizontalFlip(0.3)(tiny, generator)[0, 0, 0] == 255 for _ in range(2_000)]
    assert np.mean(flips) == pytest.approx(0.3, abs=0.03)


def test_random_transforms_need_random_numbers():
    """Without rng they raise, and with equal generators they agree."""
    with pytest.raises(ConfigError, match=r"RandomHorizontalFlip\(p=0.5\) draws random numbers"):
        ri.Compose(ri.Resize(32), ri.RandomHorizontalFlip())(picture())
    transform = ri.Compose(ri.RandomResizedCrop(16), ri.RandomHorizontalFlip())
    results = [transform(picture(), rng(seed)).tobytes() for seed in (0, 0, 1, 2, 3)]
    assert results[0] == results[1]
    assert len(set(results)) == 4


def test_colours_of_every_mode():
    """CMYK, palette, grey, bilevel, alpha and 16-bit images give their true colours in RGB."""
    red = Image.new("RGB", (4, 3), (255, 0, 0))
    assert (ri.Decode()(encoded(red.convert("CMYK"), "TIFF")) == (255, 0, 0)).all()
    assert (
        abs(
            ri.Decode()(encoded(red.convert("CMYK"), "JPEG", quality=95)).astype(int) - (255, 0, 0)
        ).max()
        <= 4
    )
    assert (
        ri.Decode()(encoded(red.convert("P", palette=Image.Palette.ADAPTIVE))) == (255, 0, 0)
    ).all()
    assert (ri.Decode()(encoded(red.convert("P"), "GIF")) == (255, 0, 0)).all()
    assert (ri.Decode()(encoded(Image.new("RGBA", (4, 3), (255, 0, 0, 9)))) == (255, 0, 0)).all()
    assert (ri.Decode()(encoded(Image.new("LA", (4, 3), (77, 9)))) == 77).all()
    assert (ri.Decode()(encoded(Image.new("L", (4, 3), 77))) == 77).all()
    assert (ri.Decode()(encoded(Image.new("1", (4, 3), 1))) == 255).all()
    assert ri.Decode()(encoded(Image.new("L", (4, 3), 77))).shape == (3, 4, 3)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_grey_is_scaled(form):
    """Values are divided by 257 and rounded; black stays black, white white."""
    wide = np.array([[0, 128, 129, 255], [257, 32_768, 65_407, 65_535]], np.uint16)
    image = ri.Decode()(encoded(Image.fromarray(wide), form))
    np.testing.assert_array_equal(image[:, :, 0], [[0, 0, 1, 1], [1, 128, 255, 255]])
    assert ri.Decode("L")(encoded(Image.fromarray(wide), form)).shape == (2, 4, 1)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_images_without_a_known_range_are_refused(mode):
    """32-bit integer and float images are a DataError."""
    with pytest.raises(DataError, match="range is not known"):
        ri.Decode()(encoded(Image.new(mode, (4, 3)), "TIFF"))


def test_exif_orientation_only_where_asked_for():
    """By default pixels stay as they are stored."""
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees to the right
    data = encoded(picture(20, 30), "JPEG", exif=exif, quality=95)
    plain, turned = ri.Decode()(data), ri.Decode(exif=True)(data)
    assert plain.shape == (20, 30, 3)
    np.testing.assert_array_equal(turned, np.rot90(plain, -1))
    np.testing.assert_array_equal(
        ri.Compose(ri.Decode(exif=True), ri.CenterCrop((30, 20)))(data), turned
    )


def test_truncated_and_foreign_bytes():
    """A truncated JPEG is an error, not a half-grey image; foreign bytes are shown."""
    data = encoded(picture(), "JPEG")
    with pytest.raises(OSError, match="truncated"):
        ri.Decode()(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"not an image.*begin b'hello'"):
        ri.Decode()(b"hello")
    with pytest.raises(DataError, match="no bytes"):
        ri.Decode()(b"")
    with pytest.raises(DataError, match=r"not an image.*%!PS"):
        ri.Decode()(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")


@pytest.mark.parametrize(
    "value", [None, 3, "a.jpg", np.zeros((4, 4, 3)), np.zeros((3, 4, 5, 3), np.uint8)]
)
def test_values_that_are_not_an_image_are_named(value):
    """The error names the type, or the dtype and shape."""
    with pytest.raises(DataError, match="not an image"):
        ri.Resize(8)(value)


def test_bombs_are_refused(monkeypatch):
    """The header's size is checked before any pixel is decoded."""
    monkeypatch.setattr(pixels, "MAX_PIXELS", 4_799)
    with pytest.raises(DataError, match="80x60 pixels refused"):
        ri.Decode()(encoded(picture()))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    with pytest.raises(DataError, match="image refused"):
        ri.Decode()(encoded(picture()))


@pytest.mark.parametrize(
    "build",
    [
        lambda: ri.Resize(0),
        lambda: ri.Resize((1, 2, 3)),
        lambda: ri.CenterCrop((-1, 3)),
        lambda: ri.RandomResizedCrop(8, scale=(0.5, 0.1)),
        lambda: ri.RandomResizedCrop(8, ratio=(0, 1)),
        lambda: ri.RandomHorizontalFlip(1.5),
        lambda: ri.Decode("HSV"),
        ri.Compose,
        lambda: ri.Compose(len),
        lambda: ri.Normalize([0.5], [0.0]),
        lambda: ri.Normalize([0.5], [1, 1]),
        lambda: ri.Normalize([0.5], [1], dtype="int8"),
        lambda: ri.Normalize([0.5], [1], layout="CHW"),
    ],
)
def test_wrong_options_are_refused_where_they_are_given(build):
    """ConfigError at construction, not at the first image."""
    with pytest.raises(ConfigError):
        build()


def test_sizes_may_be_lists():
    """A list, as YAML gives, works as a tuple."""
    assert ri.Resize([8, 6]) == ri.Resize((8, 6))
    assert ri.RandomResizedCrop(8, scale=[0.5, 1]).scale == (0.5, 1)


def test_every_exported_transform_has_a_case_here():
    """A new transform cannot miss the tests above."""
    exported = {getattr(ri, name) for name in ri.__all__} - {ri.Transform, ri.Normalize}
    assert exported == {type(transform) for transform in ALL}


def test_completion_shows_the_transforms_alone():
    """`dir(ri.images)` has no module and no helper."""
    assert sorted(dir(ri)) == sorted(ri.__all__)
