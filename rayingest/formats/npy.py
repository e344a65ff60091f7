"""Read NumPy's files: the rows of an `.npy`'s array, or of an `.npz`'s arrays, are samples.

Owns where rows lie. Blocks are ranges of rows; an `.npz` with compressed arrays is one block.
Arrays of objects are refused, since they are pickles. See
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

from __future__ import annotations

import errno
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError
from rayingest.formats.arrays import check_rows, row_blocks, row_bytes, rows_table
from rayingest.formats.compression import EXPANSION, check_growth
from rayingest.formats.protocol import Block, Columns, Format, Shard, check_columns, single_block
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.file_info import within_url
from rayingest.storage.files import Storage

ARRAY = "array"

_LOCAL_HEADER = 30
_RAISED = (
    ValueError,
    OverflowError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    SyntaxError,
    TokenError,
)


class Npy(Format):
    """Arrays: one in an .npy, several of equal length in an .npz."""

    name = "npy"
    suffixes = (".npy", ".npz")
    option_names = (EXPANSION,)

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        arrays = _arrays(shard)
        rows = {name: array.rows for name, array in arrays.items()}
        if len(set(rows.values())) != 1:
            raise ConfigError(
                f"the arrays of {shard.safe_url} differ in length: {rows}; save them with one "
                "length"
            )
        count, nbytes = (
            next(iter(rows.values())),
            sum(row_bytes(a.dtype, a.shape) for a in arrays.values()),
        )
        if any(array.begin is None for array in arrays.values()):
            return single_block(count, count, count * nbytes)
        return row_blocks(count, nbytes, block_bytes)

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return the arrays, or those asked for in that order, and `__offset__`: the row.

        The array of an .npy is called `array`.
        """
        arrays = _cached_arrays(shard.storage, shard.url, shard.size)
        names = check_columns(shard, list(arrays), columns)
        if any(array.begin is None for array in arrays.values()):
            whole = _read_archive(shard, names)
            return [rows_table(shard, block, whole) for block in blocks]
        tables = []
        for block in blocks:
            ranges = [arrays[name].range(block) for name in names]
            rows = zip(names, shard.ranges(ranges), strict=True)
            tables.append(
                rows_table(shard, block, {name: arrays[name].parse(data) for name, data in rows})
            )
        return tables


FORMAT = Npy()


@dataclass(frozen=True)
class _Array:
    """Rows of one dtype and shape. `begin`: their byte in the shard, None if compressed."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    rows: int
    begin: int | None

    def range(self, block: Block) -> tuple[int, int]:
        """Return the byte range of a block's rows."""
        assert self.begin is not None
        nbytes = row_bytes(self.dtype, self.shape)
        return self.begin + block[0] * nbytes, self.begin + min(block[1], self.rows) * nbytes

    def parse(self, data: bytes) -> np.ndarray:
        """Return rows from their bytes."""
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape)


@lru_cache(maxsize=256)
def _cached_arrays(storage: Storage, url: str, size: int) -> dict[str, _Array]:
    return _arrays(Shard(storage, url, size))


def _arrays(shard: Shard) -> dict[str, _Array]:
    """Return the arrays by name. DataError if they are not whole."""
    with shard.open() as file, _damage(shard):
        if not within_url(shard.url).lower().endswith(".npz"):
            return {ARRAY: _header(shard, file, ARRAY, shard.size)}
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if not members:
                raise shard.error("the archive holds no array", 0)
            return {
                info.filename.removesuffix(".npy"): _member(shard, file, archive, info)
                for info in members
            }


def _member(
    shard: Shard, file: BinaryIO, archive: zipfile.ZipFile, info: zipfile.ZipInfo
) -> _Array:
    if info.compress_type != zipfile.ZIP_STORED:
        with archive.open(info) as contents:
            found = _header(shard, contents, info.filename, info.file_size)
        return _Array(found.dtype, found.shape, found.rows, None)
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER)
    lengths = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    begin = info.header_offset + _LOCAL_HEADER + sum(lengths)
    file.seek(begin)
    return _header(shard, file, info.filename, begin + info.file_size)


def _header(shard: Shard, file: Any, name: str, end: int) -> _Array:
    """Parse the header of an array, whose rows must end at byte `end`."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ConfigError(
            f"{name} in {shard.safe_url} has .npy version {version}, which is not supported: save "
            "it as version 1.0 or 2.0"
        )
    shape, fortran, dtype = read(file)
    begin = file.tell()
    if dtype.hasobject or dtype.names:
        raise ConfigError(
            f"{name} in {shard.safe_url} holds {dtype}: arrays of objects or structures are not "
            "supported; save plain arrays"
        )
    if not shape or (fortran and len(shape) > 1):
        what = (
            "no rows" if not shape else "its rows in Fortran order, so that they are not contiguous"
        )
        raise ConfigError(
            f"{name} in {shard.safe_url} has {what}: save it with numpy.ascontiguousarray"
        )
    check_rows(shard, name, dtype, shape[1:])
    if begin + row_bytes(dtype, shape) != end:
        raise shard.error(
            f"{name} has {end - begin} bytes for its shape {shape} of {dtype}: cut off or damaged",
            begin,
        )
    return _Array(dtype, shape[1:], shape[0], begin)


def _read_archive(shard: Shard, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return whole arrays of an archive."""
    with shard.open() as file, _damage(shard), zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        check_growth(shard, sum(members[name].file_size for name in names), 0)
        return {
            name: np.lib.format.read_array(
                io.BytesIO(archive.read(members[name])), allow_pickle=False
            )
            for name in names
        }


@contextmanager
def _damage(shard: Shard) -> Iterator[None]:
    """Raise DataError for errors that damage makes the libraries raise.

    These include EINVAL, for a place before the file's begin, and SyntaxError, for a header that is
    not Python.
    """
    try:
        yield
    except (*_RAISED, OSError) as error:
        if isinstance(error, ConfigError) or (
            isinstance(error, OSError) and error.errno != errno.EINVAL
        ):
            raise
        raise shard.error(f"not a whole NumPy file: {error}", 0) from error
