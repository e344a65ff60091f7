"""Turn fields of JSON objects into Arrow columns of given types.

There are two ways, with equal results. The exact way uses Python's `json` and reports what is
wrong. The fast way lets simdjson (https://simdjson.org) write lists of numbers straight into
memory, about five times as fast. It is used for a line if the library is installed and the line
cannot make the two differ: simdjson flattens nested lists, and takes the first of two fields with
one name. The exact way decides whatever the fast way refuses.
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
from rayingest.formats.nested import split_path, take_path

Wrong = Callable[[int, str], DataError]
"""Return the error of a line, given its number and the reason."""

_LIST = "list<"
_PYTHON = {"bool": (bool,), "string": (str,), "i": (int,), "u": (int,), "d": (int, float)}
"""The Python types of values, by Arrow type or by the letter in `_Field.wide`."""
_WIDE = {"i": np.dtype(np.int64), "u": np.dtype(np.uint64), "d": np.dtype(np.float64)}


@dataclass(frozen=True)
class _Field:
    """A field and its type.

    `kind`: the type of a value, or of the items of a list. `wide`: the letter of the wide type in
    which numbers are collected, "" if they are not numbers.
    """

    name: str
    kind: pa.DataType
    is_list: bool
    wide: str

    @property
    def key(self) -> bytes:
        """The bytes by which a line usually names the field."""
        return json.dumps(self.name, ensure_ascii=False).encode()

    def exact(self, value: Any) -> Any:
        """Check a value from `json`: numbers in their wide type, a list as an array.

        ValueError if the value is not of the type.
        """
        if value is None:
            return None
        items = value if self.is_list else [value]
        wanted = _PYTHON[self.wide or str(self.kind)]
        if type(items) is not list or any(type(item) not in wanted for item in items):
            raise ValueError(f"field {self.name!r}: {_shorten(value)} is not {self}")
        if self.wide:
            try:
                numbers = np.array(items, _WIDE[self.wide])
            except OverflowError:
                raise ValueError(
                    f"field {self.name!r}: {_shorten(value)} is out of range for {self.kind}"
                ) from None
            return numbers if self.is_list else self._narrow(numbers).item()
        if isinstance(value, str):
            value.encode()  # some strings of JSON have no UTF-8 form
        return value

    def fast(self, value: Any) -> Any:
        """Convert a value from simdjson; raises whatever simdjson raises."""
        if not self.is_list:
            return self.exact(value)
        return np.frombuffer(value.as_buffer(of_type=self.wide), _WIDE[self.wide])

    def column(self, values: Sequence[Any], wrong: Wrong) -> pa.Array:
        """Return the values as a column; DataError for a list with a number out of range."""
        if not self.is_list:
            return pa.array(values, self.kind)
        absent = np.array([value is None for value in values], bool)
        none = np.zeros(0, _WIDE[self.wide])
        parts = [none if value is None else value for value in values]
        try:
            flat = self._narrow(np.concatenate([none, *parts]))
        except ValueError:
            for number, part in enumerate(parts):
                try:
                    self._narrow(part)
                except ValueError as error:
                    raise wrong(number, str(error)) from None
            raise
        offsets = np.cumsum([0, *map(len, parts)]).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(offsets, mask=np.append(absent, False)), pa.array(flat)
        )

    def _narrow(self, numbers: np.ndarray) -> np.ndarray:
        """Return collected numbers in the field's own type; ValueError if one is out of range."""
        narrow = np.dtype(self.kind.to_pandas_dtype())
        if self.wide == "d":
            with np.errstate(over="ignore"):
                cast = numbers.astype(narrow)
            outside = numbers[np.isinf(cast) & np.isfinite(numbers)]
            if len(outside):
                raise ValueError(
                    f"field {self.name!r}: {outside[0]} is out of range for {self.kind}"
                )
            return cast
        limits = np.iinfo(narrow)
        outside = numbers[(numbers < limits.min) | (numbers > limits.max)]
        if len(outside):
            raise ValueError(f"field {self.name!r}: {outside[0]} is out of range for {self.kind}")
        return numbers.astype(narrow)

    def __str__(self) -> str:
        return f"list<{self.kind}>" if self.is_list else str(self.kind)


def check_types(types: Mapping[str, str]) -> None:
    """Raise ConfigError for a type that is not supported."""
    _fields(types)


def typed_columns(
    lines: Sequence[bytes], types: Mapping[str, str], wrong: Wrong
) -> dict[str, pa.Array]:
    """Return these fields of the lines' objects as columns, a row per line.

    A row is null if its line lacks the field or holds null. DataError for a line that is no JSON
    object, or that has a value of another type.
    """
    read = LineReader(types)
    values: list[list[Any]] = []
    for number, line in enumerate(lines):
        try:
            values.append(read(line))
        except (ValueError, RecursionError) as error:
            raise wrong(number, f"not a JSON object with the given types: {error}") from error
    columns = zip(*values, strict=True) if values else ([] for _ in read.fields)
    return {
        field.name: field.column(list(column), wrong)
        for field, column in zip(read.fields, columns, strict=True)
    }


class LineReader:
    """Read the values of one line, in the order of `types`.

    `fast`: whether simdjson, if it is installed, reads the lines for which it equals `json`.
    """

    def __init__(self, types: Mapping[str, str], *, fast: bool = True) -> None:
        self.fields = _fields(types)
        self._keys = [field.key for field in self.fields]
        self._lists = sum(field.is_list for field in self.fields)
        self._parser = None
        with suppress(ImportError):
            self._parser = importlib.import_module("simdjson").Parser() if fast else None

    @property
    def is_fast(self) -> bool:
        """Whether simdjson is in use."""
        return self._parser is not None

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
            raise ValueError(f"{_shorten(document)} is not an object")
        return [field.exact(_value_of(document, field.name)) for field in self.fields]

    def _fast(self, line: bytes) -> list[Any]:
        assert self._parser is not None
        document = self._parser.parse(line)
        return [field.fast(document[field.name]) for field in self.fields]


def _value_of(document: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field, or of a dotted path; None if there is none."""
    if name in document or (path := split_path(name, document)) is None:
        return document.get(name)
    with suppress(KeyError):
        return take_path(document[path[0]], path[1])
    return None


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
                f"types: the type {text!r} of field {name!r} is not supported; give 'bool', "
                "'string', a "
                "number such as 'int32' or 'float64', or a list of numbers such as 'list<int32>'"
            )
        fields.append(_Field(name, kind, is_list, wide))
    return fields


def _shorten(value: Any, most: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."
