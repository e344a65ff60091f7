"""The global random states of Python, numpy and torch, seeded for a while and then put back.

For code of others, which draws from them: everything here takes its own generator. Nothing else touches them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, `random`, `numpy.random` and torch on the CPU begin with this seed (64 bits); after it as if nothing had
    been. For one thread of a process at a time, as these states are.
    """
    torch = sys.modules.get("torch")  # who has not imported it draws nothing from it
    of_python, of_numpy = random.getstate(), np.random.get_state()
    of_torch = None if torch is None else torch.default_generator.get_state()
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    if torch is not None:
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if torch is not None:
            torch.default_generator.set_state(of_torch)


def drawn_mark() -> tuple[Any, ...]:
    """What differs once anything was drawn from the global states."""
    name, words, *rest = np.random.get_state(legacy=True)
    torch = sys.modules.get("torch")
    of_torch = b"" if torch is None else torch.default_generator.get_state().numpy().tobytes()
    return random.getstate(), name, np.asarray(words).tobytes(), rest, of_torch
