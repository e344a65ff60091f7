"""Telling what is waited for where nothing is heard for long: after ten seconds, then every thirty, in the log.

Owns how long is long. A line is a warning, so that it is seen where nobody set up logging.
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
def log_if_slow(what: str | Callable[[], str]) -> Iterator[None]:
    """Inside, a line says `what` is still being done or waited for, if that takes long; a function says it anew."""
    over, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        wait = FIRST_SECONDS
        while not over.wait(wait):
            _log.warning(
                "%.0f s so far: %s",
                time.monotonic() - begun,
                what if isinstance(what, str) else what(),
            )
            wait = AGAIN_SECONDS

    thread = threading.Thread(target=tell, name="rayingest-silence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
