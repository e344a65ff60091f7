"""Read WebDataset: tar files in which neighbouring members with one key are a sample's fields.

Owns which members are samples. A field's name is what follows the first dot of a member's base
name, lower-cased; the key is everything before that dot, folders included. Members that are no
regular files, names without an extension or with nothing before the dot, and whatever lies at or
below a top-level `__name__` belong to no sample. Blocks are byte ranges between headers; a
`.tar.gz`, or the output of a command, is one block. Files in a tar have no checksums: a decoder
must find damage inside a file, but for a `.tar.gz`, which has a checksum of everything.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError, DataError
from rayingest.formats.compression import EXPANSION, compression_of, decompress
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    BlockBuilder,
    Columns,
    Format,
    Options,
    Shard,
    check_samples,
    raw_table,
    single_block,
)
from rayingest.formats.tar import (
    BufferSource,
    FileSource,
    Member,
    StreamSource,
    blame_foreign_index,
    check_end,
    next_member,
    read_foreign_index,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.arrow import binary_column, int64_column, text_column
from rayingest.storage.file_info import is_pipe
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, Urls, list_shards
from rayingest.storage.pipes import stream_output
from rayingest.storage.redact import redact

KEY = "__key__"

_GZIP = b"\x1f\x8b"
_META = re.compile(r"__[^/]*__(/|$)")
_TarSource = FileSource | BufferSource | StreamSource


@dataclass(slots=True)
class _Sample:
    key: str
    offset: int
    end: int
    sizes: dict[str, int] = field(default_factory=dict)
    data: dict[str, bytes | memoryview] = field(default_factory=dict)


class WebDataset(Format):
    """Tar shards, plain or compressed as a whole with gzip, and the output of commands."""

    name = "webdataset"
    suffixes = (".tar", ".tar.gz", ".tgz")
    option_names = (EXPANSION,)

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        if _is_stream(shard):
            with _stream(shard) as source:
                sizes = [
                    sum(sample.sizes.values())
                    for sample in _samples(source, 0, None, shard.strict, ())
                ]
                length = source.drain()
            return single_block(
                length if is_pipe(shard.url) else shard.size, len(sizes), sum(sizes)
            )
        builder = BlockBuilder(block_bytes)
        at = 0
        with shard.open() as file:
            tar = FileSource(file, shard.size, shard.safe_url)
            known = read_foreign_index(
                shard, lambda begin, end: _count_up_to_2(tar, begin, end, shard.strict)
            )
            if known is not None:
                builder.extend(*known)
                at = int(known.ends[-1])
            # Read the rest of the tar, and check its end.
            for sample in _samples(tar, at, None, shard.strict, ()):
                builder.add(sample.offset, sample.end, sum(sample.sizes.values()))
        return builder.finish()

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """Return the shards that `urls` names, and those that a `.json` list of wids names."""
        given = [urls] if isinstance(urls, str | os.PathLike) else urls
        found = [shard for url in given for shard in _expand_list(os.fspath(url), storage)]
        return list_shards(
            found if len(found) > 1 else found[0], suffixes=self.suffixes, storage=storage
        )

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return `__key__` (string), a binary column per extension, and `__offset__`.

        A value is null if the sample lacks the field. `__offset__` is the byte of the sample's
        first header, in the uncompressed tar.
        """
        wanted = _extensions(columns)
        if _is_stream(shard):
            return [_read_stream(shard, block, wanted) for block in blocks]
        pieces = shard.ranges([(begin, end) for begin, end, _ in blocks])
        tables = []
        for block, piece in zip(blocks, pieces, strict=True):
            source = BufferSource(piece, block[0], shard.safe_url)
            samples = _samples(source, block[0], block[1], shard.strict, wanted)
            try:
                tables.append(_table(shard, samples, block, wanted))
            except DataError as error:
                raise blame_foreign_index(shard, error) from error.__cause__
        return tables


FORMAT = WebDataset()


def _expand_list(url: str, storage: Storage) -> list[str]:
    """Return the URL, or the URLs in a list of wids.

    See https://github.com/webdataset/webdataset.
    """
    if not url.endswith(".json"):
        return [url]
    try:
        listed = json.loads(storage.read_all(url))
        shards = [str(shard["url"]) for shard in listed["shardlist"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{redact(url)} is not a list of shards as wids writes them: {error!r}"
        ) from None
    folder = url.rpartition("/")[0]
    return [
        shard if "://" in shard or shard.startswith("/") else f"{folder}/{shard}"
        for shard in shards
    ]


def _is_stream(shard: Shard) -> bool:
    return is_pipe(shard.url) or compression_of(shard.url) is not None


@contextmanager
def _stream(shard: Shard) -> Iterator[StreamSource]:
    """Open a shard that is read once from begin to end; close it on exit."""
    chunks = _command_output(shard) if is_pipe(shard.url) else decompress(shard)
    with closing(chunks):
        yield StreamSource(chunks, shard.safe_url)


def _command_output(shard: Shard) -> Generator[bytes, None, None]:
    """Yield the output of a command. ConfigError if it is gzip."""
    with closing(stream_output(shard.storage, shard.url)) as chunks:
        first = next(chunks, b"")
        if first.startswith(_GZIP):
            raise ConfigError(
                f"the command {shard.safe_url} writes gzip: append `| gzip -dc` to it"
            )
        yield first
        yield from chunks


def _read_stream(shard: Shard, block: Block, wanted: Columns) -> pa.Table:
    with _stream(shard) as source:
        table = _table(shard, _samples(source, 0, None, shard.strict, wanted), block, wanted)
        length = source.drain()
    if is_pipe(shard.url) and length != block[1]:
        raise shard.error(
            f"the shard changed since it was indexed: the command wrote {block[1]} bytes then, "
            f"{length} now; if the data are "
            "right, remove the cached index",
            min(length, block[1]),
        )
    return table


def field_of(name: str) -> tuple[str, str] | None:
    """Return key and extension of a member's name, or None if it belongs to no sample."""
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    if not stem or not dot or not extension or _META.match(name):
        return None
    return folder + slash + stem, extension.lower()


def _samples(
    source: _TarSource, begin: int, end: int | None, strict: bool, wanted: Columns
) -> Iterator[_Sample]:
    """Yield the samples of [begin, end); with `end` None all samples, and check the end marker.

    They hold the data of the `wanted` extensions (None: all), taken while passing: a stream cannot
    go back.
    """
    at = begin
    sample: _Sample | None = None
    while at != end:
        member = next_member(source, at)
        if member is None:
            break
        at = member.end
        given = field_of(member.name) if member.regular else None
        if given is None:
            continue
        key, extension = given
        if sample is not None and sample.key != key:
            yield sample
            sample = None
        sample = sample or _Sample(key, member.offset, at)
        _add(sample, extension, member, source.shard)
        if wanted is None or extension in wanted:
            sample.data[extension] = source.piece(member.data, member.size)
    if sample is not None:
        yield sample
    if end is None:
        check_end(source, at, strict)
    elif at != end:
        raise DataError(
            "the shard changed since it was indexed: it has a zero block here",
            shard=source.shard,
            offset=at,
        )


def _count_up_to_2(source: FileSource, begin: int, end: int, strict: bool) -> int:
    """Return how many samples [begin, end) has, at most 2. DataError if not between headers."""
    return len(list(islice(_samples(source, begin, end, strict, ()), 2)))


def _add(sample: _Sample, extension: str, member: Member, shard: str) -> None:
    if extension in sample.sizes:
        raise DataError(
            f"the sample has two files with extension {extension!r}",
            shard=shard,
            offset=member.offset,
            key=sample.key,
        )
    if extension.startswith("__") and extension.endswith("__"):
        raise DataError(
            f"the extension {extension!r} is reserved: rename the file",
            shard=shard,
            offset=member.offset,
            key=sample.key,
        )
    sample.sizes[extension] = member.size
    sample.end = member.end


def _extensions(columns: Columns) -> Columns:
    if columns is None:
        return None
    for name in columns:
        if name != name.lower():
            raise ConfigError(
                f"there is no field {name!r}: extensions are lower-cased; give {name.lower()!r}"
            )
    return tuple(name for name in columns if name not in {KEY, OFFSET})


def _table(shard: Shard, samples: Iterator[_Sample], block: Block, wanted: Columns) -> pa.Table:
    keys, offsets = [], []
    rows: dict[str, list[int]] = {name: [] for name in wanted or ()}
    pieces: dict[str, list[bytes | memoryview]] = {name: [] for name in wanted or ()}
    for row, sample in enumerate(samples):
        keys.append(sample.key)
        offsets.append(sample.offset)
        for name, piece in sample.data.items():
            rows.setdefault(name, []).append(row)
            pieces.setdefault(name, []).append(piece)
    check_samples(shard, block, len(keys))
    columns: dict[str, pa.Array] = {KEY: text_column(keys)}
    for name in sorted(rows):
        sizes, valid = np.zeros(len(keys), np.int64), np.zeros(len(keys), bool)
        sizes[rows[name]] = [len(piece) for piece in pieces[name]]
        valid[rows[name]] = True
        columns[name] = binary_column(pieces[name], sizes, valid)
    columns[OFFSET] = int64_column(offsets)
    return raw_table(shard, columns)
