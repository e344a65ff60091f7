"""Image transforms: picklable values that turn encoded bytes (or arrays) into uint8 (height, width, channel) arrays.

Owns what is asked for, and its random numbers. Results are those of the usual Pillow pipeline: cropped first, then
resized with Pillow's antialiased bilinear filter, so that pixels outside a crop never bleed into it. How they are
applied is in `transform`, geometry in `view`, what runs on the device in `normalize`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
from PIL import Image

from rayingest.errors import ConfigError
from rayingest.transforms.images.normalize import Normalize
from rayingest.transforms.images.pixels import to_mode, upright
from rayingest.transforms.images.region import Box, View
from rayingest.transforms.images.transform import Extent, Geometry, Transform

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
        wrong = isinstance(self.max_pixels, bool) or not isinstance(
            self.max_pixels, (int, NoneType)
        )
        if wrong or (self.max_pixels is not None and self.max_pixels < 1):
            raise ConfigError(f"max_pixels={self.max_pixels!r}: a number of pixels, at least 1")

    @property
    def takes_any_mode(self) -> bool:
        return True

    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        return to_mode(upright(image) if self.exif else image, self.mode)

    def narrow(self, view: View, rng: np.random.Generator | None) -> View | None:
        return view if self.mode == "RGB" and not self.exif else None

    def extent_after(self, extent: Extent) -> Extent:
        return (None, None, _MODES[self.mode]) if self.exif else (*extent[:2], _MODES[self.mode])


@dataclass(frozen=True)
class Resize(Geometry):
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

    def narrow(self, view: View, rng: np.random.Generator | None) -> View | None:
        return view.resize(*self._target(view.height, view.width))

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
        return image.crop(self._box(image.height, image.width))

    def narrow(self, view: View, rng: np.random.Generator | None) -> View | None:
        return view.crop(self._box(view.height, view.width))

    def _box(self, height: int, width: int) -> Box:
        high, wide = _pair(self.size)
        top, left = _middle(height, high), _middle(width, wide)
        return left, top, left + wide, top + high

    def extent_after(self, extent: Extent) -> Extent:
        return (*_pair(self.size), extent[2])


@dataclass(frozen=True)
class RandomResizedCrop(Geometry):
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

    def box(self, height: int, width: int, rng: np.random.Generator) -> Box:
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

    def narrow(self, view: View, rng: np.random.Generator | None) -> View | None:
        assert rng is not None
        if view.is_resized or view.mirrored:
            return None
        part = view.crop(self.box(view.height, view.width, rng))
        return part and part.resize(*_pair(self.size))

    def extent_after(self, extent: Extent) -> Extent:
        return (*_pair(self.size), extent[2])


@dataclass(frozen=True)
class RandomHorizontalFlip(Geometry):
    """The mirror image (left and right exchanged) with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ConfigError(f"p={self.p}: a probability is between 0 and 1")

    @property
    def random(self) -> bool:
        return True

    def narrow(self, view: View, rng: np.random.Generator | None) -> View | None:
        assert rng is not None
        return view.mirror() if rng.random() < self.p else view

    def extent_after(self, extent: Extent) -> Extent:
        return extent


@dataclass(frozen=True, init=False, repr=False)
class Compose(Transform):
    """Several transforms, one after the other: `Compose(Resize(256), CenterCrop(224))`."""

    parts: tuple[Transform, ...]

    def __init__(self, *steps: Transform) -> None:
        for step in steps:
            if not isinstance(step, Transform):
                raise ConfigError(
                    f"Compose takes the transforms of ri.images, not {step!r}; use .map for a function"
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


def _pair(size: Any) -> tuple[int, int]:
    """(height, width) of a size given as one integer or two; ConfigError unless they are positive."""
    pair = (size, size) if isinstance(size, int) else size
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ConfigError(f"size {size!r}: give a positive integer, or (height, width)")
    return pair


def _middle(length: int, wanted: int) -> int:
    """Where `wanted` pixels begin in the middle of `length`; negative where they stick out."""
    return round((length - wanted) / 2) if wanted <= length else -((wanted - length) // 2)
