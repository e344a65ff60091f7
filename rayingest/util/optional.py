"""Libraries that only one format needs: loaded when it is used, and named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from rayingest.errors import ConfigError


def import_optional(module: str, extra: str, what: str) -> Any:
    """The module; ConfigError that says what wants it, and how to install it, where it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs {error.name or module!r}: pip install 'rayingest[{extra}]'"
        ) from None
