"""Transform the geometry of images: resize, crop and mirror them.

Owns the options of these transforms, and the random numbers they draw. Results are those of the
usual Pillow pipeline: cropped first, then resized with Pillow's antialiased bilinear filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from rayingest.errors import ConfigError
from rayingest.transforms.images.region import Box, Region
from rayingest.transforms.images.transform import Extent, Transform

_TRIES = 10


class Geometry(Transform):
    """A transform whose result is a region of the image, whatever the image."""

    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        region = self.narrow(Region.whole(image.height, image.width), rng)
        assert region is not None
        return region.take_from(image)


@dataclass(frozen=True)
class Resize(Geometry):
    """Resize to `size`: (height, width), or an integer for the shorter side.

    An integer keeps the aspect ratio.
    """

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

    def narrow(self, region: Region, rng: np.random.Generator | None) -> Region | None:
        return region.resize(*self._target(region.height, region.width))

    def extent_after(self, extent: Extent) -> Extent:
        if isinstance(self.size, tuple):
            return (*self.size, extent[2])
        if extent[0] is None or extent[1] is None:
            return (None, None, extent[2])
        return (*self._target(extent[0], extent[1]), extent[2])


@dataclass(frozen=True)
class CenterCrop(Transform):
    """Take the middle of the image, of `size`: an integer (a square), or (height, width).

    Smaller images are framed in zeros.
    """

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        if not isinstance(self.size, int):
            object.__setattr__(self, "size", tuple(self.size))
        _pair(self.size)

    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        return image.crop(self._box(image.height, image.width))

    def narrow(self, region: Region, rng: np.random.Generator | None) -> Region | None:
        return region.crop(self._box(region.height, region.width))

    def _box(self, height: int, width: int) -> Box:
        high, wide = _pair(self.size)
        top, left = _middle(height, high), _middle(width, wide)
        return left, top, left + wide, top + high

    def extent_after(self, extent: Extent) -> Extent:
        return (*_pair(self.size), extent[2])


@dataclass(frozen=True)
class RandomResizedCrop(Geometry):
    """Take a random part of the image, resized to `size`: an integer (a square), or (height,
    width).

    The part's area is uniform in `scale` times the image's, its width / height is log-uniform in
    `ratio`. After ten tries that do not fit, it is the largest central part within `ratio` (Szegedy
    et al., "Going deeper with convolutions", 2015, as commonly implemented). The part is cut out
    first, then resized.
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
        """Return the part (left, top, right, bottom) to take from an image of this size."""
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

    def narrow(self, region: Region, rng: np.random.Generator | None) -> Region | None:
        assert rng is not None
        if region.is_resized or region.mirrored:
            return None
        part = region.crop(self.box(region.height, region.width, rng))
        return part and part.resize(*_pair(self.size))

    def extent_after(self, extent: Extent) -> Extent:
        return (*_pair(self.size), extent[2])


@dataclass(frozen=True)
class RandomHorizontalFlip(Geometry):
    """Exchange left and right with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ConfigError(f"p={self.p}: a probability is between 0 and 1")

    @property
    def random(self) -> bool:
        return True

    def narrow(self, region: Region, rng: np.random.Generator | None) -> Region | None:
        assert rng is not None
        return region.mirror() if rng.random() < self.p else region

    def extent_after(self, extent: Extent) -> Extent:
        return extent


def _pair(size: Any) -> tuple[int, int]:
    """Return (height, width) of one integer or two; ConfigError unless they are positive."""
    pair = (size, size) if isinstance(size, int) else size
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ConfigError(f"size {size!r}: give a positive integer, or (height, width)")
    return pair


def _middle(length: int, wanted: int) -> int:
    """Return where `wanted` pixels begin in the middle of `length`; negative if they stick out."""
    return round((length - wanted) / 2) if wanted <= length else -((wanted - length) // 2)
