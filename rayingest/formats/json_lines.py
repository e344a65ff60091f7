"""Read JSON Lines (https://jsonlines.org): a sample per line; lines of white space are no samples.

Owns where lines begin and end. A line that is no valid JSON, such as one that is cut off, is an
error when it is decoded, or with `types` when its block is read (`json_columns`). Blocks of plain
files are byte ranges between lines; a `.gz` or `.zst` file is one block. Nothing in a plain file
says how many lines it should have: a file that is cut between two lines before it is first indexed
passes as whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from rayingest.formats.compression import EXPANSION, compression_of, decompress
from rayingest.formats.json_columns import typed_columns
from rayingest.formats.lines import LineFinder
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    BlockBuilder,
    Columns,
    Format,
    Shard,
    check_columns,
    check_samples,
    raw_table,
    single_block,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.arrow import binary_column, int64_column

LINE = "__json__"
TYPES = "types"
"""The option: types by field, as in `json_columns`; then only these fields are columns."""

_CHUNK = 4 << 20
_PLAIN = (".jsonl", ".ndjson", ".json")
_CHANGED = "the shard changed since it was indexed"


class JsonLines(Format):
    """JSON Lines shards, plain or compressed as a whole with gzip or Zstandard."""

    name = "json_lines"
    suffixes = tuple(plain + end for plain in _PLAIN for end in ("", ".gz", ".zst"))
    option_names = (EXPANSION, TYPES)
    is_tabular = True

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        finder = LineFinder()
        if compression_of(shard.url):
            samples = nbytes = 0
            for chunk in decompress(shard):
                samples += len(finder.feed(chunk)[0])
                nbytes += len(chunk)
            return single_block(shard.size, samples + len(finder.finish()[0]), nbytes)
        builder = BlockBuilder(block_bytes)
        with shard.open() as file:
            while chunk := file.read(_CHUNK):
                begins, ends = finder.feed(chunk)
                builder.extend(begins, ends, ends - begins)
        begins, ends = finder.finish()
        builder.extend(begins, ends, ends - begins)
        return builder.finish()

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return the columns `__json__` (binary: the line without its end) and `__offset__`.

        `__offset__` is the byte at which the line begins; in a compressed file, the number of the
        line from 0, blank lines counted. Lines are whole, whatever `columns` says. With `types`,
        the wanted fields are columns instead.
        """
        if compression_of(shard.url):
            return [
                _table(shard, list(_lines(decompress(shard))), block, None, columns)
                for block in blocks
            ]
        # The byte before each block must be a line end, or the file has changed.
        pieces = shard.ranges([(max(begin - 1, 0), end) for begin, end, _ in blocks])
        tables = []
        for block, piece in zip(blocks, pieces, strict=True):
            begin, end, _ = block
            lines = piece.split(b"\n")
            if begin and lines.pop(0):
                raise shard.error(f"{_CHANGED}: no line begins here", begin)
            if end != shard.size and lines[-1]:
                raise shard.error(f"{_CHANGED}: no line ends here", end)
            tables.append(_table(shard, lines, block, begin, columns))
        return tables


FORMAT = JsonLines()


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream, without their ends."""
    parts: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for line in others:
            yield b"".join(parts)
            parts = [line]
    yield b"".join(parts)


def _table(
    shard: Shard, lines: Sequence[bytes], block: Block, begin: int | None, columns: Columns
) -> pa.Table:
    """Return the lines that are samples as a raw table.

    `begin`: the byte at which the first line stands; None to number lines instead.
    """
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    offsets = (
        np.arange(len(lines)) if begin is None else begin + np.cumsum(lengths + 1) - lengths - 1
    )
    numbers = [i for i, line in enumerate(lines) if line and not line.isspace()]
    samples, offsets = [lines[i].removesuffix(b"\r") for i in numbers], offsets[numbers]
    check_samples(shard, block, len(samples))
    types = shard.options.get(TYPES)
    if types:
        wanted = {name: types[name] for name in check_columns(shard, list(types), columns)}
        found = typed_columns(
            samples, wanted, lambda i, reason: shard.error(reason, int(offsets[i]))
        )
        return raw_table(shard, {**found, OFFSET: int64_column(offsets)})
    sizes = np.fromiter(map(len, samples), np.int64, len(samples))
    return raw_table(shard, {LINE: binary_column(samples, sizes), OFFSET: int64_column(offsets)})
