"""A mark of code: a short hash that changes when a function does, and does not from one process to the next.

Owns what is looked at: bytecode, constants, defaults, simple closure values, a class's methods, a value object's repr.
Globals that a function refers to are not followed: a changed mark means changed code, an equal one is no proof.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterator
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))


def code_mark(things: Any) -> str:
    """8 hex digits of functions, classes, value objects, and containers of them."""
    digest = hashlib.blake2b(digest_size=4)
    for word in _words(things, {}):
        digest.update(word.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()


def _words(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    """What tells this thing from another, as strings that are the same in every process.

    `seen` are the objects met so far, by id: functions may refer to themselves. Not constants, which one process may
    hold once and another twice.
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
        cells = [_contents(cell) for cell in thing.__closure__ or ()]
        yield from _words((thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells), seen)
    elif isinstance(thing, types.MethodType):
        yield from _words((thing.__self__, thing.__func__), seen)
    elif isinstance(thing, functools.partial):
        yield from _words(("partial", thing.func, thing.args, thing.keywords), seen)
    elif isinstance(thing, type):
        yield f"{thing.__module__}.{thing.__qualname__}"
        if thing.__module__ != "builtins":
            members = {name: _unwrap(value) for name, value in sorted(vars(thing).items())}
            yield from _words({name: value for name, value in members.items() if _is_code(name, value)}, seen)
            yield from _words([base for base in thing.__bases__ if base is not object], seen)
    elif " at 0x" not in repr(thing):
        yield f"{type(thing).__module__}.{thing!r}"
    elif hasattr(thing, "__dict__"):
        yield from _words((type(thing), dict(sorted(vars(thing).items()))), seen)
    else:
        yield type(thing).__qualname__


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is bound only later
        return None


def _unwrap(member: Any) -> Any:
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    return member.fget if isinstance(member, property) else member


def _is_code(name: str, member: Any) -> bool:
    plain = isinstance(member, (*_PLAIN, tuple)) and not (name.startswith("__") and name.endswith("__"))
    return plain or isinstance(member, types.FunctionType)
