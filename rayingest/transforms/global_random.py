"""Seed the global random generators of Python, numpy and torch for user code, then restore them.

Everything in this package takes its own generator. Nothing else touches the global ones. They
belong to the process, so its threads take turns.

Most user code draws from no global generator, and to save and seed all three takes longer than a
short function. So `Draws` seeds only the generators that a unit of code has drawn from before, and
compares positions after each run: if the code has drawn from another generator, the run is made
again. A position is read from a generator's memory, because to copy its state takes 20 to 150
microseconds.
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from rayingest.errors import DataError

T = TypeVar("T")

_TURN = threading.RLock()
_WORDS = 624
"""The words of a Mersenne Twister, the generator of both Python and numpy."""
_Words = ctypes.c_uint32 * (_WORDS + 1)
"""The words, and the index of the next one: before them in Python, behind them in numpy."""


class _Global(ABC):
    """A global generator, and the process's own state of it while user code runs."""

    @abstractmethod
    def position(self) -> Any:
        """Return a value that changes with every draw."""

    def has_moved(self, position: Any) -> bool:
        """Return whether code has drawn since this position."""
        return bool(self.position() != position)

    @abstractmethod
    def seed(self, key: int) -> None:
        """Begin the random numbers of a key of 64 bits."""

    @abstractmethod
    def set_aside(self) -> None:
        """Keep the process's own state, which the next draws may change."""

    @abstractmethod
    def give_back(self) -> None:
        """Restore the process's own state."""


class _Python(_Global):
    """The generator of `random`."""

    def __init__(self) -> None:
        self._instance = random.random.__self__  # type: ignore[attr-defined]
        # CPython keeps the index of the next word, then the words, right behind the object's head.
        address = id(self._instance) + object.__basicsize__
        self._memory = _Words.from_address(address)
        index, *words = self._memory
        self._is_readable = (*words, index) == self._instance.getstate()[1]
        self._own: Any = None
        self._own_position: Any = None

    def position(self) -> Any:
        if not self._is_readable:
            return self._instance.getstate()
        memory = self._memory
        return memory[0], memory[1], memory[2], self._instance.gauss_next

    def seed(self, key: int) -> None:
        self._instance.seed(key)

    def set_aside(self) -> None:
        position = self.position()
        if self._own is None or position != self._own_position:
            self._own, self._own_position = self._instance.getstate(), position

    def give_back(self) -> None:
        if self.has_moved(self._own_position):
            self._instance.setstate(self._own)


class _Numpy(_Global):
    """The generator of `numpy.random`.

    User code draws from a bit generator of its own. numpy forgets the second number of a pair of
    normal ones when bit generators are exchanged, so that number of the process is kept too.
    """

    def __init__(self) -> None:
        self._users = np.random.MT19937(0)
        self._memory = _Words.from_address(self._users.ctypes.state_address)
        self._own: Any = None
        self._own_memory: Any = None
        self._own_position: Any = None
        self._own_pair: dict[str, Any] | None = None

    def position(self) -> Any:
        memory = self._memory
        return memory[_WORDS], memory[0], memory[1]

    def seed(self, key: int) -> None:
        np.random.seed((key & 0xFFFFFFFF, key >> 32))

    def set_aside(self) -> None:
        own = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if own is not self._own:
            self._own, self._own_memory, self._own_position = own, None, None
            if isinstance(own, np.random.MT19937):
                self._own_memory = _Words.from_address(own.ctypes.state_address)
        memory = self._own_memory
        position = None if memory is None else (memory[_WORDS], memory[0], memory[1])
        if position is None or self._own_pair is not None or position != self._own_position:
            state: Any = np.random.get_state(legacy=False)
            self._own_pair = state if state["has_gauss"] else None
        self._own_position = position
        np.random.set_bit_generator(self._users)  # type: ignore[attr-defined]

    def give_back(self) -> None:
        np.random.set_bit_generator(self._own)  # type: ignore[attr-defined]
        if self._own_pair is not None:
            np.random.set_state(self._own_pair)


class _Torch(_Global):
    """The generator of torch on the CPU; nothing, as long as torch is not imported."""

    def __init__(self) -> None:
        self._own: Any = None

    @property
    def _generator(self) -> Any:
        torch = sys.modules.get("torch")
        return getattr(torch, "default_generator", None)

    def position(self) -> Any:
        generator = self._generator
        return None if generator is None else generator.get_state()

    def has_moved(self, position: Any) -> bool:
        now = self.position()
        if now is None:
            return False
        torch = sys.modules["torch"]
        if position is None:  # the code has imported torch, whose generators all begin alike
            position = torch.Generator().get_state()
        return not torch.equal(now, position)

    def seed(self, key: int) -> None:
        if self._generator is not None:
            self._generator.manual_seed(key)

    def set_aside(self) -> None:
        generator = self._generator
        self._own = None if generator is None else generator.get_state()

    def give_back(self) -> None:
        if self._own is not None:
            self._generator.set_state(self._own)


_TORCH = _Torch()
_GLOBALS: tuple[_Global, ...] = (_Python(), _Numpy(), _TORCH)


class set_aside:  # noqa: N801 - a context manager, twice as fast as one made of a generator
    """Keep the process's own random states, and restore them afterwards; nested ones do nothing.

    One thread of a process is inside at a time.
    """

    _depth: ClassVar[int] = 0

    def __enter__(self) -> None:
        _TURN.acquire()
        if not set_aside._depth:
            for each in _GLOBALS:
                each.set_aside()
        set_aside._depth += 1

    def __exit__(self, *error: object) -> None:
        set_aside._depth -= 1
        if not set_aside._depth:
            for each in _GLOBALS:
                each.give_back()
        _TURN.release()


def call_seeded(key: int, call: Callable[[], T]) -> T:
    """Return the result of a call for which all three generators are seeded with a key of 64 bits.

    If the call imports torch and draws from it, it is made again.
    """
    with set_aside():
        while True:
            for each in _GLOBALS:
                each.seed(key)
            before = _TORCH.position()
            result = call()
            if before is not None or not _TORCH.has_moved(None):
                return result


class Draws:
    """Which global generators the units of a piece of user code have drawn from in this process.

    A unit is code that runs between two calls of `seed`. Units are watched one by one once a run
    has drawn at all.
    """

    def __init__(self) -> None:
        self._drawn: dict[Hashable, tuple[_Global, ...]] = {}
        self._findings = 0
        self.watches = False
        """Whether the code has drawn, so that `run` needs to know in which unit."""

    def __contains__(self, unit: Hashable) -> bool:
        return unit in self._drawn

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of a call, made again if a unit has drawn from a generator not seeded.

        It is also made again if it has raised a DataError, which may be due to such a number.
        """
        with set_aside():
            while True:
                findings = self._findings
                before = None if self.watches else [each.position() for each in _GLOBALS]
                error: DataError | None = None
                try:
                    result = call()
                except DataError as raised:
                    error = raised
                if before is not None:
                    self.watches = any(
                        each.has_moved(at) for each, at in zip(_GLOBALS, before, strict=True)
                    )
                    if self.watches:
                        continue
                if findings != self._findings:
                    continue
                if error is not None:
                    raise error
                return result

    def seed(self, unit: Hashable, key: int) -> None:
        """Seed the generators that the unit draws from."""
        for each in self._drawn.get(unit, ()):
            each.seed(key)

    @contextmanager
    def watch(self, unit: Hashable) -> Iterator[None]:
        """Find further generators that the unit draws from, if it also raises an exception."""
        drawn = self._drawn.get(unit, ())
        others = [each for each in _GLOBALS if each not in drawn]
        before = [each.position() for each in others]
        try:
            yield
        finally:
            found = [
                each
                for each, position in zip(others, before, strict=True)
                if each.has_moved(position)
            ]
            if found:
                self._drawn[unit] = (*drawn, *found)
                self._findings += 1


class _States(NamedTuple):
    """The three states; `of_torch` is None if torch is not imported, so that no code draws from
    it.
    """

    of_python: Any
    of_numpy: Any
    of_torch: Any

    @classmethod
    def now(cls) -> _States:
        torch = sys.modules.get("torch")
        of_torch = None if torch is None else torch.default_generator.get_state()
        return cls(random.getstate(), np.random.get_state(), of_torch)

    def restore(self) -> None:
        random.setstate(self.of_python)
        np.random.set_state(self.of_numpy)
        if self.of_torch is not None:
            sys.modules["torch"].default_generator.set_state(self.of_torch)


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Seed `random`, `numpy.random` and torch on the CPU (64 bits); restore them afterwards.

    One thread of a process is inside at a time.
    """
    with _TURN:
        before = _States.now()
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        if before.of_torch is not None:
            sys.modules["torch"].default_generator.manual_seed(seed)
        try:
            yield
        finally:
            before.restore()


class GlobalRandomState:
    """The global random states of user code that runs with interruptions.

    Each `resume` begins with the states in which the one before ended.
    """

    def __init__(self, seed: int, states: _States | None = None) -> None:
        self._seed, self._states = seed, states

    @contextmanager
    def resume(self) -> Iterator[None]:
        """Do `global_seed`, with the states of the last time if there was one."""
        with global_seed(self._seed):
            if self._states is not None:
                self._states.restore()
            try:
                yield
            finally:
                self._states = _States.now()

    def copy(self) -> GlobalRandomState:
        """Return another that continues from here."""
        return GlobalRandomState(self._seed, self._states)


def state_mark() -> tuple[Any, ...]:
    """Return a value that changes as soon as code draws from a global state."""
    name, words, *rest = np.random.get_state(legacy=True)
    torch = sys.modules.get("torch")
    of_torch = b"" if torch is None else torch.default_generator.get_state().numpy().tobytes()
    return random.getstate(), name, np.asarray(words).tobytes(), rest, of_torch
