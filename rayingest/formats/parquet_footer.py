"""Whether the footer of a Parquet file can be believed, which has no checksum, and how many rows it tells of.

Owns that a damaged footer is an error: asked from Python for a row group or a column, pyarrow ends the whole process
where a footer is damaged in some ways, but raises where it is about to read. Nothing here reads a row.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow.parquet as pq

from rayingest.formats.protocol import Shard
from rayingest.storage.range_file import RangeFile


def rows_in(file: pq.ParquetFile, begin: int, end: int) -> int:
    """Rows in row groups [begin, end): a read of no columns reads nothing."""
    return (
        int(file.read_row_groups(list(range(begin, end)), columns=[]).num_rows)
        if begin < end
        else 0
    )


def check_footer(file: pq.ParquetFile, shard: Shard) -> None:
    """That what the footer tells of row groups and columns can be, and agrees: pyarrow's errors, or DataError.

    Afterwards the metadata of every row group and column can be asked for.
    """
    metadata = file.metadata
    groups = metadata.num_row_groups
    unread = RangeFile(_reached, shard.size)
    with suppress(_ReachedError):
        # pyarrow looks at the metadata of all that it is to read before its first byte.
        pq.ParquetFile(unread, metadata=metadata, pre_buffer=True).read_row_groups(
            list(range(groups))
        )
    if rows_in(file, 0, groups) != metadata.num_rows:
        raise shard.error("damaged Parquet file: its row groups do not add up to its rows", 0)
    flat = [
        i for i in range(metadata.num_columns) if not file.schema.column(i).max_repetition_level
    ]
    first_row = 0
    for group in map(metadata.row_group, range(groups)):
        wrong = [i for i in flat if group.column(i).num_values != group.num_rows]
        if wrong:
            name = file.schema.column(wrong[0]).path
            raise shard.error(
                f"damaged Parquet file: column {name!r} has not as many values as its row group has rows",
                first_row,
            )
        first_row += group.num_rows


class _ReachedError(Exception):
    """The first byte would be read now."""


def _reached(begin: int, end: int) -> bytes:
    raise _ReachedError
