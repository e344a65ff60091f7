"""Define a format: what it offers, what it is given, and the columns of its raw tables.

A raw table holds one row per sample, undecoded and in file order. Its column `__offset__` (int64)
gives the place of each sample, and its schema metadata `shard` the URL without credentials. If the
samples are of different files, `__file__` (string) has the URL of each file; if some of those files
cannot be read, `__fault__` (string) says why, and is null for the others. Formats own no policy:
they find blocks and read them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa

from rayingest.errors import ConfigError, DataError
from rayingest.formats.columns import with_encodings
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.redact import redact
from rayingest.storage.urls import Listing, Urls, list_shards

OFFSET, FILE, FAULT = "__offset__", "__file__", "__fault__"
NUMBER = "__number__"
"""A column of nulls, each of which stands for the number of its row: see `index_only`."""

Block = tuple[int, int, int]
"""`(begin, end, samples)`: a range in the format's own units, and its number of samples."""

Columns = tuple[str, ...] | None
"""Names of the columns to keep, in this order; None for all."""

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Shard:
    """Say where a shard is, which size it must have, and how to read it.

    `strict`: whether the format refuses deviations that other readers accept. `options`: the
    format's own. `mark`: an etag or a time that differs when the file is written again, "" if
    unknown; `Storage.check_size` compares it.
    """

    storage: Storage
    url: str
    size: int
    strict: bool = True
    options: Options = field(default_factory=dict)
    mark: str = ""

    @property
    def safe_url(self) -> str:
        """The URL without credentials."""
        return redact(self.url)

    def open(self, *, buffer: int | None = None) -> BinaryIO:
        """Open the file, after a check of its size; see `Storage.open`."""
        self.storage.check_size(self.url, self.size, self.mark)
        return self.storage.open(self.url, buffer=buffer, mark=self.mark)

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read these byte ranges [begin, end) of the file, after a check of its size."""
        return self.storage.read_ranges(self.url, ranges, self.size, self.mark)

    def error(self, reason: str, offset: int, key: str | None = None) -> DataError:
        """Return a DataError that names the shard, the offset and the sample's key."""
        return DataError(reason, shard=self.safe_url, offset=offset, key=key)


class Format(ABC):
    """Find the blocks of shards and read them. Stateless: threads share one object."""

    name: ClassVar[str]
    """The name in the registry."""
    suffixes: ClassVar[tuple[str, ...]]
    """Lower-case ends of names: which files of a folder are shards. () if shards are no files."""

    option_names: ClassVar[tuple[str, ...]] = ()
    """Names that `options` may hold."""

    opens_shards: ClassVar[bool] = True
    """Whether `index` reads from the shard."""

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """Return the shards that `urls` names, in order. ConfigError if there are none."""
        return list_shards(urls, suffixes=self.suffixes, storage=storage)

    def files(self, url: str, size: int) -> list[tuple[str, int]]:
        """Return URL and bytes of each file of a shard; [] if the shard needs other files too."""
        return [(url, size)]

    @abstractmethod
    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        """Return the blocks of a shard, in file order.

        DataError for a damaged shard, or one whose size differs from `shard.size`.
        """

    @abstractmethod
    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return one raw table per block, with these columns only (None: all).

        DataError if the shard is not the one that was indexed, ConfigError for a column that does
        not exist.
        """


def check_options(format_: Format, options: Options) -> None:
    """Raise ConfigError for an option that the format does not know."""
    unknown = sorted(set(options) - set(format_.option_names))
    if unknown:
        allowed = ", ".join(format_.option_names) or "none"
        raise ConfigError(
            f"unknown option {unknown[0]!r} for format {format_.name!r}; allowed: {allowed}"
        )


def check_samples(shard: Shard, block: Block, found: int) -> None:
    """Raise DataError unless the block holds as many samples as the index says."""
    begin, end, expected = block
    if found != expected:
        raise shard.error(
            f"the shard changed since it was indexed: its part from {begin} to {end} held "
            f"{expected} samples then and holds {found} now",
            begin,
        )


def check_columns(shard: Shard, names: Sequence[str], columns: Columns) -> tuple[str, ...]:
    """Return the columns to read, given those of the shard.

    ConfigError for a column that the shard does not have, for two columns of one name, and for a
    reserved name.
    """
    if reserved := [name for name in (OFFSET, FILE, FAULT) if name in names]:
        raise ConfigError(
            f"the column name {reserved[0]!r} is reserved, and {shard.safe_url} has it: rename "
            "the column"
        )
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ConfigError(
            f"two columns of {shard.safe_url} are called {twice[0]!r}: write the file with unique "
            "names"
        )
    unknown = [name for name in columns or () if name not in names and name != OFFSET]
    if unknown:
        raise ConfigError(
            f"there is no column {unknown[0]!r} in {shard.safe_url}; "
            f"its columns are {', '.join(map(repr, names))}"
        )
    return tuple(name for name in (names if columns is None else columns) if name != OFFSET)


def raw_table(
    shard: Shard, columns: Mapping[str, pa.Array], encodings: Mapping[str, str] | None = None
) -> pa.Table:
    """Return a table that names its shard; `encodings` by column, as in `columns`."""
    table = pa.table(dict(columns)).replace_schema_metadata({b"shard": shard.safe_url.encode()})
    return with_encodings(table, encodings) if encodings else table
