"""A Ray Dataset's rows as Parquet files, written once.

Owns where they lie and when they count as there: each attempt writes into a folder of its own, and a note beside these
names the one that was finished first. Ray Data's tensors become Arrow's, or bytes that a column's metadata tells how to
read where they have no one shape, or a type that Arrow's tensors lack.
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
from rayingest.formats.columns import array_encoding, bytes_column, npy_header, with_encodings
from rayingest.storage.cache_file import CacheFile
from rayingest.storage.files import Storage
from rayingest.storage.index_cache import node_lock
from rayingest.storage.redact import redact

if TYPE_CHECKING:
    import ray.data

_NOTE = "finished.rayingest"
_VERSION = 1
_TENSORS = {
    "ray.data.arrow_tensor",
    "ray.data.arrow_tensor_v2",
    "ray.data.arrow_variable_shaped_tensor",
}
_OBJECTS = "ray.data.arrow_pickled_object"
_log = logging.getLogger("rayingest")


def write_once(rows: ray.data.Dataset, place: str, storage: Storage, block_bytes: int) -> str:
    """The files as a brace range of URLs, in the order of the rows: those that are there, or written now by Ray Data.

    Row groups have about `block_bytes`. Raises ConfigError where there is no row, or a column of Python objects.
    """
    note = CacheFile(
        "note of a Ray Dataset's rows", f"{place}/{_NOTE}", storage, named_by_user=True
    )
    with node_lock(hashlib.blake2b(place.encode(), digest_size=16).hexdigest()):
        found = note.load(_folder_and_files)
        if found is None:
            attempt = uuid.uuid4().hex
            try:
                files = _write(rows, f"{place}/{attempt}", storage, block_bytes)
                found = note.load(_folder_and_files)  # another node's may be finished by now
                if found is None:
                    note.save(
                        {"version": _VERSION, "folder": attempt}, {"files": np.array([files])}
                    )
                    return _range(place, attempt, files)
            except BaseException:
                _remove(f"{place}/{attempt}", storage)
                raise
            _remove(f"{place}/{attempt}", storage)
    return _range(place, *found)


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
    """How many files were written: one for each of Ray Data's blocks that has rows, numbered in their order."""
    storage.on_filesystem(folder, lambda fs, name: fs.makedirs(name, exist_ok=True), "write")
    how = {"folder": folder, "storage": storage, "block_bytes": block_bytes}
    written = rows.map_batches(_write_block, batch_format="pyarrow", batch_size=None, fn_kwargs=how)
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
    except Exception as error:  # what went wrong before is what matters
        _log.warning("cannot remove %s, which is not needed: %s", redact(folder), error)


@contextmanager
def _in_order(rows: ray.data.Dataset) -> Iterator[None]:
    """Inside, Ray Data gives its blocks in the order of the rows."""
    options = rows.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        yield
    finally:
        options.preserve_order = before


def _write_block(table: pa.Table, folder: str, storage: Storage, block_bytes: int) -> pa.Table:
    """Writes a file, under a name of its own, and tells it, or why not; a task that is run again writes another."""
    if not table.num_rows:
        return _told([])
    if refused := [field.name for field in table.schema if _kind(field) == _OBJECTS]:
        return _told(
            [("", f"column {refused[0]!r} holds Python objects; make them arrays, text or bytes")]
        )
    table = _plain(table)
    group = max(1, int(table.num_rows * block_bytes / max(1, table.nbytes)))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=group, write_page_checksum=True)
    name = f"{uuid.uuid4().hex}.parquet"
    data = sink.getvalue().to_pybytes()
    storage.on_filesystem(f"{folder}/{name}", lambda fs, path: fs.pipe_file(path, data), "write")
    return _told([(name, "")])


def _told(files: list[tuple[str, str]]) -> pa.Table:
    return pa.table(
        {
            key: pa.array([file[i] for file in files], pa.string())
            for i, key in enumerate(("file", "refused"))
        }
    )


def _kind(field: pa.Field) -> str:
    """Which of Ray Data's own types this is, "" for Arrow's."""
    return str(getattr(field.type, "extension_name", ""))


def _plain(table: pa.Table) -> pa.Table:
    """The table in types that any reader of Parquet knows."""
    encodings = {}
    for place, field in enumerate(table.schema):
        kind = _kind(field)
        if kind in _TENSORS:
            arrays = [
                array
                for chunk in table.column(place).chunks
                for array in chunk.to_numpy(zero_copy_only=False)
            ]
            if "variable" in kind:
                column, encodings[field.name] = (
                    bytes_column([_npy(array) for array in arrays]),
                    "npy",
                )
            elif arrays[0].dtype.kind in "iuf" and arrays[0].ndim and arrays[0].size:
                column = pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(arrays))
            else:
                column = bytes_column([array.tobytes() for array in arrays])
                encodings[field.name] = array_encoding(arrays[0].dtype, arrays[0].shape)
            table = table.set_column(place, field.name, column)
    return with_encodings(table, encodings) if encodings else table


def _npy(array: np.ndarray) -> bytes:
    return npy_header(array.dtype, array.shape) + array.tobytes()
