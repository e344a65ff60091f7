"""What a format of shards must offer, what it is given, and what all formats say alike.

A raw table holds one row per sample in file order, undecoded, with the column `__offset__` (int64) and the schema
metadata `shard` (the URL without credentials). Where samples are of different files, `__file__` (string) has the URL of
each, and where some of these cannot be had, `__fault__` (string) says why, null for the others. Formats own no policy:
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

Block = tuple[int, int, int]
"""`(begin, end, samples)`: a range on block borders in the format's own units, and how many samples it must hold."""

Columns = tuple[str, ...] | None
"""Names of columns to keep, in this order; None for all."""

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Shard:
    """One shard: where it is, the size it has when it is indexed and must have when it is read, and how it is read.

    `strict`: whether what some readers let pass is refused. `options` are the format's. `mark`, where there is one,
    tells files from others of the same size, as `Storage.check_size` does.
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
        """The file, which is of the right size; see `Storage.open`."""
        self.storage.check_size(self.url, self.size, self.mark)
        return self.storage.open(self.url, buffer=buffer, mark=self.mark)

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """These byte ranges of the file, which is of the right size."""
        return self.storage.read_ranges(self.url, ranges, self.size, self.mark)

    def error(self, reason: str, offset: int, key: str | None = None) -> DataError:
        """What is wrong with the shard at this place."""
        return DataError(reason, shard=self.safe_url, offset=offset, key=key)


class Format(ABC):
    """Stateless."""

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    """Lower-case ends of file names by which a folder's files are recognised."""

    option_names: ClassVar[tuple[str, ...]] = ()
    """What `options` may hold."""

    opens_shards: ClassVar[bool] = True
    """Whether indexing a shard reads from it."""

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """The shards that a user means by `urls`, in their order. ConfigError where there are none."""
        return list_shards(urls, suffixes=self.suffixes, storage=storage)

    def files(self, url: str, size: int) -> list[tuple[str, int]]:
        """The files that a shard is made of, and their bytes; none where it is not whole without others."""
        return [(url, size)]

    @abstractmethod
    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        """The blocks of a shard, in file order. DataError when it is damaged or of another size."""

    @abstractmethod
    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """One raw table per block. `columns`: what to keep, None for everything.

        DataError when the shard is not what was indexed, ConfigError for a column that cannot be.
        """


def check_options(format_: Format, options: Options) -> None:
    """ConfigError for an option that the format does not know."""
    unknown = sorted(set(options) - set(format_.option_names))
    if unknown:
        allowed = ", ".join(format_.option_names) or "none"
        raise ConfigError(
            f"unknown option {unknown[0]!r} for format {format_.name!r}; allowed: {allowed}"
        )


def check_samples(shard: Shard, block: Block, found: int) -> None:
    """DataError unless the block holds as many samples as when it was indexed."""
    begin, end, expected = block
    if found != expected:
        raise shard.error(
            f"the shard changed since it was indexed: its part from {begin} to {end} held {expected} samples then and "
            f"holds {found} now",
            begin,
        )


def check_columns(shard: Shard, there: Sequence[str], columns: Columns) -> tuple[str, ...]:
    """The columns to read of those that are there; ConfigError for one that is not, or that has a name of ours."""
    if ours := [name for name in (OFFSET, FILE, FAULT) if name in there]:
        raise ConfigError(f"{shard.safe_url}: a column may not be called {ours[0]!r}")
    if twice := [name for i, name in enumerate(there) if name in there[:i]]:
        raise ConfigError(
            f"{shard.safe_url}: two columns are called {twice[0]!r}; write the file with a name for each"
        )
    unknown = [name for name in columns or () if name not in there and name != OFFSET]
    if unknown:
        raise ConfigError(
            f"{shard.safe_url}: no column {unknown[0]!r}; there are {', '.join(map(repr, there))}"
        )
    return tuple(name for name in (there if columns is None else columns) if name != OFFSET)


def raw_table(
    shard: Shard, columns: Mapping[str, pa.Array], encodings: Mapping[str, str] | None = None
) -> pa.Table:
    """A table that names the shard it is from; `encodings` as in `columns`, by column."""
    table = pa.table(dict(columns)).replace_schema_metadata({b"shard": shard.safe_url.encode()})
    return with_encodings(table, encodings) if encodings else table
