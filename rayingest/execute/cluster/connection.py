"""A pool's connection to Ray: the calls that its threads make, none of which connects this process anew.

Ray's calls connect a process that is not connected, to whatever cluster they find. Threads that outlive `ray.shutdown`
for a moment must not do so, nor ask for anything in a cluster that came after: to ask first whether Ray is there would
leave a gap. So what connects is left off Ray's functions here.

Owns the knowledge of which session and process a pool belongs to, and the errors that say so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import ray

from rayingest.errors import IngestError, WorkerError

T = TypeVar("T")


class Connection:
    """`bind` it once, in the process and the session that it is for; `here`: whether this still is that process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._session: tuple[str, str] | None = None

    def bind(self) -> str:
        """It is for the session there is now; returns its job."""
        self._session = _session()
        if self._session is None:
            raise _shut_down()
        return self._session[1]

    @property
    def here(self) -> bool:
        return os.getpid() == self._pid

    @property
    def alive(self) -> bool:
        """Whether its process is in its session still."""
        return self.here and self._session is not None and self._session == _session()

    def check_process(self) -> None:
        """Raises IngestError in any other process than its own, which has neither its threads nor its calls."""
        if not self.here:
            raise IngestError(
                f"made in process {self._pid}, not in this one, {os.getpid()}: a forked process must make a loader and "
                "a pool of its own, and can take workers=0"
            )

    def check(self) -> None:
        """Raises WorkerError where Ray was shut down, IngestError in another process."""
        self.check_process()
        if not self.alive:
            raise _shut_down()

    def explained(self, error: Exception) -> Exception:
        """The error, or where it comes of the session's end, one that says so."""
        if self.alive or (isinstance(error, IngestError) and not isinstance(error, WorkerError)):
            return error
        gone = _shut_down()
        gone.__cause__ = error
        return gone

    def call(self, method: Any, *args: Any, **options: Any) -> Any:
        """`method.options(**options).remote(*args)`, of an actor. Raises as `check` does."""
        return self._do(lambda: _plain(type(method)._remote)(method, args, {}, **options))

    def make(self, actor: Any, **options: Any) -> Any:
        """`actor.options(**options).remote()`, of a remote class. Raises as `check` does."""
        return self._do(lambda: _plain(type(actor)._remote)(actor, (), {}, **options))

    def put(self, value: Any) -> Any:
        """`ray.put`. Raises as `check` does."""
        return self._do(lambda: _plain(ray.put)(value))

    def kill(self, actor: Any) -> None:
        """`ray.kill`; nothing where the session has gone, and the actor with it."""
        try:
            self._do(lambda: _plain(ray.kill)(actor))
        except Exception:
            if self.alive:
                raise

    def _do(self, call: Callable[[], T]) -> T:
        self.check()
        try:
            return call()
        except Exception as error:
            raise self.explained(error) from error.__cause__


def _session() -> tuple[str, str] | None:
    """The names of the cluster's session and of this process's job in it, None where it is in none."""
    try:
        context = _plain(ray.get_runtime_context)()
        return context.get_session_name(), context.get_job_id()
    except (RuntimeError, AttributeError):  # shut down, or being so
        return None


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Ray's without what connects first, which wraps it."""
    plain: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return plain


def _shut_down() -> WorkerError:
    return WorkerError(
        "Ray was shut down while the loader was open: close the loader first, or make a new one"
    )
