"""The global random states of Python, numpy and torch, seeded for a while and then put back.

For code of others, which draws from them: everything here takes its own generator. Nothing else touches them. They are
a process's, so its threads take turns.
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
    """The three; `of_torch` is None where nobody has imported torch, and so draws nothing from it."""

    of_python: Any
    of_numpy: Any
    of_torch: Any

    @classmethod
    def now(cls) -> _States:
        torch = sys.modules.get("torch")
        of_torch = None if torch is None else torch.default_generator.get_state()
        return cls(random.getstate(), np.random.get_state(), of_torch)

    def put(self) -> None:
        random.setstate(self.of_python)
        np.random.set_state(self.of_numpy)
        if self.of_torch is not None:
            sys.modules["torch"].default_generator.set_state(self.of_torch)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, `random`, `numpy.random` and torch on the CPU begin with this seed (64 bits); after it as if nothing had
    been. One thread of a process is inside at a time.
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
            before.put()


class Seeded:
    """Code of others that runs in stretches, each of which begins with the random states that the one before left."""

    def __init__(self, seed: int, states: _States | None = None) -> None:
        self._seed, self._states = seed, states

    @contextmanager
    def stretch(self) -> Iterator[None]:
        """As `seeded`."""
        with seeded(self._seed):
            if self._states is not None:
                self._states.put()
            try:
                yield
            finally:
                self._states = _States.now()

    def copy(self) -> Seeded:
        """Another that goes on from here."""
        return Seeded(self._seed, self._states)


def drawn_mark() -> tuple[Any, ...]:
    """What differs once anything was drawn from the global states."""
    name, words, *rest = np.random.get_state(legacy=True)
    torch = sys.modules.get("torch")
    of_torch = b"" if torch is None else torch.default_generator.get_state().numpy().tobytes()
    return random.getstate(), name, np.asarray(words).tobytes(), rest, of_torch
