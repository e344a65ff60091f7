"""Progress bars."""

from __future__ import annotations

import io
import threading

import pytest
from tqdm import tqdm

from rayingest.util.progress import Bar
from tests.test_house import external, modules


def test_no_thread_is_left_of_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """tqdm's own bars start one."""
    monkeypatch.setattr(tqdm, "monitor", None)
    before = set(threading.enumerate())
    with Bar(total=2, file=io.StringIO()) as bar:
        bar.update()
        assert set(threading.enumerate()) == before


def test_every_bar_is_one_of_these() -> None:
    """Nobody else makes one of tqdm's."""
    assert [module for module in modules() if "tqdm" in external(module)] == [
        "rayingest.util.progress"
    ]
