"""Being connected to a Ray cluster: the one that is there, or a local one started for it.

Under a launcher such as torchrun several ranks of a node arrive at once: the first of them starts the cluster, the
others attach to it. Owns nothing of what runs there.
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
from pathlib import Path

import filelock
import ray

from rayingest.errors import ConfigError, WorkerError
from rayingest.execute.cluster.node_info import FREE_VARIABLE, QUICK_FREE_MILLISECONDS

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
