"""Start a local cluster, for this process alone or for all ranks that a launcher starts here.

A cluster for this process alone ends with it. A shared one belongs to a process of its own
(`supervisor.py`), which ends it after its last rank: ranks may end in any order, and be killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import ray

from rayingest.errors import WorkerError
from rayingest.execute.cluster import supervisor
from rayingest.execute.cluster.authentication import TOKEN, make_token_without_home
from rayingest.execute.cluster.join import join
from rayingest.execute.cluster.node_info import FREE_VARIABLE, QUICK_FREE_MILLISECONDS
from rayingest.execute.cluster.supervisor import SUPERVISOR_BYTE, USERS_BYTE

LAUNCH_KEYS = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
"""The variables that tell the launches of a machine apart."""
_START_SECONDS = 120.0
"""The least time to wait for a shared cluster: Ray has limits of its own for each part of it."""
_POLL_SECONDS = 0.05

_supervisors: list[subprocess.Popen[bytes]] = []
"""Those that this process has started. They may outlive it."""


def start_own() -> None:
    """Start a cluster that ends with this process. WorkerError if it does not start."""
    make_token_without_home()
    try:
        with _quick_free():
            ray.init("local", log_to_driver=True, logging_level="warning")
    except Exception as error:  # Ray raises plain exceptions for a start that takes too long
        raise _not_started(str(error)) from error


def join_launch(seconds: float) -> None:
    """Join the cluster that the ranks of this launch share on this node; the first one starts it.

    Raises:
        WorkerError: the cluster does not start within `seconds`, or 120 seconds if that is longer.
        ConfigError: it does not respond.
    """
    seconds = max(seconds, _START_SECONDS)
    deadline = time.monotonic() + seconds
    launch = json.dumps([os.environ.get(key, "") for key in LAUNCH_KEYS])
    name = hashlib.blake2b(launch.encode(), digest_size=8).hexdigest()
    path = str(_private_folder() / f"launch-{name}")
    users, note = f"{path}.users", Path(f"{path}.json")
    try:
        with filelock.FileLock(f"{path}.lock", timeout=seconds):
            file = _hold(users, deadline)
            started = None
            if not _supervised(file):
                note.unlink(missing_ok=True)
                started = _start_supervisor(users, note)
            cluster = _await_note(note, file, started, deadline)
    except filelock.Timeout as error:
        raise _not_started(f"another rank has tried for {seconds:g} s") from error
    if "token" in cluster:
        os.environ.setdefault(TOKEN, cluster["token"])
    join(cluster["address"], "the cluster of this launch, ADDRESS", deadline - time.monotonic())


def _private_folder() -> Path:
    """Return the folder of this user's notes. WorkerError if it belongs to another user."""
    folder = Path(tempfile.gettempdir()) / f"rayingest-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise WorkerError(
            f"{folder} belongs to another user, and ranks look there for their cluster; remove "
            "it, or set TMPDIR to a folder of your own"
        )
    return folder


def _hold(users: str, deadline: float) -> int:
    """Count this process as a user until it ends; return the locked file, which stays open.

    To close any descriptor of the file would end the lock, so a process keeps all of them.
    """
    while True:
        file = os.open(users, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, USERS_BYTE)
            if Path(users).stat().st_ino == os.fstat(file).st_ino:
                return file
        except OSError as error:  # the supervisor ends, and removes the file
            if time.monotonic() > deadline:
                raise _not_started(f"the last one does not end: {users} is locked") from error
        os.close(file)
        time.sleep(_POLL_SECONDS)


def _supervised(file: int) -> bool:
    """Return whether a supervisor lives: it holds a lock that this process cannot get."""
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, SUPERVISOR_BYTE)
    except OSError:
        return True
    fcntl.lockf(file, fcntl.LOCK_UN, 1, SUPERVISOR_BYTE)
    return False


def _start_supervisor(users: str, note: Path) -> subprocess.Popen[bytes]:
    """Start the process that owns the cluster. It needs no module of this package."""
    make_token_without_home()
    # -P: modules beside the file must not hide others of the same name.
    command = [sys.executable, "-P", supervisor.__file__, users, str(note)]
    with _quick_free():
        process = subprocess.Popen(  # noqa: S603 - a file of this package
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    _supervisors.append(process)
    return process


def _await_note(
    note: Path, file: int, started: subprocess.Popen[bytes] | None, deadline: float
) -> dict[str, str]:
    """Return the note of the supervisor once its cluster runs. WorkerError if it does not start."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            content: dict[str, str] = json.loads(note.read_text())
            if "address" in content:
                return content
            raise _not_started(content["error"])
        if (started is None or started.poll() is not None) and not _supervised(file):
            status = "" if started is None else f" with status {started.returncode}"
            raise _not_started(f"the process that starts it has ended{status}")
        if time.monotonic() > deadline:
            raise _not_started("it takes too long")
        time.sleep(_POLL_SECONDS)


@contextmanager
def _quick_free() -> Iterator[None]:
    """Let a cluster that starts now free objects soon, unless the user has set the period."""
    if FREE_VARIABLE in os.environ:
        yield
        return
    os.environ[FREE_VARIABLE] = str(QUICK_FREE_MILLISECONDS)
    try:
        yield
    finally:
        del os.environ[FREE_VARIABLE]


def _not_started(reason: str) -> WorkerError:
    return WorkerError(
        f"no Ray cluster could be started here: {reason.rstrip('.')}; on a busy machine, set "
        "RAY_raylet_start_wait_time_s=120 in the environment; to join a running cluster, set "
        "RAY_ADDRESS=HOST:PORT"
    )
