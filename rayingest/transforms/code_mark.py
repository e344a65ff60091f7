"""Mark code with a short hash that changes when the code changes, and is equal in all processes.

Owns which parts of code count: bytecode, constants, defaults, the values of closures and of globals
that code refers to (functions and classes among them), a class's methods, arrays, and the repr of a
value object. Libraries count by name alone, and so do objects whose repr is only an address. So a
changed mark means changed code, but an equal one does not prove equal code.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_FOLLOWED = (
    tuple,
    list,
    set,
    frozenset,
    dict,
    type,
    types.FunctionType,
    types.MethodType,
    functools.partial,
)


def code_mark(things: Any) -> str:
    """Return 8 hex digits of functions, classes, value objects, and containers of them."""
    digest = hashlib.blake2b(digest_size=4)
    for word in _words(things, {}):
        digest.update(word.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()


def _words(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Yield strings that identify the thing, the same in every process.

    `seen` are the objects met so far, by id, because functions may refer to themselves. Constants
    are not among them: one process may hold a constant once, another twice.
    """
    if isinstance(thing, _PLAIN):
        yield f"{type(thing).__name__} {thing!r}"
        return
    if not isinstance(thing, (tuple, frozenset, types.CodeType)):
        if id(thing) in seen:
            yield f"again {type(thing).__qualname__}"
            return
        seen[id(thing)] = thing
    if isinstance(thing, (tuple, list)):
        yield f"{type(thing).__name__} {len(thing)}"
        for item in thing:
            yield from _words(item, seen)
    elif isinstance(thing, (set, frozenset)):
        yield f"{type(thing).__name__} {len(thing)}"  # their order differs between processes
        yield from sorted(" ".join(_words(item, seen)) for item in thing)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from _words(key, seen)
            yield from _words(value, seen)
    elif isinstance(thing, types.CodeType):
        yield from (
            thing.co_name,
            thing.co_code.hex(),
            " ".join(thing.co_names),
            " ".join(thing.co_varnames + thing.co_freevars),
        )
        yield from _words(thing.co_consts, seen)
    else:
        yield from _object_words(thing, seen)


def _object_words(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    if isinstance(thing, types.FunctionType):
        yield f"{thing.__module__}.{thing.__qualname__}"
        cells = [_cell_value(cell) for cell in thing.__closure__ or ()]
        yield from _words((thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells), seen)
        if not _is_library(thing.__module__):
            yield from _global_words(thing, seen)
    elif isinstance(thing, types.MethodType):
        yield from _words((thing.__self__, thing.__func__), seen)
    elif isinstance(thing, functools.partial):
        yield from _words(("partial", thing.func, thing.args, thing.keywords), seen)
    elif isinstance(thing, type):
        yield f"{thing.__module__}.{thing.__qualname__}"
        if thing.__module__ != "builtins":
            members = {name: _unwrap(value) for name, value in sorted(vars(thing).items())}
            yield from _words(
                {name: value for name, value in members.items() if _is_code(name, value)}, seen
            )
            yield from _words([base for base in thing.__bases__ if base is not object], seen)
    elif hasattr(type(thing), "__array__"):
        yield from _array_words(thing, seen)
    elif (text := repr(thing)) and not _shows_address(text):
        yield f"{type(thing).__module__}.{text}"
        if "..." in text and hasattr(thing, "__dict__"):
            # It may hold an array, of which the repr leaves out the middle.
            yield from _words(dict(sorted(vars(thing).items())), seen)
    elif hasattr(thing, "__dict__"):
        yield from _words((type(thing), dict(sorted(vars(thing).items()))), seen)
    else:
        yield type(thing).__qualname__


def _global_words(function: types.FunctionType, seen: dict[int, Any]) -> Iterator[str]:
    names, attributes = _names_in(function.__code__)
    for name in sorted(names & function.__globals__.keys()):
        yield name
        yield from _value_words(function.__globals__[name], attributes, seen)


def _value_words(value: Any, attributes: set[str], seen: dict[int, Any]) -> Iterator[str]:
    """Yield the words of a global, or of an attribute of a module, that code refers to."""
    if isinstance(value, types.ModuleType):
        yield value.__name__
        if not _is_library(value.__name__) and id(value) not in seen:
            seen[id(value)] = value
            for name in sorted(attributes & vars(value).keys()):
                yield name
                yield from _value_words(vars(value)[name], attributes, seen)
    elif isinstance(value, (type, types.FunctionType)) and _is_library(value.__module__):
        yield f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, (*_PLAIN, *_FOLLOWED)) or hasattr(type(value), "__array__"):
        yield from _words(value, seen)
    else:
        text = repr(value)
        yield type(value).__qualname__ if _shows_address(text) else text


def _names_in(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the globals that code, and code in it, refers to, and the names of attributes."""
    names = {
        each.argval
        for each in dis.get_instructions(code)
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    attributes = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _names_in(inner)
            names, attributes = names | more[0], attributes | more[1]
    return names, attributes


def _is_library(module: str | None) -> bool:
    """Return whether a module is not the user's own."""
    top = (module or "").partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return (
        top in {"rayingest", *sys.stdlib_module_names}
        or "site-packages" in file
        or "dist-packages" in file
    )


def _array_words(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Yield the words of a numpy array, a tensor, or a table's column."""
    try:
        array = np.asarray(thing.detach().cpu() if hasattr(thing, "detach") else thing)
    except Exception:  # a dtype that numpy lacks
        yield f"{type(thing).__qualname__} {thing!r}"
        return
    yield f"{type(thing).__qualname__} {array.dtype} {array.shape}"
    if array.dtype.hasobject:
        yield from _words(array.tolist(), seen)
    else:
        yield hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()


def _shows_address(text: str) -> bool:
    return " at 0x" in text


def _cell_value(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is bound later
        return None


def _unwrap(member: Any) -> Any:
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    return member.fget if isinstance(member, property) else member


def _is_code(name: str, member: Any) -> bool:
    plain = isinstance(member, (*_PLAIN, tuple)) and not (
        name.startswith("__") and name.endswith("__")
    )
    return plain or isinstance(member, types.FunctionType)
