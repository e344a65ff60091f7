"""How fields of different extents are padded to the batch's largest.

Owns what may be said of it, and how values are laid into a column. A column is as wide as its widest row, rounded up,
whichever parts it is made from: each is padded by itself, and the narrow ones are widened when they come together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rayingest.errors import ConfigError, DataError

Ragged = np.ndarray | list[np.ndarray]
"""A padded field's value: an array, or, where two axes are padded, 1-D arrays of any lengths for the rows of one."""


@dataclass(frozen=True)
class Pad:
    """One field's padding.

    `value` is put where a row ends, on its `side` "right" or "left"; a batch's width is rounded up to `multiple_of`. A
    row of more than `longest` values is an error that names the sample, or with `truncate` cut at its end. `mask` adds
    `<field>_mask` (bool), True where a row's own values are. ConfigError for what is none of these.

    Of arrays with several dimensions the first `axes`, 1 or 2, are padded, the others must agree; `longest` is of the
    first. With 2, lists of lists of numbers are arrays too, whatever the lengths of the inner ones, and
    `<field>_length` is [rows, 2].
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
                raise ConfigError(f"Pad: {name}={least!r}: a whole number, 1 or more")
        if isinstance(self.axes, bool) or self.axes not in (1, 2):
            raise ConfigError(
                f"Pad: axes={self.axes!r}: 1 or 2, how many of the first axes are padded"
            )
        if self.truncate and self.longest is None:
            raise ConfigError("Pad: truncate=True needs longest=..., the length to cut to")

    def fit(self, name: str, row: Ragged) -> Ragged:
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
            raise ConfigError(
                f"Pad: value={self.value!r} for field {name!r} of {dtype}, which has no such value"
            )

    def place(self, length: int, width: int) -> slice:
        """Where the own values of a row, or of a narrower part, are."""
        return slice(0, length) if self.side == "right" else slice(width - length, width)

    def places(self, shape: Sequence[int], widths: Sequence[int]) -> tuple[slice, ...]:
        """The same on each of the padded axes."""
        return tuple(map(self.place, shape[: self.axes], widths))

    def lengths(self, values: Sequence[Ragged]) -> np.ndarray:
        """The extents of the values' padded axes: int64 [rows], or [rows, 2] for two axes."""
        extents = np.array([self._extents(value) for value in values], np.int64)
        return extents[:, 0] if self.axes == 1 else extents

    def column(self, values: Sequence[Ragged], dtype: np.dtype[Any]) -> np.ndarray:
        """The values one below the other, filled up; at least one. ValueError where axes differ that are not padded."""
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

    def own(self, values: Sequence[Ragged]) -> np.ndarray:
        """Which of the column's entries on the padded axes are the values' own (bool)."""
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
    """The column that tells a padded field's own values (bool)."""
    return f"{field}_mask"
