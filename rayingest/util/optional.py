"""Import libraries that only one feature needs, when it is used."""

from __future__ import annotations

import importlib
from typing import Any

from rayingest.errors import ConfigError


def import_optional(module: str, extra: str, what: str) -> Any:
    """Return the module. ConfigError, with the extra to install, if it is missing.

    `what`: the feature that needs it, for the message.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs {error.name or module!r}: pip install 'rayingest[{extra}]'"
        ) from None
