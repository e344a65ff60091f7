"""Log a warning when an operation is slow: after 10 s, then every 30 s.

Owns both intervals. The level is WARNING because Python shows warnings where logging is not set up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST_SECONDS = 10.0
AGAIN_SECONDS = 30.0

_log = logging.getLogger("rayingest")


@contextmanager
def log_if_slow(operation: str | Callable[[], str]) -> Iterator[None]:
    """Log a warning that names `operation` while the body of the `with` runs for too long.

    A function is called for the text of every line, so that the text can change meanwhile.
    """
    over, begun = threading.Event(), time.monotonic()

    def watch() -> None:
        wait = FIRST_SECONDS
        while not over.wait(wait):
            _log.warning(
                "%.0f s so far: %s",
                time.monotonic() - begun,
                operation if isinstance(operation, str) else operation(),
            )
            wait = AGAIN_SECONDS

    thread = threading.Thread(target=watch, name="rayingest-slow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
