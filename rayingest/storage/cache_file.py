"""Cache what is computed once per dataset: columns in one file, behind a checksum.

Owns the file: an Arrow IPC file, written aside and then renamed. Reading runs nothing that is in
it. A file that is damaged, or that its reader cannot use, counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError, IngestError
from rayingest.storage.arrow import int64_column, text_column
from rayingest.storage.files import Storage
from rayingest.storage.local_files import local_path
from rayingest.storage.redact import redact

_HEADER = b"rayingest"
_MAGIC = b"rayingest index\n"
_CHECKSUM_BYTES = 16
_log = logging.getLogger("rayingest")

T = TypeVar("T")
Header = dict[str, Any]
Columns = Mapping[str, list[str] | np.ndarray]


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
