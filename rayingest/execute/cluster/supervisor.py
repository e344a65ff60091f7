"""Own the local cluster that the ranks of a launch share, and end it after the last of them.

The first rank starts this file as a process in a session of its own, so that neither the end of a
rank nor a signal to its process group ends the cluster. Nothing but Ray is imported.

    supervisor.py USERS NOTE

`USERS` is a file that is only locked. A lock ends with its process, however that ends, and a forked
process does not inherit it.

- Every rank holds a shared lock of byte 0 for as long as it lives.
- The supervisor holds byte 1 for as long as it lives. It waits for byte 0: when it gets the lock,
  no rank is left.

`NOTE` receives the cluster's address, or the reason why it did not start, as JSON. A token that is
only in the environment comes with it, for the other ranks. Nobody else can read the folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from pathlib import Path

import ray

USERS_BYTE, SUPERVISOR_BYTE = 0, 1


def main(users: str, note: str) -> None:
    """Start a cluster, write its address, and end it when no process holds `users`."""
    file = os.open(users, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, SUPERVISOR_BYTE)
    except OSError:  # another supervisor owns the launch
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ray.init("local", log_to_driver=False, logging_level="error")
        # Ray's own handler for SIGTERM aborts the process after 3 s.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        content = {"address": ray.get_runtime_context().gcs_address}
        if "RAY_AUTH_TOKEN" in os.environ:
            content["token"] = os.environ["RAY_AUTH_TOKEN"]
        _write(note, content)
    except Exception as error:
        _write(note, {"error": str(error)})
        raise
    fcntl.lockf(file, fcntl.LOCK_EX, 1, USERS_BYTE)
    # A rank that comes now finds no files, and starts a cluster of its own.
    Path(note).unlink(missing_ok=True)
    Path(users).unlink(missing_ok=True)
    ray.shutdown()


def _write(note: str, content: dict[str, str]) -> None:
    new = Path(note + ".new")
    new.write_text(json.dumps(content))
    new.replace(note)


if __name__ == "__main__":
    main(*sys.argv[1:])
