"""Cache byte ranges on disk, for all processes of a node that name the same folder.

The cache is never the only copy. Owns what is cached and what is evicted: the limit holds at every
moment, and the least recently used range goes first. A range is a file behind its checksum, written
aside and renamed, so that a reader sees all of it or nothing; a damaged file is removed and counts
as absent. The folder has parts of about 1 GiB, each with its share of the limit and its own lock,
which the operating system frees when its holder dies. No state outside these files can go wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from rayingest.errors import ConfigError

_PART_BYTES = 1 << 30
_MOST_PARTS = 256
_CHECKSUM_BYTES = 16
_SUFFIX, _ASIDE = ".range", ".writing"
_LIMIT = "limit"

_log = logging.getLogger("rayingest")
_warned: set[str] = set()  # folders with a logged write failure, in this process


@dataclass(frozen=True)
class DiskCache:
    """A cache in this folder, of at most `limit` bytes, headers included. Picklable."""

    folder: str
    limit: int

    def read_through(
        self,
        key: str,
        ranges: Sequence[tuple[int, int]],
        fetch: Callable[[list[tuple[int, int]]], list[bytes]],
    ) -> list[bytes]:
        """Return these ranges of what `key` names.

        `fetch` reads the ranges that are not cached, which are then cached.
        """
        wanted = list(dict.fromkeys(span for span in ranges if span[1] > span[0]))
        found = {span: data for span in wanted if (data := self.get(f"{key} {span}")) is not None}
        absent = [span for span in wanted if span not in found]
        for span, data in zip(absent, fetch(absent) if absent else [], strict=True):
            found[span] = data
            if len(data) == span[1] - span[0]:
                self.put(f"{key} {span}", data)
        return [found.get(span, b"") for span in ranges]

    def get(self, name: str) -> bytes | None:
        """Return what is cached under this name, or None."""
        path = self._path(name)
        try:
            content = path.read_bytes()
            os.utime(path)  # now the most recently used
        except OSError:
            return None  # absent, or just removed
        data = content[_CHECKSUM_BYTES:]
        if content[:_CHECKSUM_BYTES] == _checksum(name, data):
            return data
        _log.warning("a cached range in %s is damaged and is fetched again", self.folder)
        path.unlink(missing_ok=True)
        return None

    def put(self, name: str, data: bytes) -> None:
        """Cache the data and evict what was used least recently.

        Data larger than a part's share of the limit are not cached. Disk failures are logged, once
        per process and folder.
        """
        size = _CHECKSUM_BYTES + len(data)
        path = self._path(name)
        aside = path.with_suffix(_ASIDE)
        try:
            self.prepare()
            if size > self._share:
                return
            path.parent.mkdir(exist_ok=True)
            with filelock.FileLock(path.parent / "lock"):
                self._make_room(path.parent, size)
                try:
                    aside.write_bytes(_checksum(name, data) + data)
                    aside.replace(path)
                finally:
                    aside.unlink(missing_ok=True)
        except OSError as error:
            level = logging.DEBUG if self.folder in _warned else logging.WARNING
            _warned.add(self.folder)
            _log.log(
                level,
                "cannot write to the cache %s, reading goes on without it: %s",
                self.folder,
                error,
            )

    def prepare(self) -> None:
        """Create the folder. ConfigError if another limit is in use there."""
        note = Path(self.folder, _LIMIT)
        with contextlib.suppress(FileNotFoundError):
            if (known := note.read_text()) not in {"", str(self.limit)}:
                raise ConfigError(
                    f"cache_bytes={self.limit}: the cache in {self.folder} was created with "
                    f"{known} bytes; give cache_bytes={known}, give another folder, or remove "
                    "this one"
                )
            if known:
                return
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        aside = note.with_name(f".{os.getpid()}{_ASIDE}")
        aside.write_text(str(self.limit))
        aside.replace(note)

    @property
    def _parts(self) -> int:
        return max(1, min(_MOST_PARTS, self.limit // _PART_BYTES))

    @property
    def _share(self) -> int:
        return self.limit // self._parts

    def _path(self, name: str) -> Path:
        digest = hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
        return Path(self.folder, f"part-{int(digest[:8], 16) % self._parts:03d}", digest + _SUFFIX)

    def _make_room(self, part: Path, size: int) -> None:
        """Evict until `size` more bytes fit into the part. The caller holds its lock.

        A half-written file was left by a process that died.
        """
        kept: list[tuple[float, int, str]] = []
        with os.scandir(part) as entries:
            for entry in entries:
                if entry.name.endswith(_ASIDE):
                    Path(entry.path).unlink(missing_ok=True)
                elif entry.name.endswith(_SUFFIX):
                    with contextlib.suppress(FileNotFoundError):  # a reader removed it as damaged
                        found = entry.stat()
                        kept.append((found.st_mtime, found.st_size, entry.path))
        over = sum(nbytes for _, nbytes, _ in kept) + size - self._share
        for _, nbytes, path in sorted(kept):
            if over <= 0:
                break
            Path(path).unlink(missing_ok=True)
            over -= nbytes


def _checksum(name: str, data: bytes) -> bytes:
    return hashlib.blake2b(
        data, digest_size=_CHECKSUM_BYTES, key=hashlib.blake2b(name.encode()).digest()
    ).digest()
