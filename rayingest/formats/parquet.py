"""Read Parquet: a block is a run of row groups, its table holds the file's columns as they are.

pyarrow decodes the format (https://parquet.apache.org/docs/file-format/). Row groups without rows
are left out of the index. Checksums of pages are verified if the writer made them; damage to values
in other pages goes unnoticed. In errors, `offset` is the first row that cannot be read.

Owns that a damaged footer, which has no checksum, is an error: pyarrow may end the whole process
when Python asks a damaged footer for a row group or a column, but raises when it is about to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayingest.errors import DataError
from rayingest.formats.extension_types import convert_extensions
from rayingest.formats.huggingface import convert_features
from rayingest.formats.nested import has_path, select_paths
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    Columns,
    Format,
    Shard,
    check_columns,
    check_samples,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.arrow import int64_column
from rayingest.storage.ranges import RangeFile

# The least bytes of a value in memory; for byte arrays those of its offset.
_WIDTHS = {
    "BOOLEAN": 1,
    "INT32": 4,
    "INT64": 8,
    "INT96": 8,
    "FLOAT": 4,
    "DOUBLE": 8,
    "BYTE_ARRAY": 4,
}


class Parquet(Format):
    """Parquet shards."""

    name = "parquet"
    suffixes = (".parquet", ".pq")
    is_tabular = True

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        """Return one block per row group, whatever `block_bytes`: no part can be read alone."""
        with _open(shard) as file:
            check_footer(file, shard)
            groups = [(i, file.metadata.row_group(i)) for i in range(file.metadata.num_row_groups)]
            found = [
                (i, i + 1, group.num_rows, _memory(group)) for i, group in groups if group.num_rows
            ]
        return ShardBlocks(*np.array(found, np.int64).reshape(-1, 4).T)

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return the columns, or those asked for in that order, and `__offset__`: the row."""
        with _open(shard) as file:
            schema = file.schema_arrow
            found = check_columns(shard, schema.names, columns, partial(has_path, schema))
            names = None if columns is None else found
            return [_table(shard, file, block, names) for block in blocks]


FORMAT = Parquet()


def _table(shard: Shard, file: pq.ParquetFile, block: Block, names: Columns) -> pa.Table:
    begin, end, _ = block
    groups = file.metadata.num_row_groups
    if end > groups:
        raise shard.error(
            f"the shard changed since it was indexed: it has {groups} row groups now, and had "
            f"{end} or more",
            file.metadata.num_rows,
        )
    first_row = rows_in(file, 0, begin)
    with _damage(shard, first_row):
        rows = rows_in(file, begin, end)
        check_samples(shard, block, rows)
        selected = None if names is None else list(names)
        table = file.read_row_groups(list(range(begin, end)), columns=selected, use_threads=False)
        table = table if selected is None else select_paths(table, selected)
        table.validate(full=True)
        offsets = int64_column(np.arange(first_row, first_row + rows))
        metadata = {**(table.schema.metadata or {}), b"shard": shard.safe_url.encode()}
        table = convert_features(convert_extensions(table)).append_column(OFFSET, offsets)
        return table.replace_schema_metadata(metadata)


@contextmanager
def _open(shard: Shard) -> Iterator[pq.ParquetFile]:
    # pyarrow fetches the ranges it needs; a buffer here would fetch what lies between them too.
    with (
        shard.storage.translate_errors(shard.url),
        shard.open(buffer=0) as source,
        _damage(shard, 0),
    ):
        yield pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True)


@contextmanager
def _damage(shard: Shard, row: int) -> Iterator[None]:
    """Raise DataError for what pyarrow raises. UnicodeDecodeError comes from column names.

    A DataError without a place gets the shard and this one.
    """
    try:
        yield
    except DataError as error:
        raise error if error.shard else shard.error(error.reason, row) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise shard.error(f"damaged Parquet file: {error}", row) from error


def _memory(group: pq.RowGroupMetaData) -> int:
    """Return the bytes of a row group in memory, as far as its metadata say.

    Dictionaries and runs make the file smaller than that.
    """
    total = 0
    for i in range(group.num_columns):
        column = group.column(i)
        width = _WIDTHS.get(column.physical_type, 1)
        total += max(column.total_uncompressed_size, column.num_values * width)
    return total


def rows_in(file: pq.ParquetFile, begin: int, end: int) -> int:
    """Return the rows of row groups [begin, end); without columns, nothing is read."""
    return (
        int(file.read_row_groups(list(range(begin, end)), columns=[]).num_rows)
        if begin < end
        else 0
    )


def check_footer(file: pq.ParquetFile, shard: Shard) -> None:
    """Check that the footer's row groups and columns are possible and agree.

    Raises pyarrow's errors, or DataError. After it, the metadata of every row group and column are
    safe to read.
    """
    metadata = file.metadata
    groups = metadata.num_row_groups
    unread = RangeFile(_stop, shard.size)
    with suppress(_StopError):
        # Before its first byte, pyarrow checks the metadata of all that it is about to read.
        pq.ParquetFile(unread, metadata=metadata, pre_buffer=True).read_row_groups(
            list(range(groups))
        )
    if rows_in(file, 0, groups) != metadata.num_rows:
        raise shard.error(
            "damaged Parquet file: the rows of its row groups do not add up to its rows", 0
        )
    flat = [
        i for i in range(metadata.num_columns) if not file.schema.column(i).max_repetition_level
    ]
    first_row = 0
    for group in map(metadata.row_group, range(groups)):
        wrong = [i for i in flat if group.column(i).num_values != group.num_rows]
        if wrong:
            name = file.schema.column(wrong[0]).path
            raise shard.error(
                f"damaged Parquet file: column {name!r} and its row group differ in length",
                first_row,
            )
        first_row += group.num_rows


class _StopError(Exception):
    """Raised in place of reading the first byte."""


def _stop(begin: int, end: int) -> bytes:
    raise _StopError
