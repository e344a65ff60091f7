"""Read `pipe:COMMAND`: the output of a shell command is a shard, read once from begin to end.

Owns the process: its output is complete or an error, it answers in time, and nothing of it remains.
`Storage` says whether commands may run; by default they may not.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from rayingest.errors import ConfigError, DataError
from rayingest.storage.files import Storage
from rayingest.storage.redact import PIPE, redact, redact_text

_CHUNK = 1 << 20
_SHOWN_STDERR = 300
_SECRET_VARIABLE = re.compile(
    r"secret|token|passw|key|sas|credential|connection_string|auth", re.IGNORECASE
)


def check_allowed(storage: Storage, url: str) -> None:
    """Raise ConfigError unless commands may run."""
    if not storage.allow_pipe:
        raise ConfigError(
            f"{redact(url)!r} would run a shell command, which is refused by default: give a path "
            "or URL, or, if you trust the command, read_webdataset(..., allow_pipe=True)"
        )


def stream_output(storage: Storage, url: str) -> Generator[bytes, None, None]:
    """Yield the command's output in chunks of at most 1 MiB.

    Close it if you do not read to the end. The command runs in bash with `pipefail`, or in sh if
    there is no bash, without input. DataError if it ends with a status other than 0, or writes
    nothing within the storage's deadline. It is not run again: a command must do its own retries.
    """
    check_allowed(storage, url)
    shard, at = redact(url), 0
    with (
        tempfile.TemporaryFile() as stderr,
        _run(url.removeprefix(PIPE), stderr) as process,
    ):
        for chunk in _chunks(process, storage.deadline):
            if chunk is None:
                reason = f"the command wrote nothing for {storage.deadline:g} s"
                raise DataError(reason, shard=shard, offset=at, transient=True)
            at += len(chunk)
            yield chunk
        try:
            status = process.wait(storage.deadline)
        except subprocess.TimeoutExpired:
            after = f"{storage.deadline:g} s after its output"
            raise DataError(
                f"the command has not ended {after}", shard=shard, offset=at, transient=True
            ) from None
        if status:
            message = redact_text(
                _tail(stderr), {**_secret_variables(), **storage.storage_options}, url
            )
            # The cause is unknown, and may be the network.
            raise DataError(
                f"the command ended with status {status}: {message}",
                shard=shard,
                offset=at,
                transient=True,
            )


def _chunks(process: subprocess.Popen[bytes], deadline: float) -> Iterator[bytes | None]:
    """Yield pieces of the output; None, once, if the next does not come in time."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        while waiting.select(deadline):
            chunk = os.read(process.stdout.fileno(), _CHUNK)
            if not chunk:
                return
            yield chunk
    yield None


@contextmanager
def _run(command: str, stderr: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command in its own process group; end the whole group on exit."""
    process = subprocess.Popen(  # noqa: S603 (the user's own command, allowed by allow_pipe)
        [*_shell(), command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.stdout is not None:
            process.stdout.close()
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _shell() -> Sequence[str]:
    bash = shutil.which("bash")
    # Without pipefail, a pipeline has the status of its last command: a cut download would pass.
    return [bash, "-o", "pipefail", "-c"] if bash else ["/bin/sh", "-c"]


def _secret_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)}


def _tail(stderr: IO[bytes]) -> str:
    """Return the end of the command's standard error."""
    length = stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, length - _SHOWN_STDERR))
    return (
        stderr.read().decode("utf-8", "backslashreplace").strip() or "its standard error is empty"
    )
