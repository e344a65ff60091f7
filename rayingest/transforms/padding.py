"""How one-dimensional fields of different lengths are padded to the batch's longest.

Owns what may be said of it, and a column's width. A column is as wide as its longest row, rounded up, whichever parts
it is made from: each is padded by itself, and the narrow ones are widened when they come together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rayingest.errors import ConfigError, DataError


@dataclass(frozen=True)
class Pad:
    """One field's padding.

    `value` is put where a row ends, on its `side` "right" or "left"; a batch's width is rounded up to `multiple_of`. A
    row of more than `longest` values is an error that names the sample, or with `truncate` cut at its end. `mask` adds
    `<field>_mask` (bool), True where a row's own values are. ConfigError for what is none of these.
    """

    value: float = 0
    side: str = "right"
    multiple_of: int = 1
    longest: int | None = None
    truncate: bool = False
    mask: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            raise ConfigError(f"Pad: value={self.value!r}: give a number")
        if self.side not in ("right", "left"):
            raise ConfigError(f"Pad: side={self.side!r}: choose 'right' or 'left'")
        for name, least in (("multiple_of", self.multiple_of), ("longest", self.longest)):
            if least is not None and (isinstance(least, bool) or not isinstance(least, int) or least < 1):
                raise ConfigError(f"Pad: {name}={least!r}: a whole number, 1 or more")
        if self.truncate and self.longest is None:
            raise ConfigError("Pad: truncate=True needs longest=..., the length to cut to")

    def fit(self, name: str, row: np.ndarray) -> np.ndarray:
        """The row, not longer than it may be. Raises DataError."""
        if self.longest is None or len(row) <= self.longest:
            return row
        if self.truncate:
            return row[: self.longest]
        raise DataError(
            f"field {name!r} has {len(row)} values, more than longest={self.longest}; truncate=True would cut it"
        )

    def width(self, longest: int) -> int:
        """Of a column whose longest row is so long."""
        return -(-longest // self.multiple_of) * self.multiple_of

    def check(self, name: str, dtype: np.dtype[Any]) -> None:
        """ConfigError where a column of this type does not have the value."""
        with np.errstate(all="ignore"):
            cast = np.array(self.value).astype(dtype)
        if dtype.kind != "f" and (cast.item() != self.value):
            raise ConfigError(f"Pad: value={self.value!r} for field {name!r} of {dtype}, which has no such value")

    def place(self, length: int, width: int) -> slice:
        """Where the own values of a row, or of a narrower part, are."""
        return slice(0, length) if self.side == "right" else slice(width - length, width)


PLAIN = Pad()


def mask_name(field: str) -> str:
    """The column that tells a padded field's own values (bool)."""
    return f"{field}_mask"
