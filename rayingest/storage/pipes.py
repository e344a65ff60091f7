"""`pipe:COMMAND`: what a shell command writes, taken as a shard that is read once from beginning to end.

Owns the process: that its output is complete or an error, that it answers in time, and that nothing of it is left.
Whether commands may be run is for `Storage` to say, and it says no until asked.
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
from itertools import product
from typing import IO

import bracex

from rayingest.errors import ConfigError, DataError
from rayingest.storage.files import Storage
from rayingest.storage.listing import UNKNOWN_SIZE, FileInfo
from rayingest.storage.redact import PIPE, redact, redact_text

_CHUNK = 1 << 20
_SHOWN_COMPLAINT = 300
_SECRET_VARIABLE = re.compile(
    r"secret|token|passw|key|sas|credential|connection_string|auth", re.IGNORECASE
)
_NUMBERS = re.compile(r"(\{\d+\.\.\d+\})")


def is_pipe(url: str) -> bool:
    """Whether it names a command instead of a file."""
    return url.startswith(PIPE)


def check_allowed(storage: Storage, url: str) -> None:
    """ConfigError unless commands may be run."""
    if not storage.allow_pipe:
        raise ConfigError(
            f"{redact(url)!r} would run a shell command, which is not done by default; give a "
            "path or URL, or, where "
            "you trust the command, read_webdataset(..., allow_pipe=True)"
        )


def list_commands(storage: Storage, url: str) -> list[FileInfo]:
    """One shard for each command: number ranges as in `{000..009}` stand for several, other braces are the shell's."""
    check_allowed(storage, url)
    parts = [
        list(bracex.iexpand(part)) if _NUMBERS.fullmatch(part) else [part]
        for part in _NUMBERS.split(url)
    ]
    return [FileInfo("".join(chosen), UNKNOWN_SIZE, "") for chosen in product(*parts)]


def stream_output(storage: Storage, url: str) -> Generator[bytes, None, None]:
    """What the command writes, in chunks of at most 1 MiB. To be closed where it is not read to its end.

    The command runs in bash with `pipefail`, or in sh where there is no bash, with nothing to read. DataError when it
    ends with any status but 0, or writes nothing within the storage's deadline. It is not run again: what can fail
    for a moment is for the command to try again.
    """
    check_allowed(storage, url)
    shard, at = redact(url), 0
    with (
        tempfile.TemporaryFile() as complaints,
        _running(url.removeprefix(PIPE), complaints) as process,
    ):
        for chunk in _chunks(process, storage.deadline):
            if chunk is None:
                silent = f"the command wrote nothing for {storage.deadline:g} s"
                raise DataError(silent, shard=shard, offset=at, transient=True)
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
            said = redact_text(
                _tail(complaints), {**_secret_variables(), **storage.storage_options}, url
            )
            # What ended it is not known: it may have been the network.
            raise DataError(
                f"the command ended with status {status}: {said}",
                shard=shard,
                offset=at,
                transient=True,
            )


def _chunks(process: subprocess.Popen[bytes], deadline: float) -> Iterator[bytes | None]:
    """Pieces of the output as they come; None, once, when the wait for the next is over."""
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
def _running(command: str, complaints: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process group of its own, of which nothing is left afterwards."""
    process = subprocess.Popen(  # noqa: S603 (the user's own command, asked for with allow_pipe)
        [*_shell(), command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=complaints,
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
    # Otherwise the status of a pipeline is that of its last command alone: a cut download would pass.
    return [bash, "-o", "pipefail", "-c"] if bash else ["/bin/sh", "-c"]


def _secret_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)}


def _tail(complaints: IO[bytes]) -> str:
    """The end of what it wrote to its standard error."""
    length = complaints.seek(0, os.SEEK_END)
    complaints.seek(max(0, length - _SHOWN_COMPLAINT))
    return complaints.read().decode("utf-8", "backslashreplace").strip() or "it said nothing"
