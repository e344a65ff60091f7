"""What the calls of the public face take: kinds of values, and calls that refuse anything else before they begin.

A signature says it, once: each option's annotation holds a kind, which says what is taken, and in which words anything
else is refused. `checked` holds a call to its signature; a configuration's sections are made from the same ones
(`options_of`). Whether options that are fine by themselves go together, and with the data, is for the call to say.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError, create_model
from pydantic_core import PydanticCustomError

from rayingest.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

_HIDDEN = "hidden"
_SHOWN = 120


class KindError(ValueError):
    """Raised by what takes values for a kind, to say more of what is wrong with one."""


def kind(words: str, take: Callable[[Any], Any], *, hidden: bool = False) -> PlainValidator:
    """A kind of option: values of which `take` makes what the call gets; `words` say what they are.

    `take` raises TypeError or ValueError for any other. A `hidden` value, which may hold credentials, is not shown.
    """

    def held(value: Any) -> Any:
        try:
            return take(value)
        except KindError as error:
            said = f"{error}; {words}"
        except (TypeError, ValueError):
            said = words
        raise PydanticCustomError(_HIDDEN if hidden else "shown", "{said}", {"said": said})  # type: ignore[arg-type]

    return PlainValidator(held)


def whole(words: str, least: int = 0, most: int | None = None) -> PlainValidator:
    """Whole numbers in a range, numpy's too, as Python's; no bool is one."""

    def take(value: Any) -> int:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
        if number < least or (most is not None and number > most):
            raise ValueError
        return number

    return kind(words, take)


def one_of(*names: str) -> PlainValidator:
    """One of these words."""
    *others, last = map(repr, names)

    def take(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError
        return value

    return kind(f"choose {', '.join(others)} or {last}", take)


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
        raise KindError("it is empty")
    return text


def _urls(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, (str, os.PathLike)):
        return _place(value)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise TypeError
    if not value:
        raise KindError("it is empty")
    for number, item in enumerate(value):
        try:
            _place(item)
        except (TypeError, KindError):
            raise KindError(f"its item {number} is no path or URL") from None
    return tuple(map(_place, value))


def _folder_here(value: Any) -> str:
    place = _place(value)
    if "://" in place:
        raise ValueError
    return place


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(name, str) for name in value):
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
            raise KindError(f"{fn!r} for {field!r} cannot be called")
    return by_field


def _device(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:  # CUDA's, as PyTorch has it
        return value
    if not re.fullmatch(r"(cpu|cuda)(:\d+)?", str(value)):
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError
    return value


def _length(value: Any) -> Any:
    return value if callable(value) else _text(value)


_URLS = "a path, folder, glob, brace range or URL, or a list of them"

Names = Annotated[Sequence[str], kind("a list of names", _names)]
Texts = Annotated[Mapping[str, str], kind("a mapping of names to words", _texts)]
Character = Annotated[str, kind("one character", _character)]
Count = Annotated[int, whole("a whole number, 0 or more")]
Positive = Annotated[int, whole("a whole number, 1 or more", 1)]
Bytes = Annotated[int, whole("a whole number of bytes, 1 or more, as in 1 << 30", 1)]
Seed = Annotated[int, whole("a whole number from 0 to 2**64 - 1", 0, (1 << 64) - 1)]
Flag = Annotated[bool, kind("True or False", _flag)]
Seconds = Annotated[float, kind("a number of seconds, more than 0", _seconds)]
Function = Annotated[Callable[..., Any], kind("a function, or whatever else can be called", _function)]
Length = Annotated[str | Callable[..., Any], kind("a field's name, or a function of a sample", _length)]
Text = Annotated[str, kind("text that is not empty", _text)]
Urls = Annotated[str | os.PathLike[str] | Sequence[str | os.PathLike[str]], kind(_URLS, _urls, hidden=True)]
Place = Annotated[str | os.PathLike[str], kind("a path, or a URL, of a file or folder", _place, hidden=True)]
Folder = Annotated[str | os.PathLike[str], kind("a folder of this machine's", _folder_here)]
StorageOptions = Annotated[
    Mapping[str, Any], kind("a mapping of what fsspec takes, as in {'anon': True}", _mapping, hidden=True)
]
Decoders = Annotated[
    int | tuple[int, int],
    kind("a whole number of decoders, 0 for none (and no Ray), or (least, most) for as many as it takes", _decoders),
]
Device = Annotated[Any, kind("'cpu', 'cuda' or 'cuda:<index>'", _device)]
AfterCopy = Annotated[
    Mapping[str, Callable[[Any], Any]],
    kind("functions by field, as in {'image': ri.images.Normalize(mean, std)}", _functions),
]
MaxErrors = Annotated[
    float, kind("how many samples may be bad, 0 or more, or which part of the rows, as in 0.01", _count_or_part)
]


class Options(BaseModel):
    """Known names, values of their kinds."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


def options_of(call: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """A call's options, as pydantic's `create_model` takes fields: (annotation, default) by name, `...` for no default.

    An option is whatever can be given by name; names in annotations are those of the call's module.
    """
    parameters = inspect.signature(call).parameters.values()
    return {
        p.name: (p.annotation, ... if p.default is p.empty else p.default)
        for p in parameters
        if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY} and p.name != "self"
    }


def checked(
    rule: Callable[[Mapping[str, Any]], None] = lambda given: None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Hold a call to the kinds of its options: ConfigError names each that is wrong, its value, and what would work.

    `rule` gets the options that are given, and raises ConfigError for those that do not go together.
    """

    def hold(call: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(call)

        @functools.cache
        def model() -> type[Options]:
            return create_model(call.__name__, __base__=Options, __module__=call.__module__, **options_of(call))  # type: ignore[call-overload,no-any-return]

        @functools.wraps(call)
        def held(*args: P.args, **kwargs: P.kwargs) -> R:
            allowed = model().model_fields
            for name in kwargs:
                if name not in allowed:
                    raise ConfigError(f"there is no option {name!r}; {known_names(name, allowed)}")
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return call(*args, **kwargs)  # which says it with its name
            given = {name: value for name, value in bound.arguments.items() if name in allowed}
            try:
                section = model().model_validate(given)
            except ValidationError as error:
                wrong = [f"{details['loc'][0]}={shown(details)}: {details['msg']}" for details in error.errors()]
                raise ConfigError("; ".join(wrong)) from None
            taken = {name: getattr(section, name) for name in given}
            rule(taken)
            bound.arguments.update(taken)
            return call(*bound.args, **bound.kwargs)

        return held

    return hold


def shown(details: Any) -> str:
    """The value in one of pydantic's complaints, as it may be shown."""
    value = details["input"]
    if details["type"] == _HIDDEN and not isinstance(value, (int, float, type(None))):
        return f"<{type(value).__name__}>"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def known_names(name: str, allowed: Iterable[str]) -> str:
    """What to say of a name that does not exist."""
    names = list(allowed)
    return f"allowed: {', '.join(names) or 'none'}{nearest(name, names)}"


def nearest(name: str, allowed: Iterable[str]) -> str:
    """`; did you mean 'x'?` where one of the names is near or contains this one, case aside; else ""."""
    by_lower = {other.lower(): other for other in allowed}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    near = near or [other for other in by_lower if len(name) > 2 and name.lower() in other][:1]
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
