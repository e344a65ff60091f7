"""A view: the pixels that some transforms, one after the other, take from an image.

Owns the geometry alone, as numbers: which part, resized to what, trimmed and mirrored. Draws no random numbers and
knows no library but Pillow, through which `of` gives what the transforms themselves would give. A reader that has no
pixels yet can see from it which ones it needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from PIL import Image

Box: TypeAlias = tuple[int, int, int, int]
"""(left, top, right, bottom) in pixels."""


@dataclass(frozen=True)
class View:
    """`box` of the image, resized to `size` (height, width), of which `trim` is kept, mirrored left to right.

    `size` is the box's own where nothing is resized, `trim` all of it where nothing is trimmed.
    """

    box: Box
    size: tuple[int, int]
    trim: Box
    mirrored: bool = False

    @classmethod
    def whole(cls, height: int, width: int) -> View:
        """All of an image."""
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

    def crop(self, box: Box) -> View | None:
        """A part of what is seen; None where that is no view: of a mirrored one, or where it sticks out."""
        left, top, right, bottom = box
        if self.mirrored or left < 0 or top < 0 or right > self.width or bottom > self.height:
            return None
        if self.is_resized:
            x, y = self.trim[:2]
            return replace(self, trim=(x + left, y + top, x + right, y + bottom))
        x, y = self.box[:2]
        size = bottom - top, right - left
        return View(
            (x + left, y + top, x + right, y + bottom), size, (0, 0, right - left, bottom - top)
        )

    def resize(self, height: int, width: int) -> View | None:
        """What is seen, resized; None where that is no view: of a mirrored one, or of one resized already."""
        if (self.height, self.width) == (height, width):
            return self
        if self.mirrored or self.is_resized:
            return None
        return replace(self, size=(height, width), trim=(0, 0, width, height))

    def mirror(self) -> View:
        """What is seen, left and right exchanged."""
        return replace(self, mirrored=not self.mirrored)

    def of(self, image: Image.Image) -> Image.Image:
        """This of a Pillow image: cropped first, then resized with the antialiased bilinear filter; bands are kept."""
        if self.box != (0, 0, *image.size):
            image = image.crop(self.box)
        if self.is_resized:
            image = image.resize(self.size[::-1], Image.Resampling.BILINEAR)
        if self.is_trimmed:
            image = image.crop(self.trim)
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if self.mirrored else image
