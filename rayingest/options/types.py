"""Declare the option types that public calls share, from counts to URLs.

Owns the values that each type allows and the words for them; `checked` checks calls against them.
"""

from __future__ import annotations

import numbers
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from rayingest.options.checked import OptionTypeError, option_type, whole


def _flag(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError
    return bool(value)


def _function(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    return value


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError
    return float(value)


def _seconds(value: Any) -> float:
    seconds = _real(value)
    if not seconds > 0:
        raise ValueError
    return seconds


def _decoders(value: Any) -> int | tuple[int, int]:
    if isinstance(value, bool):
        raise TypeError
    if not isinstance(value, (list, tuple)):
        number = operator.index(value)
        if number < 0:
            raise ValueError
        return number
    least, most = (_decoders(number) for number in value)
    if not isinstance(least, int) or not isinstance(most, int) or not 1 <= least <= most:
        raise ValueError
    return least, most


def _count_or_part(value: Any) -> int | float:
    number = int(value) if isinstance(value, numbers.Integral) else _real(value)
    if isinstance(value, bool) or number < 0 or (isinstance(number, float) and not 0 < number <= 1):
        raise ValueError
    return number


def _place(value: Any) -> str:
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError
    if not text.strip():
        raise OptionTypeError("it is empty")
    return text


def _urls(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, (str, os.PathLike)):
        return _place(value)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise TypeError
    if not value:
        raise OptionTypeError("it is empty")
    for number, item in enumerate(value):
        try:
            _place(item)
        except (TypeError, OptionTypeError):
            raise OptionTypeError(f"its item {number} is not a path or URL") from None
    return tuple(map(_place, value))


def _folder_here(value: Any) -> str:
    place = _place(value)
    if "://" in place:
        raise ValueError
    return place


def _names(value: Any) -> tuple[str, ...]:
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(name, str) for name in value)
    ):
        raise TypeError
    return tuple(value)


def _character(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1:
        raise TypeError
    return value


def _texts(value: Any) -> dict[str, str]:
    if not all(isinstance(text, str) for text in _mapping(value).values()):
        raise TypeError
    return dict(value)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError
    return dict(value)


def _functions(value: Any) -> dict[str, Any]:
    by_field = _mapping(value)
    for field, fn in by_field.items():
        if not callable(fn):
            raise OptionTypeError(f"{fn!r} for {field!r} is not callable")
    return by_field


def _device(value: Any) -> Any:
    if (
        isinstance(value, int) and not isinstance(value, bool) and value >= 0
    ):  # CUDA's, as PyTorch has it
        return value
    if not re.fullmatch(r"(cpu|cuda)(:\d+)?", str(value)):
        raise ValueError
    return value


def _fraction(value: Any) -> float:
    fraction = _real(value)
    if not 0 < fraction <= 1:
        raise ValueError
    return fraction


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError
    return value


def _length(value: Any) -> Any:
    return value if callable(value) else _text(value)


_URLS = "a path, folder, glob, brace range or URL, or a list of them"

Names = Annotated[Sequence[str], option_type("a list of names", _names)]
Texts = Annotated[Mapping[str, str], option_type("a mapping of names to text", _texts)]
Character = Annotated[str, option_type("one character", _character)]
Count = Annotated[int, whole("a whole number, 0 or more")]
Positive = Annotated[int, whole("a whole number, 1 or more", 1)]
Bytes = Annotated[int, whole("a whole number of bytes, 1 or more, as in 1 << 30", 1)]
Seed = Annotated[int, whole("a whole number from 0 to 2**64 - 1", 0, (1 << 64) - 1)]
Flag = Annotated[bool, option_type("True or False", _flag)]
Seconds = Annotated[float, option_type("a number of seconds, more than 0", _seconds)]
Function = Annotated[Callable[..., Any], option_type("a function, or another callable", _function)]
Length = Annotated[
    str | Callable[..., Any], option_type("a field's name, or a function of a sample", _length)
]
Fraction = Annotated[float, option_type("a number above 0, at most 1", _fraction)]
Field = Annotated[str, option_type("the name of a field", _text)]
Text = Annotated[str, option_type("text that is not empty", _text)]
Urls = Annotated[
    str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    option_type(_URLS, _urls, hidden=True),
]
Place = Annotated[
    str | os.PathLike[str],
    option_type("a path, or a URL, of a file or folder", _place, hidden=True),
]
Folder = Annotated[str | os.PathLike[str], option_type("a folder on this machine", _folder_here)]
StorageOptions = Annotated[
    Mapping[str, Any],
    option_type("a mapping of options of fsspec, as in {'anon': True}", _mapping, hidden=True),
]
FormatOptions = Annotated[
    Mapping[str, Any],
    option_type("a mapping of the format's own options, as in {'fields': ['a']}", _mapping),
]
Decoders = Annotated[
    int | tuple[int, int],
    option_type(
        "a whole number of decoders (0: none, and no Ray), or (least, most) to start with the "
        "least and add more",
        _decoders,
    ),
]
Device = Annotated[Any, option_type("'cpu', 'cuda' or 'cuda:<index>'", _device)]
AfterCopy = Annotated[
    Mapping[str, Callable[[Any], Any]],
    option_type("functions by field, as in {'image': ri.images.Normalize(mean, std)}", _functions),
]
MaxErrors = Annotated[
    float,
    option_type(
        "a number of bad samples, 0 or more, or a share of the rows, as in 0.01",
        _count_or_part,
    ),
]
