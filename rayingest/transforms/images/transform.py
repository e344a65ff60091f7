"""Apply image transforms: what one is, what a chain of them is, and how images are opened for it.

Owns the choice which reader gives the pixels. With the backend "turbo" and a JPEG that `jpeg` can
read, all the steps together are one region of the image, and `jpeg` reads just that; in every other
case `pixels` opens the image through Pillow and the steps are applied one by one. The random
numbers drawn are the same either way. Results of one known shape are written straight into the
batch.

The transforms themselves are in `geometry`, what runs on the device in `normalize`. Only `Decode`
and `Compose` are here, because every chain is built from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import NoneType

import numpy as np
from PIL import Image

from rayingest.errors import ConfigError
from rayingest.transforms.images.jpeg import PILLOW, TURBO, Jpeg, open_jpeg
from rayingest.transforms.images.pixels import (
    ImageLike,
    open_image,
    size_limit,
    to_array,
    to_mode,
    turn_upright,
    write_pixels,
)
from rayingest.transforms.images.region import Region

Extent = tuple[int | None, int | None, int]
"""Height, width and channels, as far as they are known before an image is seen."""

_CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4, "P": 1}


class Transform(ABC):
    """A transform of one image. It works alone as a field's decoder, or inside `Compose`.

    A new one implements `apply` and `extent_after`; `random` if it draws random numbers; and
    `narrow` if its result is a region of the image, so that fewer pixels need to be decoded.
    """

    @property
    def random(self) -> bool:
        """Whether it draws random numbers, and so needs `rng`."""
        return False

    @property
    def steps(self) -> tuple[Transform, ...]:
        """The transforms that it consists of, in order."""
        return (self,)

    @property
    def output_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of every result; None if they depend on the image."""
        extent: Extent = (None, None, 3)
        for step in self.steps:
            extent = step.extent_after(extent)
        height, width, channels = extent
        return None if height is None or width is None else (height, width, channels)

    def __call__(
        self,
        data: ImageLike,
        rng: np.random.Generator | None = None,
        out: np.ndarray | None = None,
        image_backend: str = PILLOW,
    ) -> np.ndarray:
        """Transform encoded bytes, a uint8 array or a Pillow image to a uint8[H, W, C] array.

        `rng` is needed if `random` is true. The result is written into `out`, and that is returned,
        if `out` is given. Images are converted to RGB first, unless the first step is a `Decode`.
        Raises DataError for data that is not a readable image.
        """
        for step in self.steps:
            if step.random and rng is None:
                raise ConfigError(f"{step!r} draws random numbers: call it with rng=")
        decode, steps = _decode_first(self.steps)
        region: Region | None = None
        rest = steps
        if image_backend == TURBO and (jpeg := _open_jpeg(data, decode.max_pixels)) is not None:
            region, rest = _narrow(Region.whole(jpeg.height, jpeg.width), steps, rng)
            pixels = None if rest else jpeg.read(region)
            if pixels is not None:
                return write_pixels(pixels, out)
        image = open_image(data, decode.max_pixels)
        if region is not None and len(rest) < len(steps):
            # `_narrow` has drawn the random numbers of the steps in the region already.
            image = region.take_from(to_mode(image, "RGB"))
        for step in rest:
            image = step.apply(image, rng)
        return to_array(image, out)

    @abstractmethod
    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        """Return the transformed image; the argument is left as it is."""

    def narrow(self, region: Region, rng: np.random.Generator | None) -> Region | None:
        """Return the part of a region of an RGB image that this takes; None if not a region.

        Draws the random numbers that `apply` would draw, or none if it returns None.
        """
        return None

    @abstractmethod
    def extent_after(self, extent: Extent) -> Extent:
        """Return what is known of the result's shape, given what is known of the input's."""


@dataclass(frozen=True)
class Decode(Transform):
    """Decode without changing the size, to `mode` "RGB", "L" (grey, one channel), "RGBA" or "P".

    "P" is for masks: one channel with the numbers of the palette's colours, or of grey of at most
    8 bits, as they are in the file; steps that resize take the nearest number and mix none.
    EXIF orientation is applied only if `exif` is true (Pillow applies a TIFF file's own in any
    case). `max_pixels` counts if this is the first step: the largest image that is decoded. Its
    default is 89,478,485 pixels, or less if `PIL.Image.MAX_IMAGE_PIXELS` is set to less; TIFF and
    WebP files never exceed twice that setting. `Decode()` is the default decoder of image fields.
    """

    mode: str = "RGB"
    exif: bool = False
    max_pixels: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in _CHANNELS:
            raise ConfigError(f"mode {self.mode!r}: choose one of {', '.join(_CHANNELS)}")
        wrong = isinstance(self.max_pixels, bool) or not isinstance(
            self.max_pixels, (int, NoneType)
        )
        if wrong or (self.max_pixels is not None and self.max_pixels < 1):
            raise ConfigError(f"max_pixels={self.max_pixels!r}: a number of pixels, at least 1")

    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        return to_mode(turn_upright(image) if self.exif else image, self.mode)

    def narrow(self, region: Region, rng: np.random.Generator | None) -> Region | None:
        return region if self.mode == "RGB" and not self.exif else None

    def extent_after(self, extent: Extent) -> Extent:
        channels = _CHANNELS[self.mode]
        return (None, None, channels) if self.exif else (*extent[:2], channels)


@dataclass(frozen=True, init=False, repr=False)
class Compose(Transform):
    """Several transforms, one after the other: `Compose(Resize(256), CenterCrop(224))`."""

    parts: tuple[Transform, ...]

    def __init__(self, *steps: Transform) -> None:
        for step in steps:
            if not isinstance(step, Transform):
                raise ConfigError(
                    f"Compose takes the transforms of ri.images, not {step!r}; use .map for a "
                    "function"
                )
        if not steps:
            raise ConfigError("Compose needs at least one transform")
        object.__setattr__(self, "parts", tuple(inner for step in steps for inner in step.steps))

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.parts))})"

    @property
    def random(self) -> bool:
        return any(step.random for step in self.parts)

    @property
    def steps(self) -> tuple[Transform, ...]:
        return self.parts

    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        for step in self.parts:
            image = step.apply(image, rng)
        return image

    def extent_after(self, extent: Extent) -> Extent:
        for step in self.parts:
            extent = step.extent_after(extent)
        return extent


def _decode_first(steps: tuple[Transform, ...]) -> tuple[Decode, tuple[Transform, ...]]:
    """Return the step that decodes, and the steps with that one in front."""
    first = steps[0]
    return (first, steps) if isinstance(first, Decode) else (_DECODE, (_DECODE, *steps))


_DECODE = Decode()


def _narrow(
    region: Region, steps: tuple[Transform, ...], rng: np.random.Generator | None
) -> tuple[Region, tuple[Transform, ...]]:
    """Return the region after as many steps as have one, and the other steps."""
    for done, step in enumerate(steps):
        narrower = step.narrow(region, rng)
        if narrower is None:
            return region, steps[done:]
        region = narrower
    return region, ()


def _open_jpeg(data: ImageLike, max_pixels: int | None) -> Jpeg | None:
    """Return the JPEG to read; None if Pillow is to read the data, or to refuse it."""
    jpeg = open_jpeg(data) if isinstance(data, (bytes, bytearray, memoryview)) else None
    return jpeg if jpeg is not None and jpeg.height * jpeg.width <= size_limit(max_pixels) else None
