"""Scans of one source in this process: a slow one says how far it is, or what it waits for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rayingest.build.one_source import run_scan
from rayingest.storage.scan import node_lock
from rayingest.util import slow


class Lines(logging.Handler):
    """Sets `seen` as soon as a line ends with `awaited`."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited, self.seen = "", threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().endswith(self.awaited):
            self.seen.set()


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """The lines of the log; an operation is slow after 10 ms."""
    monkeypatch.setattr(slow, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(slow, "AGAIN_SECONDS", 0.01)
    handler = Lines()
    logging.getLogger("rayingest").addHandler(handler)
    yield handler
    logging.getLogger("rayingest").removeHandler(handler)


class SlowScan:
    """A scan of three parts, the last of which waits for the awaited line."""

    name, key, is_light = "index", "test-slow-scan", True

    def __init__(self, logged: Lines) -> None:
        self._logged = logged

    def load(self) -> None:
        pass

    def save(self, value: int) -> None:
        pass

    def parts(self) -> Sequence[Callable[[], Any]]:
        return [lambda: 1, lambda: 1, lambda: self._logged.seen.wait(30)]

    def join(self, results: Sequence[Any]) -> int:
        return len(results)


def test_a_slow_scan_logs_the_parts_that_are_done(logged: Lines) -> None:
    """Also where there is no terminal, and so no bar."""
    logged.awaited = "the index: 2 of 3 parts are done"
    assert run_scan(SlowScan(logged), on_ray=False) == 3
    assert logged.seen.is_set()


def test_waiting_for_another_process_that_makes_the_index_is_logged(logged: Lines) -> None:
    """While that process holds the lock."""
    logged.awaited = "waiting for the index, which another process or rank makes"
    scan, held = SlowScan(logged), threading.Event()

    def hold() -> None:
        with node_lock(scan.key):
            held.set()
            logged.seen.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    run_scan(scan, on_ray=False)
    thread.join()
    assert logged.seen.is_set()
