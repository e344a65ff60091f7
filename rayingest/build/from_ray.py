"""Write the rows of a Ray Dataset as Parquet files, once.

Owns where the files are and when they are complete: each attempt writes into its own folder, and a
note beside the folders names the attempt that finished first. Ray Data's tensors become Arrow's
tensors. Where shapes differ, or Arrow has no tensor of the type, they become bytes, and the
metadata of the column says how to read them.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayingest.errors import ConfigError
from rayingest.formats.extension_types import convert_extensions
from rayingest.storage.files import Storage
from rayingest.storage.redact import redact
from rayingest.storage.scan import CacheFile, node_lock

if TYPE_CHECKING:
    import ray.data

_NOTE = "finished.rayingest"
_VERSION = 1
_OBJECTS = "ray.data.arrow_pickled_object"
_log = logging.getLogger("rayingest")


def write_once(rows: ray.data.Dataset, place: str, storage: Storage, block_bytes: int) -> str:
    """Write the rows with Ray Data if no complete files exist, and return the URLs of the files.

    The URLs are a brace range in the order of the rows. Row groups have about `block_bytes`.
    Raises ConfigError if there are no rows, or if a column holds Python objects.
    """
    note = CacheFile(
        "note of a Ray Dataset's rows", f"{place}/{_NOTE}", storage, named_by_user=True
    )
    with node_lock(hashlib.blake2b(place.encode(), digest_size=16).hexdigest()):
        complete = note.load(_folder_and_files)
        if complete is None:
            attempt = uuid.uuid4().hex
            try:
                files = _write(rows, f"{place}/{attempt}", storage, block_bytes)
                complete = note.load(_folder_and_files)  # another node may have finished first
                if complete is None:
                    note.save(
                        {"version": _VERSION, "folder": attempt}, {"files": np.array([files])}
                    )
                    return _range(place, attempt, files)
            except BaseException:
                _remove(f"{place}/{attempt}", storage)
                raise
            _remove(f"{place}/{attempt}", storage)
    return _range(place, *complete)


def _folder_and_files(header: dict[str, Any], columns: dict[str, Any]) -> tuple[str, int] | None:
    return (header["folder"], int(columns["files"][0])) if header["version"] == _VERSION else None


def _range(place: str, folder: str, files: int) -> str:
    return (
        f"{place}/{folder}/part-{{{0:06}..{files - 1:06}}}.parquet"
        if files > 1
        else f"{place}/{folder}/{_name(0)}"
    )


def _name(number: int) -> str:
    return f"part-{number:06}.parquet"


def _write(rows: ray.data.Dataset, folder: str, storage: Storage, block_bytes: int) -> int:
    """Write one file for each block of Ray Data that has rows, and return the number of files.

    The files are numbered in the order of the blocks.
    """
    storage.on_filesystem(folder, lambda fs, name: fs.makedirs(name, exist_ok=True), "write")
    kwargs = {"folder": folder, "storage": storage, "block_bytes": block_bytes}
    written = rows.map_batches(
        _write_block, batch_format="pyarrow", batch_size=None, fn_kwargs=kwargs
    )
    files = 0
    with _in_order(written):
        for row in written.iter_rows():
            if row["refused"]:
                raise ConfigError(f"from_ray: {row['refused']}")
            source, target = f"{folder}/{row['file']}", f"{folder}/{_name(files)}"
            storage.on_filesystem(source, _mover(storage, target), "write")
            files += 1
    if not files:
        raise ConfigError("from_ray: the Ray Dataset has no rows")
    return files


def _mover(storage: Storage, target: str) -> Callable[[Any, str], None]:
    name = storage.filesystem(target)[1]
    return lambda fs, source: fs.mv(source, name)


def _remove(folder: str, storage: Storage) -> None:
    try:
        storage.on_filesystem(
            folder, lambda fs, name: fs.exists(name) and fs.rm(name, recursive=True), "write"
        )
    except Exception as error:  # the error that led here matters more
        _log.warning(
            "cannot remove the unused folder %s: %s; remove it by hand", redact(folder), error
        )


@contextmanager
def _in_order(rows: ray.data.Dataset) -> Iterator[None]:
    """Make Ray Data yield its blocks in the order of the rows."""
    options = rows.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        yield
    finally:
        options.preserve_order = before


def _write_block(table: pa.Table, folder: str, storage: Storage, block_bytes: int) -> pa.Table:
    """Write a file, and return a table with its name, or with the reason why it is refused.

    The name is unique: a task that Ray runs again writes another file.
    """
    if not table.num_rows:
        return _result([])
    if refused := [field.name for field in table.schema if _kind(field) == _OBJECTS]:
        return _result(
            [("", f"column {refused[0]!r} holds Python objects; make them arrays, text or bytes")]
        )
    table = convert_extensions(table)
    group = max(1, int(table.num_rows * block_bytes / max(1, table.nbytes)))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=group, write_page_checksum=True)
    name = f"{uuid.uuid4().hex}.parquet"
    data = sink.getvalue().to_pybytes()
    storage.on_filesystem(f"{folder}/{name}", lambda fs, path: fs.pipe_file(path, data), "write")
    return _result([(name, "")])


def _result(files: list[tuple[str, str]]) -> pa.Table:
    return pa.table(
        {
            key: pa.array([file[i] for file in files], pa.string())
            for i, key in enumerate(("file", "refused"))
        }
    )


def _kind(field: pa.Field) -> str:
    """Return the name of Ray Data's own type, "" for a type of Arrow."""
    return str(getattr(field.type, "extension_name", ""))
