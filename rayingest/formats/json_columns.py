"""Fields of JSON objects as Arrow columns of types that were given.

Two ways to the same values. One goes through Python's own objects, as `json` makes them, and says what is wrong. The
other has simdjson (https://simdjson.org) write lists of numbers straight into memory, about five times as fast; it is
taken, line by line, where that library is installed and nothing about the line could make it differ: it lets lists in
lists run together, and of two fields of one name it takes the first. Whatever it refuses, the first way decides.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError, DataError

Wrong = Callable[[int, str], DataError]
"""The error of a line, by its number, that says this."""

_LIST = "list<"
_PYTHON = {"bool": (bool,), "string": (str,), "i": (int,), "u": (int,), "d": (int, float)}
"""What values must be, by type, or by what numbers are collected as."""
_WIDE = {"i": np.dtype(np.int64), "u": np.dtype(np.uint64), "d": np.dtype(np.float64)}


@dataclass(frozen=True)
class _Field:
    """`kind` is that of a value, or of a list's items; `wide` what numbers are collected as, "" for others."""

    name: str
    kind: pa.DataType
    is_list: bool
    wide: str

    @property
    def key(self) -> bytes:
        """How a line says the name, if it does not go out of its way."""
        return json.dumps(self.name, ensure_ascii=False).encode()

    def exact(self, value: Any) -> Any:
        """A value as `json` gives it, numbers as what they are collected as, a list as an array; ValueError where it is
        not of the type.
        """
        if value is None:
            return None
        items = value if self.is_list else [value]
        wanted = _PYTHON[self.wide or str(self.kind)]
        if type(items) is not list or any(type(item) not in wanted for item in items):
            raise ValueError(f"field {self.name!r}: {_shortened(value)} is no {self}")
        if self.wide:
            try:
                numbers = np.array(items, _WIDE[self.wide])
            except OverflowError:
                raise ValueError(
                    f"field {self.name!r}: {_shortened(value)} is beyond {self.kind}"
                ) from None
            return numbers if self.is_list else self._fitting(numbers).item()
        if isinstance(value, str):
            value.encode()  # not every string that JSON can write has a UTF-8 form
        return value

    def fast(self, value: Any) -> Any:
        """The same of a value as simdjson gives it; raises whatever it does."""
        if not self.is_list:
            return self.exact(value)
        return np.frombuffer(value.as_buffer(of_type=self.wide), _WIDE[self.wide])

    def column(self, values: Sequence[Any], wrong: Wrong) -> pa.Array:
        """The values one below the other; DataError for a list with a number that the type cannot hold."""
        if not self.is_list:
            return pa.array(values, self.kind)
        absent = np.array([value is None for value in values], bool)
        none = np.zeros(0, _WIDE[self.wide])
        parts = [none if value is None else value for value in values]
        try:
            flat = self._fitting(np.concatenate([none, *parts]))
        except ValueError:
            for number, part in enumerate(parts):
                try:
                    self._fitting(part)
                except ValueError as error:
                    raise wrong(number, str(error)) from None
            raise
        offsets = np.cumsum([0, *map(len, parts)]).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(offsets, mask=np.append(absent, False)), pa.array(flat)
        )

    def _fitting(self, numbers: np.ndarray) -> np.ndarray:
        """Collected numbers in the type's own width; ValueError where one is beyond it."""
        narrow = np.dtype(self.kind.to_pandas_dtype())
        if self.wide == "d":
            with np.errstate(over="ignore"):
                cast = numbers.astype(narrow)
            beyond = numbers[np.isinf(cast) & np.isfinite(numbers)]
            if len(beyond):
                raise ValueError(f"field {self.name!r}: {beyond[0]} is beyond {self.kind}")
            return cast
        limits = np.iinfo(narrow)
        beyond = numbers[(numbers < limits.min) | (numbers > limits.max)]
        if len(beyond):
            raise ValueError(f"field {self.name!r}: {beyond[0]} is beyond {self.kind}")
        return numbers.astype(narrow)

    def __str__(self) -> str:
        return f"list<{self.kind}>" if self.is_list else str(self.kind)


def check_types(types: Mapping[str, str]) -> None:
    """ConfigError for a type that these columns cannot have."""
    _fields(types)


def typed_columns(
    lines: Sequence[bytes], types: Mapping[str, str], wrong: Wrong
) -> dict[str, pa.Array]:
    """These fields of the objects that the lines are, a row a line, null where a line has no such field, or null.

    Raises DataError for a line that is no JSON object or has a value of another type.
    """
    fields = _fields(types)
    read = _Reader(fields)
    values: list[list[Any]] = []
    for number, line in enumerate(lines):
        try:
            values.append(read(line))
        except (ValueError, RecursionError) as error:
            raise wrong(number, f"no JSON object of the types given: {error}") from error
    columns = zip(*values, strict=True) if values else ([] for _ in fields)
    return {
        field.name: field.column(list(column), wrong)
        for field, column in zip(fields, columns, strict=True)
    }


class _Reader:
    """A line's values, in the fields' order."""

    def __init__(self, fields: Sequence[_Field]) -> None:
        self._fields = fields
        self._keys = [field.key for field in fields]
        self._lists = sum(field.is_list for field in fields)
        self._parser = None
        with suppress(ImportError):
            self._parser = importlib.import_module("simdjson").Parser()

    def __call__(self, line: bytes) -> list[Any]:
        if (
            self._parser is not None
            and line.count(b"[") <= self._lists
            and all(line.count(k) == 1 for k in self._keys)
        ):
            with suppress(Exception):
                return self._fast(line)
        document = json.loads(line)
        if type(document) is not dict:
            raise ValueError(f"{_shortened(document)} is no object")
        return [field.exact(document.get(field.name)) for field in self._fields]

    def _fast(self, line: bytes) -> list[Any]:
        assert self._parser is not None
        document = self._parser.parse(line)
        return [field.fast(document[field.name]) for field in self._fields]


def _fields(types: Mapping[str, str]) -> list[_Field]:
    fields = []
    for name, text in types.items():
        is_list = text.startswith(_LIST) and text.endswith(">")
        try:
            kind = pa.type_for_alias(text[len(_LIST) : -1] if is_list else text)
        except ValueError:
            kind = pa.null()
        signed, unsigned = pa.types.is_signed_integer(kind), pa.types.is_unsigned_integer(kind)
        wide = "i" if signed else "u" if unsigned else "d" if pa.types.is_floating(kind) else ""
        if not wide and (is_list or str(kind) not in _PYTHON):
            raise ConfigError(
                f"types: field {name!r} cannot be {text!r}; it can be 'bool', 'string', a number, as in 'int32' and "
                "'float64', or a list of them, as in 'list<int32>'"
            )
        fields.append(_Field(name, kind, is_list, wide))
    return fields


def _shortened(value: Any, most: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."
