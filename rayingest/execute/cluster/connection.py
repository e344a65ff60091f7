"""Connect this process to a Ray cluster, and make calls that never connect it by accident.

Owns two decisions: which cluster this process joins (a running one, or a local one), and which
session and process a pool belongs to. Owns nothing that runs on the cluster.

Ray's calls connect an unconnected process to whatever cluster they find. A thread that outlives
`ray.shutdown` for a moment must not do that, and must not send calls to a cluster that came later.
Asking first whether Ray is connected leaves a gap, so `Connection` calls Ray's functions without
the wrapper that connects.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from rayingest.errors import ConfigError, IngestError, WorkerError
from rayingest.execute.cluster.join import join
from rayingest.execute.cluster.local_cluster import join_launch, start_own

ACTOR_ERRORS = (
    RayActorError,
    OutOfMemoryError,  # raised for an actor that the memory monitor kills; no RayActorError
    WorkerCrashedError,
    NodeDiedError,
    LocalRayletDiedError,
)
"""Ray's errors for a call whose process has ended or cannot be reached."""

_CONNECT_SECONDS = 5.0

T = TypeVar("T")


def connect(start_timeout: float) -> None:
    """Connect this process to Ray, unless it is connected; start a local cluster if none is named.

    Under a launcher such as torchrun, the ranks of a node share one local cluster, which ends after
    the last of them. Otherwise it ends with this process.

    Never joins a cluster only because it runs on this machine: it may belong to somebody else.

    Raises:
        ConfigError: the address is one of Ray Client, or no cluster responds there within
            `start_timeout` seconds.
        WorkerError: no cluster could be started.
    """
    with _keep_sigterm():
        if ray.is_initialized():
            if ray.util.client.ray.is_connected():
                raise ConfigError(_refuse_client("this process's connection"))
            return
        address = os.environ.get("RAY_ADDRESS", "")
        if address.startswith("ray://"):
            raise ConfigError(_refuse_client(f"RAY_ADDRESS={address}"))
        if address not in ("", "local"):
            join(address, "RAY_ADDRESS", start_timeout)
        elif int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < 2:
            start_own()
        else:
            join_launch(start_timeout)


def connect_to_running(address: str | None) -> None:
    """Connect this process, unless it is connected, to the cluster at HOST:PORT.

    None means the cluster of RAY_ADDRESS, or the one on this machine.

    Raises:
        ConfigError: the address is malformed, or no cluster responds there within 5 seconds.
    """
    if ray.is_initialized():
        return
    name = "address" if address else "RAY_ADDRESS"
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    with _keep_sigterm():
        join(address, name, _CONNECT_SECONDS, log_to_driver=False)


@contextmanager
def _keep_sigterm() -> Iterator[None]:
    """Let SIGTERM do in the end what it does now.

    Ray replaces Python's handler by one that aborts the process with status 134, if the process has
    not ended 3 s later. Python can set handlers in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None:  # None: it was not set by Python
            signal.signal(signal.SIGTERM, handler)


class Connection:
    """The session and the process that a pool belongs to. Call `bind` once in both."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._session: tuple[str, str] | None = None

    def bind(self) -> str:
        """Bind to the current session of Ray; return the id of this process's job."""
        self._session = _current_session()
        if self._session is None:
            raise _shut_down_error()
        return self._session[1]

    @property
    def here(self) -> bool:
        """Whether this is the process that made the connection, and not a fork of it."""
        return os.getpid() == self._pid

    @property
    def is_current(self) -> bool:
        """Whether this is the process that made the connection, and its session is not over."""
        return self.here and (self._session is None or self._session == _current_session())

    @property
    def alive(self) -> bool:
        """Whether this process is still in the session it was bound to."""
        return self.here and self._session is not None and self._session == _current_session()

    def check_process(self) -> None:
        """Raise IngestError in a forked process: it has no threads and no pending calls."""
        if not self.here:
            raise IngestError(
                "a forked process cannot use the loader or pool of its parent: made in process "
                f"{self._pid}, used in process {os.getpid()}; make its own loader and pool"
            )

    def check(self) -> None:
        """Raise WorkerError if Ray was shut down, IngestError in a forked process."""
        self.check_process()
        if not self.alive:
            raise _shut_down_error()

    def explain(self, error: Exception) -> Exception:
        """Return the error, or a WorkerError if the session's end caused it."""
        if self.alive or (isinstance(error, IngestError) and not isinstance(error, WorkerError)):
            return error
        explained = _shut_down_error()
        explained.__cause__ = error
        return explained

    def call(self, method: Any, *args: Any, **options: Any) -> Any:
        """Call an actor's `method.options(**options).remote(*args)`. Raises as `check` does."""
        return self._do(lambda: _unwrap(type(method)._remote)(method, args, {}, **options))

    def make(self, actor: Any, *args: Any, **options: Any) -> Any:
        """Start an actor: `actor.options(**options).remote(*args)`. Raises as `check` does."""
        return self._do(lambda: _unwrap(type(actor)._remote)(actor, args, {}, **options))

    def put(self, value: Any) -> Any:
        """Put a value into the object store. Raises as `check` does."""
        return self._do(lambda: _unwrap(ray.put)(value))

    def copy(self, ref: Any) -> Any:
        """Put the value of a reference into the object store once more. Raises as `check` does."""
        return self._do(lambda: _unwrap(ray.put)(_unwrap(ray.get)(ref)))

    def kill(self, actor: Any) -> None:
        """Kill an actor; do nothing if the session has ended, and the actor with it."""
        try:
            self._do(lambda: _unwrap(ray.kill)(actor))
        except Exception:
            if self.alive:
                raise

    def _do(self, call: Callable[[], T]) -> T:
        self.check()
        try:
            return call()
        except Exception as error:
            raise self.explain(error) from error.__cause__


def _current_session() -> tuple[str, str] | None:
    """Return the cluster's session name and this process's job id; None if not connected."""
    try:
        context = _unwrap(ray.get_runtime_context)()
        return context.get_session_name(), context.get_job_id()
    except (RuntimeError, AttributeError):  # Ray is shut down, or is shutting down
        return None


def _unwrap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return one of Ray's functions without the wrapper that connects this process first."""
    plain: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return plain


def _shut_down_error() -> WorkerError:
    return WorkerError(
        "Ray was shut down while the loader was open: close the loader first, or make a new one"
    )


def _refuse_client(what: str) -> str:
    return (
        f"{what} is a Ray Client address: blocks would travel through the client's connection and "
        "not through shared memory; run the script on a node of the cluster, for example with "
        "`ray job submit`"
    )
