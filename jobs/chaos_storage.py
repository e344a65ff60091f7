"""Provide a file system whose reads sometimes fail or hang, for `chaos.py` and its Ray workers.

`chaos:///path` is the local file /path. Each fault adds a line for `chaos_account` to a file.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import fsspec
from chaos_account import FAIL, HANG
from fsspec.implementations.local import LocalFileSystem


class ChaosFileSystem(fsspec.AbstractFileSystem):
    """Local files. `fail` and `hang` are the shares of reads that fail, or take `hang_seconds`."""

    protocol = "chaos"
    cachable = False

    def __init__(
        self,
        fail: float = 0.0,
        hang: float = 0.0,
        hang_seconds: float = 20.0,
        notes: str = "",
        **_: Any,
    ) -> None:
        super().__init__()
        self._local = LocalFileSystem()
        self._fail, self._hang, self._hang_seconds, self._notes = fail, hang, hang_seconds, notes

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Read bytes, fail, or hang first."""
        drawn = random.random()
        if drawn < self._fail:
            self._note(FAIL)
            raise ConnectionError("the storage closed the connection")
        if drawn < self._fail + self._hang:
            self._note(HANG)
            time.sleep(self._hang_seconds)
        return bytes(self._local.cat_file(self._strip_protocol(path), start, end))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return the local file's."""
        return dict(self._local.info(self._strip_protocol(path))) | {"name": path}

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        """Return the local folder's."""
        return self._local.ls(self._strip_protocol(path), detail=detail)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return self._local.open(self._strip_protocol(path), mode)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("chaos://").lstrip("/")

    def _note(self, what: str) -> None:
        if self._notes:
            descriptor = os.open(self._notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            role = (
                "reader" if b"Reader" in Path("/proc/self/cmdline").read_bytes() else "other"
            )  # as Ray calls it
            os.write(descriptor, f"{what} {os.getpid()} {time.time():.3f} {role}\n".encode())
            os.close(descriptor)


def register() -> None:
    """Register `chaos://` in this process; Ray's workers call this when they start."""
    fsspec.register_implementation("chaos", ChaosFileSystem, clobber=True)
