"""Run operations with a deadline: another thread runs them, and is abandoned if it hangs.

A thread that is done serves the next operation, since a thread per read costs more than a small
read. It ends after some idle time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_IDLE_S = 2.0


class _Helper:
    """A thread that runs one operation after the other, until it is `abandoned`."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self.answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.abandoned = False
        threading.Thread(target=self._run, name="rayingest-storage", daemon=True).start()

    def _run(self) -> None:
        while not self.abandoned:
            try:
                task = self.tasks.get(timeout=_IDLE_S)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:  # taken just now, or abandoned
                    continue
                return
            try:
                self.answers.put((task(), None))
            except BaseException as error:  # the caller raises it, whatever it is
                self.answers.put((None, error))
            del task


_idle: list[_Helper] = []
os.register_at_fork(after_in_child=_idle.clear)  # a child has none of their threads


def run_within(seconds: float, operation: Callable[[], T]) -> T:
    """Return `operation()`, run in another thread.

    TimeoutError after `seconds`; the thread is then abandoned, and ends by itself.
    """
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    helper.tasks.put(operation)
    try:
        result, error = helper.answers.get(timeout=seconds)
    except BaseException as interruption:
        helper.abandoned = True
        if isinstance(interruption, Empty):
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        raise
    _idle.append(helper)
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
