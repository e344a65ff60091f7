"""Choose the image backend: the libraries that decode images, one choice for a whole run.

The choice is made where the loader is made, and travels with the work. A state records its name,
because pixels may differ between backends.
"""

from __future__ import annotations

from contextlib import suppress

from rayingest.errors import ConfigError
from rayingest.transforms.images import jpeg

PILLOW = "pillow"
"""Pillow decodes everything."""
TURBO = "turbo"
"""`jpeg` decodes the JPEGs that it can, Pillow everything else."""

BACKENDS = (PILLOW, TURBO)


def choose_backend(name: str | None) -> str:
    """Return this backend or, for None, the fastest whose libraries are installed.

    Raises ConfigError for an unknown name, or if its libraries are missing.
    """
    if name is None:
        with suppress(ConfigError):
            return choose_backend(TURBO)
        return PILLOW
    if name not in BACKENDS:
        raise ConfigError(f"image_backend={name!r}: choose one of {', '.join(map(repr, BACKENDS))}")
    if name == TURBO:
        jpeg.check_libraries()
    return name
