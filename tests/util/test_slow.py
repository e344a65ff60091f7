"""Warnings about slow operations."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from rayingest.util import slow
from rayingest.util.slow import log_if_slow


class Lines(logging.Handler):
    """Keeps the lines that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            self.lines.append(record.getMessage())
            self._changed.notify_all()

    def wait_for(self, count: int) -> bool:
        """Wait until this many lines were logged."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.lines) >= count, 30)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """The lines of the log; an operation is slow after 10 ms."""
    monkeypatch.setattr(slow, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(slow, "AGAIN_SECONDS", 0.01)
    handler = Lines()
    logging.getLogger("rayingest").addHandler(handler)
    yield handler
    logging.getLogger("rayingest").removeHandler(handler)


def test_a_slow_operation_is_logged_again_and_again_until_it_ends(logged: Lines) -> None:
    """Each line has the text of its moment; the thread ends with the operation."""
    words = iter(["one", "two", *["three"] * 10**6])
    with log_if_slow(lambda: next(words)):
        assert logged.wait_for(2)
    assert logged.lines[0].endswith("s so far: one")
    assert logged.lines[1].endswith("s so far: two")
    assert not any(thread.name == "rayingest-slow" for thread in threading.enumerate())
