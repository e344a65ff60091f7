"""What a format of shards must offer, and what all formats say alike.

A raw table holds one row per sample in file order, undecoded, with the column `__offset__` (int64) and the schema
metadata `shard` (the URL without credentials). Formats own no policy: they find blocks and read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError, DataError
from rayingest.plan.manifest import ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.redact import redact

OFFSET = "__offset__"

Block = tuple[int, int, int]
"""`(begin, end, samples)`: a range on block borders in the format's own units, and how many samples it must hold."""

Options = Mapping[str, Any]


class Format(Protocol):
    """Stateless; an instance pickles as a reference to its class."""

    @property
    def name(self) -> str: ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Lower-case ends of file names by which a folder's files are recognised."""

    @property
    def option_names(self) -> tuple[str, ...]:
        """What `options` may hold."""

    def index(
        self, storage: Storage, url: str, size: int, block_bytes: int, strict: bool, options: Options
    ) -> ShardBlocks:
        """The blocks of a shard of `size` bytes, in file order. DataError when it is damaged or of another size."""

    def read(
        self,
        storage: Storage,
        url: str,
        blocks: Sequence[Block],
        size: int,
        columns: tuple[str, ...] | None,
        strict: bool,
        options: Options,
    ) -> list[pa.Table]:
        """One raw table per block. `columns`: what to keep, None for everything.

        DataError when the shard is not what was indexed, ConfigError for a column that cannot be.
        """


def check_options(format_: Format, options: Options) -> None:
    """ConfigError for an option that the format does not know."""
    unknown = sorted(set(options) - set(format_.option_names))
    if unknown:
        allowed = ", ".join(format_.option_names) or "none"
        raise ConfigError(f"unknown option {unknown[0]!r} for format {format_.name!r}; allowed: {allowed}")


def check_samples(block: Block, found: int, shard: str) -> None:
    """DataError unless the block holds as many samples as when it was indexed."""
    begin, end, expected = block
    if found != expected:
        raise DataError(
            f"the shard changed since it was indexed: its part from {begin} to {end} held {expected} samples then and "
            f"holds {found} now",
            shard=shard,
            offset=begin,
        )


def raw_table(columns: Mapping[str, pa.Array], url: str) -> pa.Table:
    """A table that names the shard it is from."""
    return pa.table(dict(columns)).replace_schema_metadata({b"shard": redact(url).encode()})


def binary_column(pieces: Iterable[bytes | memoryview], sizes: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Pieces one after the other as a binary column: `sizes` int64[rows], 0 where not `valid` (bool[rows], None: all).

    The only copy of the bytes; large_binary where 32-bit offsets cannot address them.
    """
    data = b"".join(pieces)
    type_, offset_type = (pa.binary(), np.int32) if len(data) < 1 << 31 else (pa.large_binary(), np.int64)
    offsets = np.zeros(len(sizes) + 1, offset_type)
    np.cumsum(sizes, out=offsets[1:])
    mask = None
    if valid is not None and not valid.all():
        mask = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(type_, len(sizes), [mask, pa.py_buffer(offsets), pa.py_buffer(data)])
