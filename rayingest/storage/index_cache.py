"""Cache the index of a dataset in one file, so that it is built once.

Owns where the file is, what makes it stale, and that one process of a node builds it while others
wait. The file holds no credentials. A file of another version counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import platformdirs

from rayingest.errors import ConfigError
from rayingest.plan.order.manifest import Manifest
from rayingest.storage.cache_file import CacheFile
from rayingest.storage.files import Storage
from rayingest.storage.local_files import local_path
from rayingest.storage.redact import redact
from rayingest.storage.urls import Listing

INDEX_VERSION = 1

_ARRAYS = ("shard", "begin", "end", "samples", "nbytes")
_log = logging.getLogger("rayingest")


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
