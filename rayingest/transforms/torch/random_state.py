"""Seed the global random states of Python, numpy and torch for a while, then restore them.

For user code that draws from them; everything in this package takes its own generator. Nothing else
touches these states. They belong to the process, so its threads take turns.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

_TURN = threading.RLock()


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
