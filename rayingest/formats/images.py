"""Folders of images, one folder a class."""

from __future__ import annotations

from rayingest.formats.files import Files


class Images(Files):
    """Files as `files` has them, but for their contents: field `image`, decoded as one."""

    name = "images"
    suffixes = (
        ".jpg",
        ".jpeg",
        ".png",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
        ".webp",
        ".bmp",
        ".tif",
        ".tiff",
        ".gif",
    )
    contents = "image"
    encoding = "jpg"  # whose decoder takes every kind of image


FORMAT = Images()
