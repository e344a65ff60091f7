"""Image transforms: picklable values that turn encoded bytes (or arrays) into uint8 (height, width, channel) arrays.

Owns geometry and its random numbers. They work through Pillow and give what the usual Pillow pipeline gives: cropped
first, then resized with Pillow's antialiased bilinear filter, so that pixels outside a crop never bleed into it. A
transform whose result has one known shape says so in `output_shape` and writes straight into the batch array. Reading
pixels is in `pixels`, what runs on the device in `normalize`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
from PIL import Image

from rayingest.errors import ConfigError
from rayingest.transforms.normalize import Normalize
from rayingest.transforms.pixels import ImageLike, open_image, to_array, to_mode, upright

__all__ = [
    "CenterCrop",
    "Compose",
    "Decode",
    "Normalize",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "Transform",
]

_MODES = {"RGB": 3, "L": 1, "RGBA": 4}
_TRIES = 10

Extent = tuple[int | None, int | None, int]
"""Height, width and channels as far as they are known before an image is seen."""


class Transform(ABC):
    """A transform of one image; every one can stand alone as a field's decoder or inside `Compose`.

    Call it with encoded bytes, a uint8 array or a Pillow image. `rng` is needed where `random` is true. The result is
    uint8[H, W, C], written into `out` and returned where that is given. Bytes and images are converted to RGB first
    unless the first step is a `Decode`.
    """

    @property
    def random(self) -> bool:
        """Whether it draws random numbers, and so needs `rng`."""
        return False

    @property
    def steps(self) -> tuple[Transform, ...]:
        """What it consists of, in order."""
        return (self,)

    @property
    def output_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of every result, None where it depends on the image."""
        extent: Extent = (None, None, 3)
        for step in self.steps:
            extent = step.extent_after(extent)
        height, width, channels = extent
        return None if height is None or width is None else (height, width, channels)

    def __call__(
        self, data: ImageLike, rng: np.random.Generator | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        first = self.steps[0]
        image = open_image(data, first.max_pixels if isinstance(first, Decode) else None)
        if not isinstance(first, Decode):
            image = to_mode(image, "RGB")
        for step in self.steps:
            if step.random and rng is None:
                raise ConfigError(f"{step!r} draws random numbers: call it with rng=")
            image = step.apply(image, rng)
        return to_array(image, out)

    @abstractmethod
    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        """The transformed image; the argument is left as it is."""

    @abstractmethod
    def extent_after(self, extent: Extent) -> Extent:
        """What is known of the result's shape, given what is known of the input's."""


@dataclass(frozen=True)
class Decode(Transform):
    """Decode without changing the size: "RGB", "L" (grey, one channel) or "RGBA".

    EXIF orientation is applied only where `exif` is true (and by Pillow to TIFF files, where it is no matter of EXIF).
    `max_pixels`, where this is the first step: the largest image that is decoded; by default 89,478,485 pixels, less
    where `PIL.Image.MAX_IMAGE_PIXELS` says so, whose double TIFF and WebP files never exceed. `Decode()` is what image
    fields get by default.
    """

    mode: str = "RGB"
    exif: bool = False
    max_pixels: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ConfigError(f"mode {self.mode!r}: choose one of {', '.join(_MODES)}")
        wrong = isinstance(self.max_pixels, bool) or not isinstance(self.max_pixels, (int, NoneType))
        if wrong or (self.max_pixels is not None and self.max_pixels < 1):
            raise ConfigError(f"max_pixels={self.max_pixels!r}: a number of pixels, at least 1")

    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        return to_mode(upright(image) if self.exif else image, self.mode)

    def extent_after(self, extent: Extent) -> Extent:
        return (None, None, _MODES[self.mode]) if self.exif else (*extent[:2], _MODES[self.mode])


@dataclass(frozen=True)
class Resize(Transform):
    """Resize to `size`: (height, width), or an integer for the shorter side with the aspect ratio kept."""

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        if not isinstance(self.size, int):
            object.__setattr__(self, "size", tuple(self.size))
        _pair(self.size)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if isinstance(self.size, tuple):
            return self.size
        if height <= width:
            return self.size, max(1, int(self.size * width / height))
        return max(1, int(self.size * height / width)), self.size

    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        return _resized(image, *self._target(image.height, image.width))

    def extent_after(self, extent: Extent) -> Extent:
        if isinstance(self.size, tuple):
            return (*self.size, extent[2])
        if extent[0] is None or extent[1] is None:
            return (None, None, extent[2])
        return (*self._target(extent[0], extent[1]), extent[2])


@dataclass(frozen=True)
class CenterCrop(Transform):
    """The middle `size` (integer: a square; or (height, width)); smaller images are framed in zeros."""

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        if not isinstance(self.size, int):
            object.__setattr__(self, "size", tuple(self.size))
        _pair(self.size)

    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        height, width = _pair(self.size)
        top, left = _middle(image.height, height), _middle(image.width, width)
        return image.crop((left, top, left + width, top + height))

    def extent_after(self, extent: Extent) -> Extent:
        return (*_pair(self.size), extent[2])


@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """A random part of the image, resized to `size` (integer: a square; or (height, width)).

    The part's area is uniform in `scale` times the image's, its width/height is log-uniform in `ratio`; ten tries, then
    the largest central part within `ratio` (Szegedy et al., "Going deeper with convolutions", 2015, as commonly
    implemented). The part is cut out first, then resized.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if not isinstance(self.size, int):
            object.__setattr__(self, "size", tuple(self.size))
        _pair(self.size)
        for name in ("scale", "ratio"):
            low_high = tuple(getattr(self, name))
            if len(low_high) != 2 or not 0 < low_high[0] <= low_high[1]:
                raise ConfigError(f"{name}={low_high}: give (low, high) with 0 < low <= high")
            object.__setattr__(self, name, low_high)

    @property
    def random(self) -> bool:
        return True

    def box(self, height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """(left, top, right, bottom) of the part to take from an image of this size."""
        log_low, log_high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(_TRIES):
            area = height * width * rng.uniform(*self.scale)
            aspect = math.exp(rng.uniform(log_low, log_high))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
                return left, top, left + w, top + h
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        w = min(width, max(1, round(height * aspect)))
        h = min(height, max(1, round(width / aspect)))
        top, left = (height - h) // 2, (width - w) // 2
        return left, top, left + w, top + h

    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        assert rng is not None
        return _resized(image.crop(self.box(image.height, image.width, rng)), *_pair(self.size))

    def extent_after(self, extent: Extent) -> Extent:
        return (*_pair(self.size), extent[2])


@dataclass(frozen=True)
class RandomHorizontalFlip(Transform):
    """The mirror image (left and right exchanged) with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ConfigError(f"p={self.p}: a probability is between 0 and 1")

    @property
    def random(self) -> bool:
        return True

    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        assert rng is not None
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < self.p else image

    def extent_after(self, extent: Extent) -> Extent:
        return extent


@dataclass(frozen=True, init=False, repr=False)
class Compose(Transform):
    """Several transforms, one after the other: `Compose(Resize(256), CenterCrop(224))`."""

    parts: tuple[Transform, ...]

    def __init__(self, *steps: Transform) -> None:
        for step in steps:
            if not isinstance(step, Transform):
                raise ConfigError(f"Compose takes the transforms of ri.images, not {step!r}; use .map for a function")
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


def _pair(size: Any) -> tuple[int, int]:
    """(height, width) of a size given as one integer or two; ConfigError unless they are positive."""
    pair = (size, size) if isinstance(size, int) else size
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ConfigError(f"size {size!r}: give a positive integer, or (height, width)")
    return pair


def _middle(length: int, wanted: int) -> int:
    """Where `wanted` pixels begin in the middle of `length`; negative where they stick out."""
    return round((length - wanted) / 2) if wanted <= length else -((wanted - length) // 2)


def _resized(image: Image.Image, height: int, width: int) -> Image.Image:
    if image.size == (width, height):
        return image
    return image.resize((width, height), Image.Resampling.BILINEAR)
