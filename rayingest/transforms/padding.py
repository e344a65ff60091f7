"""Pad fields of different lengths to the longest of a batch.

Owns the options of padding, and where a value lies in its column. A column is as wide as its widest
row, rounded up, whichever parts it is made from: each part is padded by itself, and narrow parts
are widened when they come together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rayingest.errors import ConfigError, DataError

Ragged = np.ndarray | list[np.ndarray]
"""A padded field's value: an array or, with two padded axes, a list of 1-D arrays of any
lengths.
"""


@dataclass(frozen=True)
class Pad:
    """The padding of one field.

    - `value`: put where a row has no value of its own, on its `side`, "right" or "left".
    - `multiple_of`: a batch's width is rounded up to a multiple of it.
    - `longest`: the most values that a row may have. A longer row is an error that names the
      sample; with `truncate` it is cut at its end.
    - `mask`: add the column `<field>_mask` (bool), True at a row's own values.
    - `axes`: 1 or 2, how many of the first axes of arrays are padded; the others must agree, and
      `longest` limits the first. With 2, lists of lists of numbers are arrays too, whatever the
      lengths of the inner lists, and `<field>_length` is [rows, 2].

    Raises ConfigError for other values of these options.
    """

    value: float = 0
    side: str = "right"
    multiple_of: int = 1
    longest: int | None = None
    truncate: bool = False
    mask: bool = False
    axes: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            raise ConfigError(f"Pad: value={self.value!r}: give a number")
        if self.side not in ("right", "left"):
            raise ConfigError(f"Pad: side={self.side!r}: choose 'right' or 'left'")
        for name, least in (("multiple_of", self.multiple_of), ("longest", self.longest)):
            if least is not None and (
                isinstance(least, bool) or not isinstance(least, int) or least < 1
            ):
                raise ConfigError(f"Pad: {name}={least!r}: give a whole number, 1 or more")
        if isinstance(self.axes, bool) or self.axes not in (1, 2):
            raise ConfigError(
                f"Pad: axes={self.axes!r}: choose 1 or 2, the number of first axes to pad"
            )
        if self.truncate and self.longest is None:
            raise ConfigError("Pad: truncate=True needs longest=..., the length to cut to")

    def fit(self, name: str, row: Ragged) -> Ragged:
        """Return the row, cut to `longest` if `truncate`; DataError if it is too long."""
        if self.longest is None or len(row) <= self.longest:
            return row
        if self.truncate:
            return row[: self.longest]
        raise DataError(
            f"field {name!r} has {len(row)} values, more than longest={self.longest}; to cut it, "
            "use truncate=True"
        )

    def width(self, longest: int) -> int:
        """Return the width of a column whose longest row has `longest` values."""
        return -(-longest // self.multiple_of) * self.multiple_of

    def check(self, name: str, dtype: np.dtype[Any]) -> None:
        """Raise ConfigError if `value` cannot be a number of this dtype."""
        with np.errstate(all="ignore"):
            cast = np.array(self.value).astype(dtype)
        if dtype.kind != "f" and (cast.item() != self.value):
            raise ConfigError(
                f"Pad: value={self.value!r} for field {name!r} of {dtype}, which has no such value"
            )

    def place(self, length: int, width: int) -> slice:
        """Return the slice of a row, or of a wider part, in which `length` own values lie."""
        return slice(0, length) if self.side == "right" else slice(width - length, width)

    def places(self, shape: Sequence[int], widths: Sequence[int]) -> tuple[slice, ...]:
        """Return `place` on each of the padded axes."""
        return tuple(map(self.place, shape[: self.axes], widths))

    def lengths(self, values: Sequence[Ragged]) -> np.ndarray:
        """Return the lengths of the padded axes: int64[rows], or int64[rows, 2] for two axes."""
        extents = np.array([self._extents(value) for value in values], np.int64)
        return extents[:, 0] if self.axes == 1 else extents

    def column(self, values: Sequence[Ragged], dtype: np.dtype[Any]) -> np.ndarray:
        """Return the values (at least one) as a padded array with the rows as first axis.

        Raises ValueError if axes differ that are not padded.
        """
        rest, *others = {
            np.shape(value)[self.axes :] if self._is_array(value) else () for value in values
        }
        if others:
            raise ValueError("only the first axes are padded")
        widths = map(
            self.width, np.max([self._extents(value) for value in values], axis=0).tolist()
        )
        out = np.full((len(values), *widths, *rest), self.value, dtype)
        for row, own in zip(out, values, strict=True):
            if self._is_array(own):
                row[self.places(np.shape(own), row.shape)] = own
            else:
                for line, part in zip(row[self.place(len(own), len(row))], own, strict=True):
                    line[self.place(len(part), len(line))] = part
        return out

    def own_mask(self, values: Sequence[Ragged]) -> np.ndarray:
        """Return which entries of the column, on the padded axes, are values' own (bool)."""
        shapes = [
            np.ones(np.shape(value)[: self.axes], bool)
            if self._is_array(value)
            else [np.ones(len(part), bool) for part in value]
            for value in values
        ]
        return replace(self, value=0).column(shapes, np.dtype(bool))

    def _is_array(self, value: Ragged) -> bool:
        return self.axes == 1 or isinstance(value, np.ndarray)

    def _extents(self, value: Ragged) -> tuple[int, ...]:
        if self._is_array(value):
            return np.shape(value)[: self.axes]
        return len(value), max(map(len, value), default=0)


PLAIN = Pad()


def mask_name(field: str) -> str:
    """Return the name of the column that marks a padded field's own values (bool)."""
    return f"{field}_mask"
