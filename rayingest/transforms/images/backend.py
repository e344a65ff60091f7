"""Which libraries decode images: one choice for a whole run, made where the loader is made and shipped with the work.

Owns the names and the choice. A state records the name, since bytes may differ from one path to another.
"""

from __future__ import annotations

from contextlib import suppress

from rayingest.errors import ConfigError
from rayingest.transforms.images import jpeg

PILLOW = "pillow"
TURBO = "turbo"
"""What `jpeg` reads is read by it, all else by Pillow."""

PATHS = (PILLOW, TURBO)


def choose_backend(asked: str | None) -> str:
    """The path asked for, or, for None, the fastest whose libraries are there. Raises ConfigError."""
    if asked is None:
        with suppress(ConfigError):
            return choose_backend(TURBO)
        return PILLOW
    if asked not in PATHS:
        raise ConfigError(f"image_backend={asked!r}: choose one of {', '.join(map(repr, PATHS))}")
    if asked == TURBO:
        jpeg.check_libraries()
    return asked
