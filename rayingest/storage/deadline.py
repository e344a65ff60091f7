"""How long an answer is waited for: what may hang is done by another thread, which is left behind if it does.

A thread that has answered takes the next one's, since one for each read would cost more than a small read does, and
ends once it has had nothing to do for a while.
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
    """A thread that does one thing after the other, until it is `left`."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self.answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.left = False
        threading.Thread(target=self._run, name="rayingest-storage", daemon=True).start()

    def _run(self) -> None:
        while not self.left:
            try:
                task = self.tasks.get(timeout=_IDLE_S)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:  # taken just now, or left
                    continue
                return
            try:
                self.answers.put((task(), None))
            except BaseException as error:  # handed to the caller, whatever it is
                self.answers.put((None, error))
            del task


_idle: list[_Helper] = []
os.register_at_fork(after_in_child=_idle.clear)  # where their threads are not


def run_within(seconds: float, operation: Callable[[], T]) -> T:
    """`operation()` in another thread; TimeoutError when it takes longer, the thread then left to end alone."""
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    helper.tasks.put(operation)
    try:
        result, error = helper.answers.get(timeout=seconds)
    except BaseException as broken_off:
        helper.left = True
        if isinstance(broken_off, Empty):
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        raise
    _idle.append(helper)
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
