"""Scan a dataset once, and cache what was found: its index, or the answers of a filter.

A scan is a result about a whole dataset, computed from independent parts. This module owns how the
parts run in this process, by threads; that one process of a node computes a result while others
wait; where the cached result is, and what makes it stale. The cache file is an Arrow IPC file with
a checksum, written aside and then renamed; it holds no credentials, and reading runs nothing that
is in it. A file that is damaged, of another version, or of no use to its reader, counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import filelock
import numpy as np
import platformdirs
import pyarrow as pa

from rayingest.errors import ConfigError, IngestError
from rayingest.plan.order.manifest import Manifest
from rayingest.storage.arrow import int64_column, text_column
from rayingest.storage.file_info import local_path
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing
from rayingest.storage.redact import redact

INDEX_VERSION = 1

_ARRAYS = ("shard", "begin", "end", "samples", "nbytes")
_HEADER = b"rayingest"
_MAGIC = b"rayingest index\n"
_CHECKSUM_BYTES = 16
_log = logging.getLogger("rayingest")

T = TypeVar("T")
Header = dict[str, Any]
Columns = Mapping[str, list[str] | np.ndarray]

Part = Callable[[], Any]
"""A pure function of the data: it may run anywhere, and again."""
Progress = Callable[[int, int], None]
"""Report parts done, and all parts."""


class Scan(Protocol[T]):
    """A scan. Picklable, without its results."""

    @property
    def name(self) -> str:
        """What the scan builds, in a word or two."""

    @property
    def key(self) -> str:
        """A key that is equal in every process that needs the same result."""

    @property
    def is_light(self) -> bool:
        """Whether a part costs less than sending it to another process."""

    def load(self) -> T | None:
        """Return the cached result if it is up to date, else None."""

    def save(self, value: T) -> None:
        """Cache the result."""

    def parts(self) -> Sequence[Part]:
        """Return all parts, in order: small ones, sent together if calls are expensive."""

    def join(self, results: Sequence[Any]) -> T:
        """Return the result, given the results of all parts, in order."""


def scan_locally(scan: Scan[T], progress: Progress, threads: int = 8) -> T:
    """Return the cached result, or compute it now, while other processes of this node wait.

    Raises what a part raises.
    """
    with node_lock(scan.key):
        value = scan.load()
        if value is None:
            parts = scan.parts()
            progress(0, len(parts))
            value = scan.join(run_parts(parts, progress, threads))
            scan.save(value)
        return value


def run_parts(
    parts: Sequence[Part], progress: Progress | None = None, threads: int = 8
) -> list[Any]:
    """Return the parts' results.

    Raises the error of the first failed part among those that are done; no other part begins then.
    """
    with ThreadPoolExecutor(max(1, min(threads, len(parts))), "rayingest-scan") as pool:
        jobs = [pool.submit(part) for part in parts]
        try:
            for done, job in enumerate(as_completed(jobs), 1):
                if job.exception() is not None:
                    break
                if progress is not None:
                    progress(done, len(parts))
        finally:
            for job in jobs:
                job.cancel()
    failed = [job for job in jobs if not job.cancelled() and job.exception() is not None]
    return [job.result() for job in failed[:1] or jobs]


def cache_folder() -> Path:
    """Return the user's folder for indexes, which need not exist yet."""
    return Path(platformdirs.user_cache_dir("rayingest")) / "index"


@dataclass(frozen=True)
class IndexCache:
    """The cached index of one dataset, read in one way.

    `index`: path or URL of the file, or of a folder (it ends in "/" or exists); None: the user's
    cache folder. `options`: the format's.
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
        """32 hex digits of the dataset's name and the way it is read.

        They do not depend on the contents, whose change makes a cached index stale.
        """
        digest = hashlib.blake2b(json.dumps(self._header, sort_keys=True).encode(), digest_size=16)
        digest.update("\0".join([redact(self.listing.root), *self._safe_paths]).encode())
        return digest.hexdigest()

    @property
    def location(self) -> str:
        """The path or URL of the file."""
        if self.index is None:
            return str(cache_folder() / f"{self.key}.arrow")
        path = local_path(self.index)
        if (
            self.index.endswith("/")
            or (path is not None and Path(path).is_dir())
            or self._is_remote_folder()
        ):
            return f"{self.index.rstrip('/')}/{self.key}.arrow"
        return self.index

    def load(self) -> Manifest | None:
        """Return the cached manifest, or None if shards, sizes, marks or the way of reading differ.

        ConfigError if `index` names a file of another program, which is not overwritten.
        """
        return self._file.load(self._manifest)

    def save(self, manifest: Manifest) -> None:
        """Write the manifest. In the user's cache folder, a failure is only logged."""
        columns: dict[str, Any] = {
            "paths": self._safe_paths,
            "marks": list(manifest.marks),
            "sizes": manifest.sizes,
        }
        self._file.save(self._header, columns | {name: getattr(manifest, name) for name in _ARRAYS})

    @property
    def _file(self) -> CacheFile:
        return CacheFile("index", self.location, self.storage, named_by_user=self.index is not None)

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
    def _safe_paths(self) -> list[str]:
        """Paths without credentials, which the query of a signed URL has."""
        root = self.listing.root
        safe_root = len(redact(root))
        return [redact(root + path)[safe_root:] for path in self.listing.paths]

    def _is_remote_folder(self) -> bool:
        if self.index is None or local_path(self.index) is not None:
            return False
        return self.storage.on_filesystem(self.index, lambda fs, name: bool(fs.isdir(name)), "stat")

    def _manifest(self, header: dict[str, Any], columns: dict[str, Any]) -> Manifest | None:
        listing = self.listing
        same = header == self._header and columns["paths"] == self._safe_paths
        if (
            not same
            or tuple(columns["marks"]) != listing.marks
            or not np.array_equal(columns["sizes"], listing.sizes)
        ):
            return None
        arrays = {name: columns[name] for name in _ARRAYS}
        return Manifest(listing.root, listing.paths, columns["sizes"], listing.marks, **arrays)


@contextmanager
def node_lock(key: str, timeout: float = -1) -> Iterator[None]:
    """Exclude all other processes of this user and node that hold this key.

    Waits `timeout` seconds, -1: without limit; then ConfigError. The operating system frees the
    lock of a process that dies.
    """
    lock = filelock.FileLock(str(_lock_folder() / f"{key}.lock"))
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        _log.info("waiting for another process that builds the index %s", key)
        try:
            lock.acquire(timeout=timeout)
        except filelock.Timeout:
            raise ConfigError(
                f"another process has been building the index {key} for more than {timeout:g} s: "
                "wait, or end it"
            ) from None
    try:
        yield
    finally:
        lock.release()


def _lock_folder() -> Path:
    folder = cache_folder().parent / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # the home folder is not writable
        folder = Path(tempfile.gettempdir()) / f"rayingest-{os.getuid()}"
        folder.mkdir(exist_ok=True)
    return folder


class _ForeignFileError(ConfigError):
    """The place of a cache file holds a file of another program."""


@dataclass(frozen=True)
class CacheFile:
    """A cache file. `what`: its content, for messages.

    `named_by_user`: the user chose the location. Then a foreign file there is left alone, and a
    failed write is an error. Elsewhere a foreign file is replaced, and a failed write is logged.
    """

    what: str
    location: str
    storage: Storage
    named_by_user: bool

    def load(self, use: Callable[[Header, dict[str, Any]], T | None]) -> T | None:
        """Return `use(header, columns)`, or None if there is no usable file.

        ConfigError if a foreign file lies at a location that the user chose: it is not overwritten.
        """
        try:
            data = self.storage.read_if_exists(self.location)
            if data and self.named_by_user and not data.startswith(_MAGIC):
                raise _ForeignFileError(
                    f"the file {redact(self.location)} is not a cached {self.what} of rayingest, "
                    "and is left "
                    "unchanged: give index= another file, or a folder"
                )
            return None if data is None else use(*_parse(data))
        except _ForeignFileError:
            raise
        except (pa.ArrowException, ValueError, KeyError, TypeError, OSError, IngestError) as error:
            _log.warning(
                "the cached %s %s is unusable and is built again: %s",
                self.what,
                redact(self.location),
                error,
            )
            return None

    def save(self, header: Header, columns: Columns) -> None:
        """Write the file. ConfigError if that fails at a location that the user chose."""
        data = _serialize(header, columns)
        try:
            if (path := local_path(self.location)) is not None:
                _write_local(Path(path), data)
            else:
                self.storage.on_filesystem(
                    self.location, lambda fs, name: _write_remote(fs, name, data), "write"
                )
        except (OSError, IngestError) as error:
            if self.named_by_user:
                raise ConfigError(
                    f"cannot write the {self.what} to {redact(self.location)}: {error}; give "
                    "index= a writable place"
                ) from None
            _log.warning(
                "the %s is not cached: cannot write %s: %s", self.what, self.location, error
            )


def _serialize(header: Header, columns: Columns) -> bytes:
    table = pa.table({name: _one_row(values) for name, values in columns.items()})
    table = table.replace_schema_metadata({_HEADER: json.dumps(header).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_table(table)
    body = bytes(sink.getvalue())
    return _MAGIC + _checksum(body) + body


def _parse(data: bytes) -> tuple[Header, dict[str, Any]]:
    # Arrow trusts the bytes that it parses, so the checksum comes first.
    start = len(_MAGIC) + _CHECKSUM_BYTES
    body = data[start:]
    if data[:start] != _MAGIC + _checksum(body):
        raise ValueError("its checksum is wrong")
    table = pa.ipc.open_file(pa.BufferReader(body)).read_all()
    header = json.loads((table.schema.metadata or {})[_HEADER])
    columns = {}
    for name in table.column_names:
        values = table[name][0].values
        # Arrow's own conversion would import pandas.
        is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        columns[name] = np.from_dlpack(values) if is_number else values.to_pylist()
    return header, columns


def _one_row(values: list[str] | np.ndarray) -> pa.Array:
    """Return the values as one row of a list column, so that columns may differ in length."""
    if isinstance(values, list):
        array = text_column(values)
    else:
        data = pa.py_buffer(np.ascontiguousarray(values))
        array = pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])
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
