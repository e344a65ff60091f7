"""What an image transform is, and how a chain of them is applied to one image.

Owns the choice of what reads the pixels: `jpeg`, where that is the run's path, it takes the data, and all the steps
together are one view; `pixels`, through Pillow, everywhere else. Which random numbers are drawn does not depend on it.
Results of one known shape are written straight into the batch array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from PIL import Image

from rayingest.errors import ConfigError
from rayingest.transforms.images.backend import PILLOW, TURBO
from rayingest.transforms.images.jpeg import Jpeg, open_jpeg
from rayingest.transforms.images.pixels import (
    ImageLike,
    open_image,
    put,
    size_limit,
    to_array,
    to_mode,
)
from rayingest.transforms.images.region import View

Extent = tuple[int | None, int | None, int]
"""Height, width and channels as far as they are known before an image is seen."""


class Transform(ABC):
    """A transform of one image; every one can stand alone as a field's decoder or inside `Compose`.

    Call it with encoded bytes, a uint8 array or a Pillow image. `rng` is needed where `random` is true. The result is
    uint8[H, W, C], written into `out` and returned where that is given. Bytes and images are converted to RGB first
    unless the first step is a `Decode`. `path`, one of `image_backend.PATHS`, is the run's where a loader calls it.
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
    def max_pixels(self) -> int | None:
        """The largest image that is decoded where this is the first step, None for the default."""
        return None

    @property
    def takes_any_mode(self) -> bool:
        """Whether it does not need the image in RGB where this is the first step."""
        return False

    @property
    def output_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of every result, None where it depends on the image."""
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
        path: str = PILLOW,
    ) -> np.ndarray:
        first, steps = self.steps[0], self.steps
        for step in steps:
            if step.random and rng is None:
                raise ConfigError(f"{step!r} draws random numbers: call it with rng=")
        view: View | None = None
        if path == TURBO and (jpeg := _jpeg(data, first.max_pixels)) is not None:
            view, steps = _narrowed(View.whole(jpeg.height, jpeg.width), steps, rng)
            pixels = None if steps else jpeg.read(view)
            if pixels is not None:
                return put(pixels, out)
        image = open_image(data, first.max_pixels)
        if steps != self.steps or not first.takes_any_mode:
            image = to_mode(image, "RGB")
        if view is not None:
            image = view.of(image)
        for step in steps:
            image = step.apply(image, rng)
        return to_array(image, out)

    @abstractmethod
    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        """The transformed image; the argument is left as it is."""

    def narrow(self, view: View, rng: np.random.Generator | None) -> View | None:
        """What this takes of a view of an RGB image, if that is a view again, and else None.

        Draws the random numbers that `apply` would draw, in the latter case none.
        """
        return None

    @abstractmethod
    def extent_after(self, extent: Extent) -> Extent:
        """What is known of the result's shape, given what is known of the input's."""


class Geometry(Transform):
    """One whose result is a view, whatever the image."""

    def apply(self, image: Image.Image, rng: np.random.Generator | None) -> Image.Image:
        view = self.narrow(View.whole(image.height, image.width), rng)
        assert view is not None
        return view.of(image)


def _narrowed(
    view: View, steps: tuple[Transform, ...], rng: np.random.Generator | None
) -> tuple[View, tuple[Transform, ...]]:
    """What is left of a view after as many steps as can be told so, and the other steps."""
    for done, step in enumerate(steps):
        narrower = step.narrow(view, rng)
        if narrower is None:
            return view, steps[done:]
        view = narrower
    return view, ()


def _jpeg(data: ImageLike, max_pixels: int | None) -> Jpeg | None:
    """The JPEG to read, None where Pillow is to read the data, or to refuse them."""
    jpeg = open_jpeg(data) if isinstance(data, (bytes, bytearray, memoryview)) else None
    return jpeg if jpeg is not None and jpeg.height * jpeg.width <= size_limit(max_pixels) else None
