"""Describe a region: the pixels that some transforms, one after the other, take from an image.

Owns the geometry alone, as numbers: which part of the image, resized to which size, trimmed and
mirrored. Draws no random numbers. A reader that has no pixels yet can see from a region which ones
it needs; of a Pillow image, `take_from` takes the pixels that the transforms themselves would give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from PIL import Image

Box: TypeAlias = tuple[int, int, int, int]
"""(left, top, right, bottom) in pixels."""


@dataclass(frozen=True)
class Region:
    """`box` of the image, resized to `size` (height, width), cut to `trim`, then mirrored.

    `size` is the box's own if nothing is resized, `trim` all of it if nothing is trimmed.
    """

    box: Box
    size: tuple[int, int]
    trim: Box
    mirrored: bool = False

    @classmethod
    def whole(cls, height: int, width: int) -> Region:
        """Return all of an image."""
        box = (0, 0, width, height)
        return cls(box, (height, width), box)

    @property
    def height(self) -> int:
        return self.trim[3] - self.trim[1]

    @property
    def width(self) -> int:
        return self.trim[2] - self.trim[0]

    @property
    def is_resized(self) -> bool:
        left, top, right, bottom = self.box
        return self.size != (bottom - top, right - left)

    @property
    def is_trimmed(self) -> bool:
        return (self.height, self.width) != self.size

    def crop(self, box: Box) -> Region | None:
        """Return a part of this region.

        None if that is not a region: this one is mirrored, or the box sticks out.
        """
        left, top, right, bottom = box
        if self.mirrored or left < 0 or top < 0 or right > self.width or bottom > self.height:
            return None
        if self.is_resized:
            x, y = self.trim[:2]
            return replace(self, trim=(x + left, y + top, x + right, y + bottom))
        x, y = self.box[:2]
        size = bottom - top, right - left
        return Region(
            (x + left, y + top, x + right, y + bottom), size, (0, 0, right - left, bottom - top)
        )

    def resize(self, height: int, width: int) -> Region | None:
        """Return this region resized; None if it is mirrored, or resized already."""
        if (self.height, self.width) == (height, width):
            return self
        if self.mirrored or self.is_resized:
            return None
        return replace(self, size=(height, width), trim=(0, 0, width, height))

    def mirror(self) -> Region:
        """Return this region with left and right exchanged."""
        return replace(self, mirrored=not self.mirrored)

    def take_from(self, image: Image.Image) -> Image.Image:
        """Return this region of a Pillow image; its bands are kept.

        Cropped first, then resized with the antialiased bilinear filter, so that pixels outside a
        crop never bleed into it.
        """
        if self.box != (0, 0, *image.size):
            image = image.crop(self.box)
        if self.is_resized:
            image = image.resize(self.size[::-1], Image.Resampling.BILINEAR)
        if self.is_trimmed:
            image = image.crop(self.trim)
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if self.mirrored else image
