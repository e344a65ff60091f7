"""Call the functions that users give, and name their failures.

Owns the rule which functions get random numbers, and the search for the user's own line in a
traceback. Calls nothing itself.
"""

from __future__ import annotations

import inspect
import re
import sysconfig
import threading
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.storage.redact import shorten
from rayingest.transforms.decoders import decode_text
from rayingest.transforms.images.transform import Transform

RngArgument = Literal["keyword", "positional"] | None
"""How a function takes random numbers: as rng=, as its second argument, or not at all."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PACKAGE = str(Path(__file__).parent.parent)
_STDLIB = sysconfig.get_paths()["stdlib"]
_TRANSIENT = re.compile(r"time_?d?_?out|connect(ion)?_?error", re.IGNORECASE)


@dataclass(frozen=True)
class Function:
    """One function of a description, ready to be called.

    - `label` names it in errors.
    - `number` tells the functions of a description apart; `stage` counts those that take random
      numbers, and keys their generators.
    - `set_up`: a class, of which each worker makes one instance to call.
    - `out_shape`, `out_dtype`: of every result, where the function can write it into the batch
      (`out=`); else `out_shape` is None.
    - `fixed_lengths`: the 1-D arrays that it returns for a field have one length, unless the first
      samples differ, as its attribute of that name says.
    - `takes_backend`: an image transform, which is called with the run's `image_backend=`.
    """

    label: str
    fn: Callable[..., Any]
    rng: RngArgument = None
    number: int = 0
    stage: int = -1
    set_up: bool = False
    out_shape: tuple[int, ...] | None = None
    out_dtype: str = "uint8"
    fixed_lengths: bool = False
    takes_backend: bool = False

    @property
    def is_users(self) -> bool:
        """Whether it is the user's code, which may draw from the global random generators."""
        parts = self.fn.steps if isinstance(self.fn, Transform) else (self.fn,)
        return not all(map(_is_known, parts))


def _is_known(fn: Any) -> bool:
    """Return whether a function, or the class of a callable object, is of this package or Python's.

    PyTorch datasets are called by this package, which seeds the generators for each item itself.
    """
    named = fn if isinstance(fn, (type, types.FunctionType)) else type(fn)
    return named.__module__.split(".")[0] in {"rayingest", "builtins"}


def collate_function(fn: Any) -> Function:
    """Return the function of `.batch(collate=)`, checked.

    Raises ConfigError unless it can be called with a list of samples, or with a list and rng.
    """
    label = f"collate {name_of(fn)}"
    return Function(label, fn, _rng_argument(label, fn))


def map_function(verb: str, fn: Any) -> Function:
    """Return the function or class of `.map` or `.map_batches`, checked.

    Raises ConfigError unless it can be called with a sample, or with a sample and rng.
    """
    label = f"{verb} {name_of(fn)}"
    if not isinstance(fn, type):
        fixed = getattr(fn, "fixed_lengths", False)
        return Function(label, fn, _rng_argument(label, fn), fixed_lengths=fixed)
    if not any("__call__" in vars(base) for base in fn.__mro__):
        raise ConfigError(
            f"{label}: its instances cannot be called; give the class a __call__(self, sample)"
        )
    needed = [
        p.name for p in _parameters(fn) or () if p.default is p.empty and p.kind not in _VARIADIC
    ]
    if needed:
        raise ConfigError(
            f"{label}: the class needs {', '.join(needed)} to be set up; pass an instance, or set "
            "defaults"
        )
    return Function(label, fn, _rng_argument(label, fn.__call__, skip=1), set_up=True)


def decode_function(field: str, fn: Any) -> Function:
    """Return the decoder of one field, checked; `str` stands for UTF-8 text.

    Raises ConfigError unless it can be called with a value, or with a value and rng.
    """
    label = f"decode of {field!r}"
    fn = decode_text if fn is str else fn
    if isinstance(fn, Transform):
        argument: RngArgument = "keyword" if fn.random else None
        return Function(label, fn, argument, out_shape=fn.output_shape, takes_backend=True)
    if isinstance(fn, type) and fn.__module__ == "builtins":
        return Function(label, fn)  # the signatures of bytes, int and the like cannot be read
    if isinstance(fn, type) and issubclass(fn, Transform):
        raise ConfigError(f"{label}: {fn.__name__} is a class; give an instance, {fn.__name__}()")
    rng = _rng_argument(label, fn)
    shape = getattr(fn, "output_shape", None)
    if shape is None or not any(p.name == "out" for p in _parameters(fn) or ()):
        return Function(label, fn, rng)
    dtype = str(np.dtype(getattr(fn, "output_dtype", "uint8")))
    return Function(label, fn, rng, out_shape=tuple(shape), out_dtype=dtype)


def name_of(fn: Any) -> str:
    """Return the name of a function, class or callable object for a message."""
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def _parameters(fn: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return None


def _rng_argument(label: str, fn: Any, skip: int = 0) -> RngArgument:
    """Return how `fn` takes random numbers: by a parameter named rng, or as a second required one.

    `skip` leading parameters are not counted (the `self` of a method of a class).
    """
    if not callable(fn):
        raise ConfigError(f"{label}: {fn!r} cannot be called; give a function")
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
            f"{label}: the function gets one value, and rng if it has a parameter of that name; "
            f"this one needs {wanted}"
        )
    if named:
        return "keyword"
    return "positional" if len(required) == 2 else None


def failure(label: str, error: BaseException, fn: Any, **where: Any) -> DataError:
    """Return the DataError for an exception in `fn`, to be raised `from` it.

    `where` are DataError's own named parts. A DataError keeps its reason, and the parts that it
    already has. The result is transient where memory was short, or where a time-out or a broken
    connection caused the exception. Long messages are shorten.
    """
    if isinstance(error, DataError):
        known = {part: getattr(error, part) for part in ("shard", "offset", "sample", "key")}
        return DataError(
            f"{label}: {shorten(error.reason)}",
            **{**where, **{part: value for part, value in known.items() if value is not None}},
            transient=error.transient or _is_transient(error),
        )
    return DataError(
        f"{label}: {type(error).__name__}{_message(error)}{user_line(error, fn)}",
        **where,
        transient=isinstance(error, MemoryError) or _is_transient(error),
    )


def is_interrupt(error: BaseException) -> bool:
    """Return whether this may be the user's Ctrl-C, and no error of the function it came up in.

    Python raises KeyboardInterrupt in the main thread alone, where Ray runs no actor method.
    """
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
    )


def _message(error: BaseException) -> str:
    try:
        return f": {shorten(str(error))}"
    except Exception:  # the user's own `__str__` fails: still the sample's fault
        return " (its message cannot be shown)"


def _is_transient(error: BaseException | None) -> bool:
    """Return whether a time-out or a broken connection is the exception or one of its causes.

    Classes are recognised by name: libraries define their own beside Python's.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # an exception may be its own cause
        seen.add(id(error))
        if any(_TRANSIENT.search(kind.__name__) for kind in type(error).__mro__):
            return True
        error = error.__cause__ or error.__context__
    return False


def user_line(error: BaseException, fn: Any) -> str:
    """Return ` (in FILE:LINE, FUNCTION)`, the user's own line that raised; "" if there is none.

    That is the innermost frame outside installed libraries. If `fn` itself comes from a library,
    it is the frame that entered this library.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_PACKAGE)
    ]
    own = [frame for frame in frames if not _is_installed(frame.filename)]
    ours = (getattr(fn, "__module__", None) or type(fn).__module__).split(".")[0] == "rayingest"
    entered = [] if ours else [frame for frame in frames if "-packages" in frame.filename][:1]
    for frame in own[-1:] or entered:
        return f" (in {frame.filename}:{frame.lineno}, {frame.name})"
    return ""


def _is_installed(filename: str) -> bool:
    return (
        filename.startswith((_STDLIB, "<frozen "))
        or "site-packages" in filename
        or "dist-packages" in filename
    )
