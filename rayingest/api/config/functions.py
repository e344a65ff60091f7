"""Resolve names in a configuration: `package.module:name`, or the name of a built-in transform.

Owns the import (the current folder is searched too) and the arguments. Of the user's code it runs
the imported modules, and the constructors of classes that are given arguments.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rayingest.api.config.document import Loc, Mistakes, unknown_key
from rayingest.errors import ConfigError
from rayingest.transforms import images
from rayingest.util.names import suggest

TYPES: Mapping[str, Any] = {"str": str, "bytes": bytes, "int": int, "float": float}

_IMAGES: Mapping[str, Any] = {name: getattr(images, name) for name in images.__all__}
_NOT_BY_NAME = (images.Transform, images.Compose)
"""The interface, and a chain, which is written as a list."""

DECODERS: Mapping[str, Any] = {
    **{
        name: fn
        for name, fn in _IMAGES.items()
        if issubclass(fn, images.Transform) and fn not in _NOT_BY_NAME
    },
    **TYPES,
}
AFTER_COPY: Mapping[str, Any] = {
    name: fn for name, fn in _IMAGES.items() if not issubclass(fn, images.Transform)
}
"""All that `ri.images` exports is known by its name: a transform in `decode`, the rest here."""


def resolve(
    spec: Any, known: Mapping[str, Any], loc: Loc, mistakes: Mistakes
) -> Callable[..., Any] | None:
    """Return the function that `spec` names, or None after adding its mistakes.

    `spec` is a name, or `{name: arguments}`: a mapping of them, or the value of the only one. A
    name without a colon is one of `known`. A class that is known, has arguments or is an image
    transform is set up at once; a function with arguments gets them with every call.
    """
    if isinstance(spec, str):
        name, arguments, inner = spec, None, loc
    elif isinstance(spec, dict) and len(spec) == 1 and isinstance(next(iter(spec)), str):
        ((name, arguments),) = spec.items()
        inner = (*loc, name)
    else:
        mistakes.add(
            loc,
            f"{spec!r} does not name a function; write package.module:name, or "
            "{name: {argument: value}}",
        )
        return None
    fn = _find(name, known, loc, mistakes)
    is_transform = isinstance(fn, type) and issubclass(fn, images.Transform)
    if fn is None or (
        arguments is None and not is_transform and (":" in name or fn in TYPES.values())
    ):
        return fn
    return _with_arguments(name, fn, arguments, inner, mistakes)


def resolve_decoder(spec: Any, loc: Loc, mistakes: Mistakes) -> Callable[..., Any] | None:
    """Resolve a decoder; a list is a chain of image transforms."""
    if not isinstance(spec, list):
        return resolve(spec, DECODERS, loc, mistakes)
    steps = [resolve(step, DECODERS, (*loc, number), mistakes) for number, step in enumerate(spec)]
    if None in steps:
        return None
    try:
        return images.Compose(*steps)  # type: ignore[arg-type]
    except ConfigError as error:
        mistakes.add(loc, str(error))
        return None


def _find(name: str, known: Mapping[str, Any], loc: Loc, mistakes: Mistakes) -> Any:
    if re.match(r"\s*lambda\b", name):
        mistakes.add(
            loc,
            f"{name!r} is code, and a configuration names functions: put it into a module as "
            "`def name(...)`, and write module:name",
        )
        return None
    module_name, colon, attribute = name.partition(":")
    if not colon:
        if name not in known:
            names = f"{', '.join(known)}; " if known else ""
            mistakes.add(
                loc,
                f"{name!r} is unknown; choose {names}or write package.module:name"
                f"{suggest(name, known)}",
            )
        return known.get(name)
    if os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.append(os.getcwd())  # noqa: PTH109
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        # The user's own module runs here: anything that it raises is a mistake of this line.
        mistakes.add(loc, f"cannot import {module_name!r}: {type(error).__name__}: {error}")
        return None
    for part in attribute.split("."):
        if not hasattr(found, part):
            mistakes.add(loc, f"{module_name!r} has no {attribute!r}{suggest(part, vars(found))}")
            return None
        found = getattr(found, part)
    if not callable(found):
        mistakes.add(
            loc,
            f"{name!r} is a {type(found).__name__}, which is not callable; "
            "name a function or a class",
        )
        return None
    return found


def _with_arguments(
    name: str, fn: Any, arguments: Any, loc: Loc, mistakes: Mistakes
) -> Callable[..., Any] | None:
    given = arguments if isinstance(arguments, dict) else {}
    values = () if isinstance(arguments, dict) or arguments is None else (arguments,)
    signature = inspect.signature(fn)
    allowed = [
        p.name
        for p in signature.parameters.values()
        if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}
    ]
    anything = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    unknown = [key for key in given if key not in allowed and not anything]
    for key in unknown:
        mistakes.add((*loc, key), unknown_key(str(key), allowed))
    if unknown:
        return None
    try:
        if not isinstance(fn, type):
            return _bind(fn, values, given)
        signature.bind(*values, **given)
        instance: Callable[..., Any] = fn(*values, **given)
    except (ConfigError, TypeError, ValueError) as error:
        mistakes.add(loc, f"{name}: {error}")
        return None
    return instance


def _bind(fn: Any, values: tuple[Any, ...], given: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function with these arguments, under its own name in messages."""
    if values:
        raise ConfigError("a function's arguments are written as a mapping, {argument: value}")
    bound = functools.partial(fn, **given)
    vars(bound).update(__qualname__=fn.__qualname__, __module__=fn.__module__)
    return bound
