"""Read CSV (RFC 4180): a sample per line, fields by the names in the first line of each shard.

Owns where lines begin and end. A line end between double quotes is part of a field; an empty line
is no sample; a space is a value. A quote inside a field that does not begin with one is text.
pyarrow reads the values, as text unless their column has a type. Blocks of plain files are byte
ranges between lines; a compressed file is one block. A zero byte is damage, since text has none.
Nothing in a plain file says how many lines it should have.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache

import numpy as np
import pyarrow as pa
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

from rayingest.errors import ConfigError
from rayingest.formats.compression import EXPANSION, compression_of, decompress
from rayingest.formats.lines import LineFinder, Quotes
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    BlockBuilder,
    Columns,
    Format,
    Shard,
    check_columns,
    check_samples,
    single_block,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.file_info import within_url
from rayingest.storage.files import Storage
from rayingest.util.names import show_names

TYPES, NAMES, DELIMITER = "types", "names", "delimiter"
"""The options: types by column; column names, if shards do not begin with them; the delimiter."""

_CHUNK = 4 << 20
_PLAIN = (".csv", ".tsv")
_BLANK = b"\r\n"
_LONE_RETURN = re.compile(rb"\r[^\n]")
_CHANGED = "the shard changed since it was indexed"


class Csv(Format):
    """CSV shards, plain or compressed as a whole."""

    name = "csv"
    suffixes = tuple(plain + end for plain in _PLAIN for end in ("", ".gz", ".zst"))
    option_names = (EXPANSION, TYPES, NAMES, DELIMITER)
    is_tabular = True

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        builder = BlockBuilder(block_bytes)
        rows = nbytes = 0
        for begins, ends in _lines(shard, _chunks(shard)):
            builder.extend(begins, ends, ends - begins)
            rows, nbytes = rows + len(begins), nbytes + int((ends - begins).sum())
        if not rows and NAMES not in shard.options:
            _refuse_lone_returns(shard)
        return (
            single_block(shard.size, rows, nbytes)
            if compression_of(shard.url)
            else builder.finish()
        )

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return the columns, as text or of their types, with `__offset__`.

        `__offset__` is the byte at which the line begins, in the uncompressed file.
        """
        if compression_of(shard.url):
            whole = b"".join(decompress(shard))
            names = _names(shard, whole)
            begin = 0 if NAMES in shard.options else _first_line(whole, _delimiter(shard))[1]
            return [_table(shard, whole[begin:], begin, block, names, columns) for block in blocks]
        names = _names_of_file(shard)
        # The byte before each block must be a line end, or the file has changed.
        pieces = shard.ranges([(max(begin - 1, 0), end) for begin, end, _ in blocks])
        tables = []
        for block, piece in zip(blocks, pieces, strict=True):
            begin, end, _ = block
            if begin and not piece.startswith(b"\n"):
                raise shard.error(f"{_CHANGED}: no line begins here", begin)
            if end != shard.size and not piece.endswith(b"\n"):
                raise shard.error(f"{_CHANGED}: no line ends here", end)
            tables.append(
                _table(shard, piece[1:] if begin else piece, begin, block, names, columns)
            )
        return tables


FORMAT = Csv()


def _chunks(shard: Shard) -> Generator[bytes, None, None]:
    if compression_of(shard.url):
        yield from decompress(shard)
        return
    with shard.open() as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _lines(shard: Shard, chunks: Iterator[bytes]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield begins and ends of the lines that are samples: int64[n] each, for each chunk."""
    quotes = Quotes(_delimiter(shard))
    finder = LineFinder(quotes, _BLANK)
    skip = 0 if NAMES in shard.options else 1
    at = 0
    for chunk in chunks:
        _refuse_zeros(shard, chunk, at)
        at += len(chunk)
        begins, ends = finder.feed(chunk)
        yield begins[skip:], ends[skip:]
        skip = max(0, skip - len(begins))
    if quotes.open:
        raise shard.error(
            "the file ends between two quotes, in the line that begins here: it is cut off, or a "
            "quote inside a quoted value is not doubled",
            finder.begin,
        )
    begins, ends = finder.finish()
    yield begins[skip:], ends[skip:]


def _refuse_zeros(shard: Shard, data: bytes, base: int) -> None:
    """Raise DataError for a zero byte in `data`, which stands at `base` in the shard."""
    if (at := data.find(0)) >= 0:
        raise shard.error(
            "damaged CSV: it holds a zero byte, as after a power failure, or it is UTF-16",
            base + at,
        )


def _refuse_lone_returns(shard: Shard) -> None:
    """Raise DataError if lines end in carriage returns alone.

    Then the whole file would be taken for the line of names.
    """
    with closing(_chunks(shard)) as chunks:
        head = next(chunks, b"")
    inside = Quotes(_delimiter(shard)).inside(head)
    if any(not inside[found.start()] for found in _LONE_RETURN.finditer(head)):
        raise shard.error(
            "its lines end in carriage returns alone: end them in line feeds (LF or CRLF)",
            0,
        )


def _first_line(data: bytes, delimiter: str) -> tuple[bytes, int]:
    """Return the first line that is not blank, and its end; what there is if it has no end."""
    finder = LineFinder(Quotes(delimiter), _BLANK)
    begins, ends = (
        np.concatenate(both) for both in zip(finder.feed(data), finder.finish(), strict=True)
    )
    return (data[begins[0] : ends[0]], int(ends[0])) if len(begins) else (b"", len(data))


def _names_of_file(shard: Shard) -> list[str]:
    names = shard.options.get(NAMES)
    return (
        list(names)
        if names
        else list(_cached_names(shard.storage, shard.url, shard.size, _delimiter(shard)))
    )


@lru_cache(maxsize=256)
def _cached_names(storage: Storage, url: str, size: int, delimiter: str) -> tuple[str, ...]:
    shard = Shard(storage, url, size, options={DELIMITER: delimiter})
    length = 1 << 16
    while True:
        head = shard.ranges([(0, min(length, size))])[0]
        if _first_line(head, delimiter)[1] < len(head) or length >= size:
            return tuple(_names(shard, head))
        length *= 16


def _names(shard: Shard, data: bytes) -> list[str]:
    """Return the names of the columns: the option, or the first line of `data`."""
    if NAMES in shard.options:
        return list(shard.options[NAMES])
    line = _first_line(data, _delimiter(shard))[0]
    _refuse_zeros(shard, line, 0)
    try:
        text = io.StringIO(line.decode("utf-8-sig"), newline="")
        names, *more = list(csv.reader(text, delimiter=_delimiter(shard), strict=True)) or [[]]
        if more:
            raise ValueError("more than one line")
    except (ValueError, csv.Error) as error:
        raise shard.error(f"its first line is not a list of column names: {error}", 0) from error
    if len(set(names)) < len(names):
        raise ConfigError(
            f"the first line of {shard.safe_url} names a column twice: give unique names with "
            "names=[...]"
        )
    return names


def _delimiter(shard: Shard) -> str:
    default = "\t" if ".tsv" in within_url(shard.url).lower()[-8:] else ","
    return str(shard.options.get(DELIMITER, default))


def _table(
    shard: Shard, data: bytes, base: int, block: Block, names: Sequence[str], columns: Columns
) -> pa.Table:
    """Return the lines of `data`, which stands at `base` in the shard, as a raw table."""
    _refuse_zeros(shard, data, base)
    finder = LineFinder(Quotes(_delimiter(shard)), _BLANK)
    begins = np.concatenate([finder.feed(data)[0], finder.finish()[0]])
    check_samples(shard, block, len(begins))
    wanted = check_columns(shard, names, columns)
    types = _types(shard, names)
    with _damage(shard, block[0]):
        table = read_csv(
            pa.BufferReader(data),
            ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
            ParseOptions(delimiter=_delimiter(shard), newlines_in_values=True),
            ConvertOptions(
                column_types=types,
                include_columns=wanted,
                null_values=[""],
                strings_can_be_null=False,
            ),
        ).select(list(wanted))
    if wanted and table.num_rows != len(begins):
        ends = (
            "if lone carriage returns end lines too" if _LONE_RETURN.search(data) else "for pyarrow"
        )
        raise shard.error(
            f"damaged CSV: {len(begins)} lines by line feeds, {table.num_rows} {ends}",
            block[0],
        )
    table = (
        table.append_column(OFFSET, pa.array(base + begins))
        if wanted
        else pa.table({OFFSET: base + begins})
    )
    return table.replace_schema_metadata({b"shard": shard.safe_url.encode()})


def _types(shard: Shard, names: Sequence[str]) -> dict[str, pa.DataType]:
    types: Mapping[str, str] = shard.options.get(TYPES, {})
    unknown = [name for name in types if name not in names]
    if unknown:
        raise ConfigError(
            f"types: there is no column {unknown[0]!r}; there are "
            f"{show_names(names, unknown[0])} [shard {shard.short_url}]"
        )
    try:
        return {name: pa.type_for_alias(types.get(name, "string")) for name in names}
    except ValueError as error:
        raise ConfigError(
            f"types: {error}; give Arrow types such as 'int64', 'float32', 'bool', 'timestamp[s]'"
        ) from None


@contextmanager
def _damage(shard: Shard, offset: int) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise shard.error(
            f"damaged CSV, or a value that is not of its column's type: {error}", offset
        ) from error
