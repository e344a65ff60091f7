"""Define a format: what it offers, what it is given, and how an index is made with it.

A raw table holds one row per sample, undecoded and in file order. Its column `__offset__` (int64)
gives the place of each sample, and its schema metadata `shard` the URL without credentials. If the
samples are of different files, `__file__` (string) has the URL of each file; if some of those files
cannot be read, `__fault__` (string) says why, and is null for the others. Formats own no policy:
they find blocks and read them.

A manifest is built shard by shard: `index_shard` is a pure function of its arguments and the shard,
so that it runs in a thread or in a task, in any order. `storage.scan` caches the manifest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError, DataError
from rayingest.formats.columns import with_encodings
from rayingest.plan.order.manifest import MAX_BLOCK_SAMPLES, Manifest, ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, Urls, list_shards
from rayingest.storage.redact import redact
from rayingest.storage.scan import IndexCache
from rayingest.util.names import shorten, show_names

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
    unknown; `Storage.check_size` compares it. `folder_types`: the columns that the folders of all
    shards give, and their types; see `hive`.
    """

    storage: Storage
    url: str
    size: int
    strict: bool = True
    options: Options = field(default_factory=dict)
    mark: str = ""
    folder_types: Mapping[str, pa.DataType] = field(default_factory=dict)

    @property
    def safe_url(self) -> str:
        """The URL without credentials."""
        return redact(self.url)

    @property
    def short_url(self) -> str:
        """The URL for a message: a group of files has the names of all of them."""
        return shorten(self.safe_url)

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

    is_tabular: ClassVar[bool] = False
    """Whether folders named `key=value` give columns; then `read` uses `check_columns`."""

    opens_shards: ClassVar[bool] = True
    """Whether `index` reads from the shard."""
    lists_storage: ClassVar[bool] = True
    """Whether `shards` looks for files."""

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


def check_columns(
    shard: Shard,
    names: Sequence[str],
    columns: Columns,
    has_path: Callable[[str], bool] = lambda name: False,
) -> tuple[str, ...]:
    """Return the columns to read, given those of the shard, without those of its folders.

    `has_path`: whether a dotted name leads to a field of a column. ConfigError for a column that
    the shard does not have, for two columns of one name, and for a reserved name.
    """
    if reserved := [name for name in (OFFSET, FILE, FAULT) if name in names]:
        raise ConfigError(
            f"the column name {reserved[0]!r} is reserved: rename the column "
            f"[shard {shard.short_url}]"
        )
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ConfigError(
            f"two columns are called {twice[0]!r}: write the file with unique names "
            f"[shard {shard.short_url}]"
        )
    there = {*names, *(name for name in columns or () if name not in names and has_path(name))}
    elsewhere = {OFFSET, *shard.folder_types}
    unknown = [name for name in columns or () if name not in there | elsewhere]
    if unknown:
        raise ConfigError(
            f"there is no column {unknown[0]!r}; there are "
            f"{show_names([*names, *shard.folder_types], unknown[0])} [shard {shard.short_url}]"
        )
    return tuple(name for name in (names if columns is None else columns) if name in there)


def raw_table(
    shard: Shard, columns: Mapping[str, pa.Array], encodings: Mapping[str, str] | None = None
) -> pa.Table:
    """Return a table that names its shard; `encodings` by column, as in `columns`."""
    table = pa.table(dict(columns)).replace_schema_metadata({b"shard": shard.safe_url.encode()})
    return with_encodings(table, encodings) if encodings else table


class BlockBuilder:
    """Cut the samples of a shard into blocks: greedily, in file order.

    A block ends when it spans `block_bytes` of the file or holds 1,024 samples.
    """

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._begin, self._end, self._samples, self._nbytes = (array("q") for _ in range(4))
        self._open = False

    def add(self, begin: int, end: int, nbytes: int, samples: int = 1) -> None:
        """Add the next samples, which stay in one block.

        `begin`, `end`: their range in the file. `nbytes`: their bytes in memory.
        """
        if self._open:
            self._end[-1] = end
            self._samples[-1] += samples
            self._nbytes[-1] += nbytes
        else:
            self._begin.append(begin)
            self._end.append(end)
            self._samples.append(samples)
            self._nbytes.append(nbytes)
        self._open = (
            end - self._begin[-1] < self._block_bytes and self._samples[-1] < MAX_BLOCK_SAMPLES
        )

    def extend(self, begins: np.ndarray, ends: np.ndarray, nbytes: np.ndarray) -> None:
        """Add samples one by one; int64[n] each for begins, ends and bytes in memory."""
        totals = np.concatenate([[0], np.cumsum(nbytes)])
        at = 0
        while at < len(begins):
            start, held = (
                (self._begin[-1], self._samples[-1]) if self._open else (int(begins[at]), 0)
            )
            by_bytes = int(np.searchsorted(ends, start + self._block_bytes)) + 1
            upto = min(max(by_bytes, at + 1), at + MAX_BLOCK_SAMPLES - held, len(begins))
            self.add(
                int(begins[at]), int(ends[upto - 1]), int(totals[upto] - totals[at]), upto - at
            )
            at = upto

    def finish(self) -> ShardBlocks:
        """Return all blocks."""
        columns = (self._begin, self._end, self._samples, self._nbytes)
        return ShardBlocks(*(np.array(column, np.int64) for column in columns))


def single_block(size: int, samples: int, nbytes: int) -> ShardBlocks:
    """Return a whole shard as one block, or no block if it has no samples."""
    columns = ([0], [size], [samples], [nbytes]) if samples else ([], [], [], [])
    return ShardBlocks(*(np.array(column, np.int64) for column in columns))


def index_shard(format_: Format, shard: Shard, block_bytes: int) -> ShardBlocks:
    """Return the blocks of one shard. DataError for a damaged shard or one of another size."""
    check_options(format_, shard.options)
    with shard.storage.translate_errors(shard.url, "index"):
        return format_.index(shard, block_bytes)


def build_manifest(listing: Listing, blocks_per_shard: Sequence[ShardBlocks]) -> Manifest:
    """Return the manifest of all shards, in the order of the listing.

    ConfigError if no shard has a sample.
    """
    if len(blocks_per_shard) != len(listing):
        raise ValueError(f"{len(blocks_per_shard)} shards indexed of {len(listing)} listed")
    manifest = Manifest.join(
        listing.root, listing.paths, listing.sizes, listing.marks, blocks_per_shard
    )
    if not manifest.num_samples:
        raise ConfigError(
            f"there is no sample in any of the {len(listing)} shards in {redact(listing.root)}"
        )
    return manifest


@dataclass(frozen=True)
class IndexScan:
    """The manifest as a `Scan`: a part is a shard."""

    cache: IndexCache
    format: Format

    @property
    def name(self) -> str:
        return "index"

    @property
    def key(self) -> str:
        return self.cache.key

    @property
    def is_light(self) -> bool:
        return not self.format.opens_shards

    def load(self) -> Manifest | None:
        return self.cache.load()

    def save(self, value: Manifest) -> None:
        self.cache.save(value)

    def parts(self) -> list[Callable[[], ShardBlocks]]:
        cache, listing = self.cache, self.cache.listing
        shards = (
            Shard(cache.storage, listing.url(i), int(listing.sizes[i]), cache.strict, cache.options)
            for i in range(len(listing))
        )
        return [partial(index_shard, self.format, shard, cache.block_bytes) for shard in shards]

    def join(self, results: Sequence[ShardBlocks]) -> Manifest:
        return build_manifest(self.cache.listing, results)
