"""A pool's connection to Ray: the calls that its threads make, none of which connects this process anew.

Ray's calls connect a process that is not connected, to whatever cluster they find. Threads that outlive `ray.shutdown`
for a moment must not do so, nor ask for anything in a cluster that came after: to ask first whether Ray is there would
leave a gap. So what connects is left off Ray's functions here.

Owns the knowledge of which session and process a pool belongs to, and the errors that say so.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import logging
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import filelock
import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from rayingest.errors import ConfigError, IngestError, WorkerError
from rayingest.execute.cluster.node_info import FREE_VARIABLE, QUICK_FREE_MILLISECONDS

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


_LAUNCH_KEYS = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
_POLL_SECONDS = 0.05
_ANSWER_SECONDS = 5.0

_log = logging.getLogger("rayingest")


def connect(start_timeout: float) -> None:
    """Connect this process to Ray unless it is. ConfigError for a Ray Client address; WorkerError on time-out, and
    where none can be started.
    """
    if ray.is_initialized():
        if ray.util.client.ray.is_connected():
            raise ConfigError(_no_client("this process's connection"))
        return
    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        raise ConfigError(_no_client(f"RAY_ADDRESS={address}"))
    if address or int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < 2:
        _init(address or "local")
        return
    _connect_together(start_timeout)


def connect_to_running(address: str | None) -> None:
    """Connect this process, unless it is, to the cluster at HOST:PORT; None: that of RAY_ADDRESS, or of this machine.

    ConfigError for what is no address, and where nothing answers: after seconds, where Ray would try for minutes.
    """
    if ray.is_initialized():
        return
    where, address = (
        ("address", address)
        if address
        else ("RAY_ADDRESS", os.environ.get("RAY_ADDRESS") or "auto")
    )
    if address != "auto":
        found = re.fullmatch(r"\[?([^/\[\]]+?)\]?:(\d{1,5})", address)
        if found is None:
            raise ConfigError(
                f"{where}={address}: HOST:PORT of a cluster's head is needed, as in 10.0.0.1:6379"
            )
        try:
            socket.create_connection((found[1], int(found[2])), timeout=_ANSWER_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"{where}={address}: no Ray cluster answers there: {error}"
            ) from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"{where}={address}: no Ray cluster was found: {error}") from error


def _no_client(what: str) -> str:
    return (
        f"{what} is a Ray Client address: blocks would travel through the client's connection, not through shared "
        "memory; run the script on a node of the cluster, for example with `ray job submit`"
    )


def _init(address: str) -> None:
    """To that cluster, or a "local" one: never to one that merely happens to run on this machine."""
    set_here = address == "local" and FREE_VARIABLE not in os.environ
    if set_here:
        os.environ[FREE_VARIABLE] = str(QUICK_FREE_MILLISECONDS)
    try:
        ray.init(address=address, log_to_driver=True, logging_level="warning")
    except Exception as error:  # of a start that took too long Ray raises nothing narrower
        if address != "local":
            raise
        raise WorkerError(
            f"no Ray cluster could be started here: {str(error).rstrip('.')}; RAY_raylet_start_wait_time_s=120 in the "
            "environment gives it longer, for a busy machine; RAY_ADDRESS=HOST:PORT takes one that runs"
        ) from error
    finally:
        if set_here:
            del os.environ[FREE_VARIABLE]


def _connect_together(start_timeout: float) -> None:
    """Ranks of one launch on one node: whoever is first starts a cluster and leaves its address for the others."""
    launch = json.dumps([os.environ.get(key, "") for key in _LAUNCH_KEYS])
    name = hashlib.blake2b(launch.encode(), digest_size=8).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"rayingest-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    note = folder / f"launch-{name}.json"
    deadline = time.monotonic() + start_timeout
    with filelock.FileLock(str(note) + ".lock", timeout=start_timeout):
        found = _read_note(note)
        if found is None:
            _init("local")
            note.write_text(
                json.dumps({"address": ray.get_runtime_context().gcs_address, "pid": os.getpid()})
            )
            return
    while True:
        try:
            _init(found)
        except ConnectionError as error:
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"no Ray cluster answers at {found} after {start_timeout:g} s: {error}"
                ) from error
            time.sleep(_POLL_SECONDS)
        else:
            return


def _read_note(note: Path) -> str | None:
    """The address that a living process left there."""
    try:
        left = json.loads(note.read_text())
        os.kill(left["pid"], 0)
    except (OSError, ValueError, KeyError):
        return None
    return str(left["address"])


DEATHS = (RayActorError, OutOfMemoryError, WorkerCrashedError, NodeDiedError, LocalRayletDiedError)
"""An actor that the memory monitor ends is reported by an error that is no RayActorError."""
