"""Check the options of public calls against their signatures, before a call begins.

A signature declares each option once: its annotation holds an option type, which says what is
allowed and in which words anything else is refused. `checked` checks a call; `options_of` gives the
same options to the sections of a configuration. The types that several calls share, from counts to
URLs, are at the end. Whether options go together, and with the data, is the business of the call.
"""

from __future__ import annotations

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
from rayingest.storage.redact import redact_text
from rayingest.util.names import suggest

P = ParamSpec("P")
R = TypeVar("R")

_HIDDEN = "hidden"
_SHOWN = 120
_MANY_CALLS = 3


class OptionTypeError(ValueError):
    """A value is wrong; its text says more than that, and goes before the words of the type."""


def option_type(
    words: str, convert: Callable[[Any], Any], *, hidden: bool = False
) -> PlainValidator:
    """Make an option type, for use in `Annotated`.

    Args:
        words: the allowed values, in words.
        convert: returns the value that the call gets; raises TypeError, ValueError or
            OptionTypeError if a value is not allowed.
        hidden: whether errors hide the value, because it may hold credentials.
    """

    def validate(value: Any) -> Any:
        try:
            return convert(value)
        except OptionTypeError as error:
            message = f"{error}; {words}"
        except (TypeError, ValueError):
            message = words
        kind = _HIDDEN if hidden else "shown"
        raise PydanticCustomError(kind, "{message}", {"message": message})  # type: ignore[arg-type]

    return PlainValidator(validate)


def whole(words: str, least: int = 0, most: int | None = None) -> PlainValidator:
    """Make the type of whole numbers in a range; NumPy's become Python's, a bool is refused."""

    def convert(value: Any) -> int:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
        if number < least or (most is not None and number > most):
            raise ValueError
        return number

    return option_type(words, convert)


def one_of(*names: str) -> PlainValidator:
    """Make the type of a choice among these words."""
    *others, last = map(repr, names)

    def convert(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError
        return value

    return option_type(f"choose {', '.join(others)} or {last}", convert)


class Options(BaseModel):
    """A model of options: unknown names and values of another type are refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True
    )


def options_of(call: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return the options of a call as fields for pydantic's `create_model`.

    A field is (annotation, default) by name, with `...` for no default. An option is a parameter
    that can be given by name. Names in annotations are looked up in the module of the call, unless
    its attribute `__option_types__` has the type of an option.
    """
    types = getattr(call, "__option_types__", {})
    return {
        p.name: (types.get(p.name, p.annotation), ... if p.default is p.empty else p.default)
        for p in _parameters(call)
        if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY} and p.name != "self"
    }


def _parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(call).parameters.values())


def _variadic(call: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return fields for the parameters `*args` and `**kwargs` of a call."""
    fields: dict[str, tuple[Any, Any]] = {}
    for p in _parameters(call):
        if p.kind is p.VAR_POSITIONAL:
            fields[p.name] = (f"tuple[{p.annotation}, ...]", ())
        elif p.kind is p.VAR_KEYWORD:
            fields[p.name] = (f"dict[str, {p.annotation}]", {})
    return fields


def checked(
    rule: Callable[[Mapping[str, Any]], None] = lambda given: None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the options of a call against the option types in its signature, before it runs.

    Each wrong option is named in one ConfigError, with its value and what is allowed. `rule` gets
    the options that are given, and raises ConfigError if they do not go together.
    """

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(call)
        takes_any_name = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        variadic = _variadic(call)

        @functools.cache
        def model() -> type[Options]:
            fields = {**options_of(call), **variadic}
            return create_model(
                call.__name__, __base__=Options, __module__=call.__module__, **fields
            )  # type: ignore[call-overload,no-any-return]

        @functools.wraps(call)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            allowed = model().model_fields
            by_name = [name for name in allowed if name not in variadic]
            for name in () if takes_any_name else kwargs:
                if name not in by_name:
                    raise ConfigError(
                        f"there is no option {name!r}; {describe_allowed(name, by_name)}"
                    )
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                _refuse_unnamed(signature, model, _name_in_calls(call), args)
                return call(*args, **kwargs)  # raises the same, with the name of the call in it
            given = {name: value for name, value in bound.arguments.items() if name in allowed}
            try:
                section = model().model_validate(given)
            except ValidationError as error:
                wrong = [
                    f"{_name(details)}={show_value(details)}: {details['msg']}"
                    for details in error.errors()
                ]
                raise ConfigError("; ".join(wrong)) from None
            values = {name: getattr(section, name) for name in given}
            rule(values)
            bound.arguments.update(values)
            return call(*bound.args, **bound.kwargs)

        return wrapper

    return decorate


def _refuse_unnamed(
    signature: inspect.Signature,
    model: Callable[[], type[Options]],
    verb: str,
    args: tuple[Any, ...],
) -> None:
    """Raise ConfigError for a value too many, with the options that it could be for."""
    parameters = signature.parameters.values()
    places = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    if len(args) <= len(places):
        return
    value = args[len(places)]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise ConfigError(unnamed_value(verb, value))
    by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if not by_name:
        return
    shown = _show_unnamed(value)
    fitting = [name for name in by_name if _fits(model(), name, value)]
    before = "..., " if any(p.name not in {"self", "description"} for p in places) else ""
    calls = [f"{verb}({before}{name}={shown})" for name in fitting]
    few = 0 < len(calls) <= _MANY_CALLS and not isinstance(value, bool)  # a flag says too little
    remedy = f"write {' or '.join(calls)}; " if few else ""
    raise ConfigError(
        f"{verb}({before}{shown}): the value needs the name of its option; {remedy}allowed: "
        f"{', '.join(by_name)}"
    )


def unnamed_value(verb: str, value: Any) -> str:
    """Return the error for a value without a name, where any name is allowed."""
    shown = _show_unnamed(value)
    if isinstance(value, Mapping):
        return f"{verb}({shown}): each name is an argument of its own; write {verb}(**{shown})"
    return f"{verb}({shown}): a field needs a name, as in {verb}(image={shown})"


def _show_unnamed(value: Any) -> str:
    """Return a value as a call would have it. A mapping may hold credentials."""
    if isinstance(value, Mapping):
        return "{...}"
    return getattr(value, "__qualname__", None) or _shorten(value)


def _fits(model: type[Options], name: str, value: Any) -> bool:
    try:
        model.__pydantic_validator__.validate_assignment(model.model_construct(), name, value)
    except ValidationError as error:
        return all(details["type"] == "frozen_instance" for details in error.errors())
    return True


def _name_in_calls(call: Callable[..., Any]) -> str:
    """Return the name by which users call it: the class's for a constructor."""
    name = call.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    return name.removeprefix("build_")


def _name(details: Any) -> str:
    """Return the name of the option that is wrong; of `**kwargs` the name that was given."""
    name, *inside = details["loc"]
    if not inside:
        return str(name)
    return inside[0] if isinstance(inside[0], str) else f"{name}[{inside[0]}]"


def show_value(details: Any) -> str:
    """Return the value in one of pydantic's errors as it may be shown: short, no credentials."""
    value = details["input"]
    if details["type"] == _HIDDEN and not isinstance(value, (int, float, type(None))):
        return f"<{type(value).__name__}>"
    return _shorten(value)


def _shorten(value: Any) -> str:
    """Return a value as errors show it: short, and without credentials."""
    text = redact_text(repr(value))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def describe_allowed(name: str, allowed: Iterable[str]) -> str:
    """Return the end of an error for an unknown name: the allowed ones, and a similar one."""
    names = list(allowed)
    return f"allowed: {', '.join(names) or 'none'}{suggest(name, names)}"


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
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value  # the index of a CUDA device, as in PyTorch
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
