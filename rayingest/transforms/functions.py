"""How functions given by the user are called, and how their failures are named.

Owns the rule which of them get random numbers, and the search for the user's own line in a traceback. Runs nothing.
"""

from __future__ import annotations

import inspect
import re
import sysconfig
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.storage.redact import shorten
from rayingest.transforms.decoders import text
from rayingest.transforms.images.operations import Transform

RngArgument = Literal["keyword", "positional"] | None
"""How a function takes its random numbers: as rng=, as its second argument, or not at all."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_PACKAGE = str(Path(__file__).parent.parent)
_STDLIB = sysconfig.get_paths()["stdlib"]
_PASSING = re.compile(r"time_?d?_?out|connect(ion)?_?error", re.IGNORECASE)


@dataclass(frozen=True)
class Function:
    """One function of the description, ready to be called.

    `what` names it in errors. `number` tells the functions of a description apart, `stage` counts those that take
    random numbers. `set_up`: a class, of which each worker makes one instance to call. `out_shape` and `out_dtype` are
    those of each result where it can be written in place (`out=`), else None. `fixed`: the 1-D arrays that it gives for
    a field have one length, as its attribute `fixed_lengths` promises. `takes_path`: it is told how to decode images.
    """

    what: str
    fn: Callable[..., Any]
    rng: RngArgument = None
    number: int = 0
    stage: int = -1
    set_up: bool = False
    out_shape: tuple[int, ...] | None = None
    out_dtype: str = "uint8"
    fixed: bool = False
    takes_path: bool = False


def map_function(verb: str, fn: Any) -> Function:
    """The function or class of `.map` or `.map_batches`; ConfigError unless it can be called with a sample [, rng]."""
    what = f"{verb} {name_of(fn)}"
    if not isinstance(fn, type):
        return Function(
            what, fn, _rng_argument(what, fn), fixed=getattr(fn, "fixed_lengths", False)
        )
    if not any("__call__" in vars(base) for base in fn.__mro__):
        raise ConfigError(
            f"{what}: its instances cannot be called; give the class a __call__(self, sample)"
        )
    needed = [
        p.name for p in _parameters(fn) or () if p.default is p.empty and p.kind not in _VARIADIC
    ]
    if needed:
        raise ConfigError(
            f"{what}: the class needs {', '.join(needed)} to be set up; pass an instance, or set defaults"
        )
    return Function(what, fn, _rng_argument(what, fn.__call__, skip=1), set_up=True)


def decode_function(field: str, fn: Any) -> Function:
    """The decoder of one field; `str` means UTF-8 text. ConfigError for what cannot be called with a value [, rng]."""
    what = f"decode of {field!r}"
    fn = text if fn is str else fn
    if isinstance(fn, Transform):
        argument: RngArgument = "keyword" if fn.random else None
        return Function(what, fn, argument, out_shape=fn.output_shape, takes_path=True)
    if isinstance(fn, type) and fn.__module__ == "builtins":
        return Function(what, fn)  # bytes, int and the like: their signatures cannot be read
    rng = _rng_argument(what, fn)
    shape = getattr(fn, "output_shape", None)
    if shape is None or not any(p.name == "out" for p in _parameters(fn) or ()):
        return Function(what, fn, rng)
    return Function(
        what,
        fn,
        rng,
        out_shape=tuple(shape),
        out_dtype=str(np.dtype(getattr(fn, "output_dtype", "uint8"))),
    )


def name_of(fn: Any) -> str:
    """What to call a function in a message."""
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(fn: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return None


def _rng_argument(what: str, fn: Any, skip: int = 0) -> RngArgument:
    """How `fn` takes random numbers: a parameter named rng, or two that must be given."""
    if not callable(fn):
        raise ConfigError(f"{what}: {fn!r} cannot be called; give a function")
    parameters = _parameters(fn)
    if parameters is None:
        return None
    parameters = parameters[skip:]
    named = any(
        p.name == "rng" and p.kind is not p.POSITIONAL_ONLY and p.kind not in _VARIADIC
        for p in parameters
    )
    if named:
        parameters = [p for p in parameters if p.name != "rng"]
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in _VARIADIC]
    keywords = [p.name for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    takes_one = any(p.kind in _POSITIONAL or p.kind is p.VAR_POSITIONAL for p in parameters)
    if not takes_one or keywords or len(required) > (1 if named else 2):
        wanted = ", ".join([*required, *(["rng"] if named else [])]) or "nothing"
        raise ConfigError(
            f"{what}: it is called with one value, and with rng if it asks for it; this one needs {wanted}"
        )
    if named:
        return "keyword"
    return "positional" if len(required) == 2 else None


def failure(what: str, error: BaseException, fn: Any, **where: Any) -> DataError:
    """The DataError for an exception in `fn`, to be raised `from` it; `where` are DataError's own named parts.

    A DataError of ours keeps its reason, and what it knows about the place. It is transient where memory was short, or
    where time ran out or a connection broke, be that the reason for the exception or for what it was raised from. What
    the exception says is shortened.
    """
    if isinstance(error, DataError):
        known = {part: getattr(error, part) for part in ("shard", "offset", "sample", "key")}
        return DataError(
            f"{what}: {shorten(error.reason)}",
            **{**where, **{part: value for part, value in known.items() if value is not None}},
            transient=error.transient or _may_pass(error),
        )
    return DataError(
        f"{what}: {type(error).__name__}{_message(error)}{user_line(error, fn)}",
        **where,
        transient=isinstance(error, MemoryError) or _may_pass(error),
    )


def is_interrupt(error: BaseException) -> bool:
    """Whether this may be the user's Ctrl-C, and no error of the function that it came up in.

    Python raises that in the main thread alone, where Ray has no method of an actor's run.
    """
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
    )


def _message(error: BaseException) -> str:
    try:
        return f": {shorten(str(error))}"
    except Exception:  # the user's own `__str__`, and no less the sample's fault
        return " (its message cannot be shown)"


def _may_pass(error: BaseException | None) -> bool:
    """Whether an exception tells of time that ran out or of a broken connection, by its kind or by its causes'.

    Kinds are told by name: libraries have classes of their own for that, beside Python's.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # an exception may come to be its own cause
        seen.add(id(error))
        if any(_PASSING.search(kind.__name__) for kind in type(error).__mro__):
            return True
        error = error.__cause__ or error.__context__
    return False


def user_line(error: BaseException, fn: Any) -> str:
    """` (in FILE:LINE, FUNCTION)`: where in the user's own code it happened, "" where none of it was running.

    The innermost frame that is in no installed library; for a function that itself comes from one, the frame by which
    its library was entered.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_PACKAGE)
    ]
    own = [frame for frame in frames if not _installed(frame.filename)]
    ours = (getattr(fn, "__module__", None) or type(fn).__module__).split(".")[0] == "rayingest"
    entered = [] if ours else [frame for frame in frames if "-packages" in frame.filename][:1]
    for frame in own[-1:] or entered:
        return f" (in {frame.filename}:{frame.lineno}, {frame.name})"
    return ""


def _installed(filename: str) -> bool:
    return (
        filename.startswith((_STDLIB, "<frozen "))
        or "site-packages" in filename
        or "dist-packages" in filename
    )
