"""The index of a data set, kept as one file so that it is made once.

Owns where that file lies, what makes it stale, and that one process of a node makes it while the others wait. It is
an Arrow IPC file behind a checksum: nothing in it is run when it is read, and no credentials are in it. A file that is
damaged or of another version counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import platformdirs
import pyarrow as pa

from rayingest.errors import ConfigError, IngestError
from rayingest.plan.manifest import Manifest
from rayingest.storage.arrow import int64_column, text_column
from rayingest.storage.files import Storage, local_path
from rayingest.storage.redact import redact
from rayingest.storage.urls import Listing

INDEX_VERSION = 1

_ARRAYS = ("shard", "begin", "end", "samples", "nbytes")
_HEADER = b"rayingest"
_MAGIC = b"rayingest index\n"
_CHECKSUM_BYTES = 16
_log = logging.getLogger("rayingest")


def cache_folder() -> Path:
    """The user's folder for indexes, not necessarily there yet."""
    return Path(platformdirs.user_cache_dir("rayingest")) / "index"


class _ForeignFileError(ConfigError):
    """What lies where the index is to be is somebody else's."""


@dataclass(frozen=True)
class IndexCache:
    """The kept index of one data set read in one way.

    `index`: path or URL of the file to keep it in, or of a folder (ends in "/" or exists as one); None: the user's
    cache folder. `options` are the format's.
    """

    listing: Listing
    format_name: str
    block_bytes: int
    strict: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    index: str | None = field(default=None, repr=False)
    storage: Storage = field(default_factory=Storage)

    @property
    def key(self) -> str:
        """32 hex digits of the data set's name and the way it is read; not of its contents, whose change makes a kept
        index stale, to be replaced.
        """
        digest = hashlib.blake2b(json.dumps(self._header, sort_keys=True).encode(), digest_size=16)
        digest.update("\0".join([redact(self.listing.root), *self._shown_paths]).encode())
        return digest.hexdigest()

    @property
    def location(self) -> str:
        """The path or URL of the file."""
        if self.index is None:
            return str(cache_folder() / f"{self.key}.arrow")
        path = local_path(self.index)
        if self.index.endswith("/") or (path is not None and Path(path).is_dir()) or self._is_remote_folder():
            return f"{self.index.rstrip('/')}/{self.key}.arrow"
        return self.index

    def load(self) -> Manifest | None:
        """The kept manifest while shards, sizes, marks and the way of reading are what they were; else None.

        Raises ConfigError where `index` names a file of something else, which is not to be overwritten.
        """
        location = self.location
        try:
            data = self.storage.read_if_there(location)
            if data and self.index is not None and not data.startswith(_MAGIC):
                raise _ForeignFileError(
                    f"index={redact(self.index)!r}: {redact(location)} is no index of rayingest, and is left as it is: "
                    "name another file, or a folder"
                )
            return None if data is None else self._parse(data)
        except _ForeignFileError:
            raise
        except (pa.ArrowException, ValueError, KeyError, TypeError, OSError, IngestError) as error:
            _log.warning("the index %s cannot be used and is made again: %s", redact(location), error)
            return None

    def save(self, manifest: Manifest) -> None:
        """Keep the manifest: written aside, then renamed. In the user's cache folder a failure is only warned of."""
        location = self.location
        data = self._serialized(manifest)
        try:
            if (path := local_path(location)) is not None:
                _write_local(Path(path), data)
            else:
                self.storage.on_filesystem(location, lambda fs, name: _write_remote(fs, name, data), "write")
        except (OSError, IngestError) as error:
            if self.index is not None:
                raise ConfigError(f"cannot write the index to {redact(location)}: {error}") from None
            _log.warning("the index is not kept: cannot write %s: %s", location, error)

    @contextmanager
    def locked(self, timeout: float = -1) -> Iterator[None]:
        """Inside, no other process of this node is inside for the same data set; see `locked`."""
        with locked(self.key, timeout):
            yield

    @property
    def _header(self) -> dict[str, Any]:
        return {
            "version": INDEX_VERSION,
            "format": self.format_name,
            "block_bytes": self.block_bytes,
            "strict": self.strict,
            "options": json.dumps(dict(self.options), sort_keys=True, default=repr),
        }

    @property
    def _shown_paths(self) -> list[str]:
        """Paths as they may be stored: those of signed URLs have credentials in their query."""
        root = self.listing.root
        shown_root = len(redact(root))
        return [redact(root + path)[shown_root:] for path in self.listing.paths]

    def _is_remote_folder(self) -> bool:
        if self.index is None or local_path(self.index) is not None:
            return False
        return self.storage.on_filesystem(self.index, lambda fs, name: bool(fs.isdir(name)), "stat")

    def _serialized(self, manifest: Manifest) -> bytes:
        columns: dict[str, Any] = {"paths": self._shown_paths, "marks": list(manifest.marks), "sizes": manifest.sizes}
        columns |= {name: getattr(manifest, name) for name in _ARRAYS}
        table = pa.table({name: _one_row(values) for name, values in columns.items()})
        table = table.replace_schema_metadata({_HEADER: json.dumps(self._header).encode()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        body = bytes(sink.getvalue())
        return _MAGIC + _checksum(body) + body

    def _parse(self, data: bytes) -> Manifest | None:
        # Arrow trusts what it parses, so the checksum comes first.
        start = len(_MAGIC) + _CHECKSUM_BYTES
        body = data[start:]
        if data[:start] != _MAGIC + _checksum(body):
            raise ValueError("its checksum does not hold")
        table = pa.ipc.open_file(pa.BufferReader(body)).read_all()
        header = json.loads((table.schema.metadata or {})[_HEADER])
        paths, marks = (table[name][0].values.to_pylist() for name in ("paths", "marks"))
        # Arrow's own conversion would import pandas first.
        sizes, *arrays = (np.from_dlpack(table[name][0].values) for name in ("sizes", *_ARRAYS))
        same = header == self._header and paths == self._shown_paths and tuple(marks) == self.listing.marks
        if not same or not np.array_equal(sizes, self.listing.sizes):
            return None
        return Manifest(
            self.listing.root, self.listing.paths, sizes, self.listing.marks, **dict(zip(_ARRAYS, arrays, strict=True))
        )


@contextmanager
def locked(key: str, timeout: float = -1) -> Iterator[None]:
    """Inside, no other process of this user and node is inside with this key. Waits `timeout` seconds, -1: for ever.

    The operating system frees the lock of a process that dies. ConfigError when the wait is over.
    """
    lock = filelock.FileLock(str(_lock_folder() / f"{key}.lock"))
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        _log.info("waiting for another process that makes the index %s", key)
        try:
            lock.acquire(timeout=timeout)
        except filelock.Timeout:
            raise ConfigError(f"another process has been making the index {key} for more than {timeout:g} s") from None
    try:
        yield
    finally:
        lock.release()


def _lock_folder() -> Path:
    folder = cache_folder().parent / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written to
        folder = Path(tempfile.gettempdir()) / f"rayingest-{os.getuid()}"
        folder.mkdir(exist_ok=True)
    return folder


def _one_row(values: Any) -> pa.Array:
    """The values as the single row of a list column: columns of one file may then differ in length."""
    array = text_column(values) if isinstance(values, list) else int64_column(values)
    return pa.LargeListArray.from_arrays(int64_column([0, len(array)]), array)


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()


def _write_local(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _write_remote(fs: Any, name: str, data: bytes) -> None:
    folder, _, base = name.rpartition("/")
    aside = f"{folder}/.{base}.{uuid.uuid4().hex}.tmp"
    fs.makedirs(folder, exist_ok=True)
    fs.pipe_file(aside, data)
    fs.mv(aside, name)
