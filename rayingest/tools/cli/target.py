"""Write the files of a packing to a local folder, or to any storage that fsspec opens.

Owns how a file gets its name only when it is complete: in a local folder it is renamed, elsewhere
it is written on this machine and then uploaded, as a whole or under another name first.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayingest.storage.file_info import local_path
from rayingest.storage.files import Storage
from rayingest.storage.filesystems import protocols, read_whole_if_exists

_PUBLISH_WHOLE = {"s3", "s3a", "gs", "gcs", "abfs", "az", "memory"}
"""Protocols of storages in which an object appears only when all of it is there."""


@dataclass(frozen=True)
class Target:
    """A folder to write to. Picklable."""

    url: str

    @property
    def folder(self) -> Path | None:
        """The local folder, None for another storage."""
        path = local_path(self.url)
        return None if path is None else Path(path)

    def name(self, name: str) -> str:
        """Return the path or URL of a file."""
        return f"{self.url.rstrip('/')}/{name}" if self.folder is None else str(self.folder / name)

    @contextmanager
    def aside(self, name: str) -> Iterator[Path]:
        """Give a local path to write a file to; the file is removed in the end, if it is there."""
        hidden = f".{name}.{uuid.uuid4().hex[:8]}.writing"
        if self.folder is not None:
            path = self.folder / hidden
            try:
                yield path
            finally:
                path.unlink(missing_ok=True)
            return
        with tempfile.TemporaryDirectory(prefix="rayingest-pack-") as folder:
            yield Path(folder) / hidden

    def publish(self, aside: Path, name: str) -> None:
        """Give a complete file its name."""
        if self.folder is not None:
            aside.replace(self.folder / name)
            return

        def upload(fs: Any, to: str) -> None:
            if _PUBLISH_WHOLE & set(protocols(fs)):
                fs.put_file(str(aside), to)
                return
            hidden = f"{fs._parent(to)}/{aside.name}"
            fs.put_file(str(aside), hidden)
            fs.mv(hidden, to)

        self._ask(name, upload)

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, None if it does not exist."""
        if self.folder is not None:
            path = self.folder / name
            return path.stat().st_size if path.exists() else None

        def look(fs: Any, at: str) -> int | None:
            fs.invalidate_cache()
            return int(fs.info(at)["size"]) if fs.exists(at) else None

        found: int | None = self._ask(name, look)
        return found

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a small file, None if it does not exist."""
        if self.folder is not None:
            path = self.folder / name
            return path.read_bytes() if path.exists() else None
        found: bytes | None = self._ask(name, read_whole_if_exists)
        return found

    def first_name(self) -> str | None:
        """Return the name of a file that is there, None if there is none; make a local folder.

        Raises OSError if a local folder cannot be made.
        """
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            return next((path.name for path in self.folder.iterdir()), None)

        def look(fs: Any, at: str) -> str | None:
            fs.invalidate_cache()
            folder = fs._parent(at)
            if not _PUBLISH_WHOLE & set(protocols(fs)):  # objects need no folder
                fs.makedirs(folder, exist_ok=True)
            try:
                names = fs.ls(folder, detail=False)
            except FileNotFoundError:
                return None
            return next((str(one).rpartition("/")[2] for one in names), None)

        found: str | None = self._ask("x", look)
        return found

    def remove_left_over(self) -> None:
        """Remove local files that an earlier run did not complete."""
        for left in self.folder.glob(".*.writing") if self.folder is not None else ():
            left.unlink(missing_ok=True)

    def _ask(self, name: str, operation: Any) -> Any:
        storage, url = Storage(), self.name(name)
        fs, path = storage.filesystem(url)
        return storage.call(url, lambda: operation(fs, path), "write")
