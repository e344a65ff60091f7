"""Read MosaicML's MDS: samples behind an offset table, with an `index.json` per folder.

Owns the description of a shard, JSON between its offset table and its samples, and the Arrow column
of each encoding: numbers and text become Arrow's own types, all else stays bytes with the name of
its decoder. Blocks are byte ranges between samples; a compressed shard is one block. An
`index.json` says which shards there are, and the samples, bytes and hashes of each. Version 2, as
https://github.com/mosaicml/streaming writes it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError
from rayingest.formats.columns import (
    Bytes,
    array_encoding,
    bytes_column,
    fixed_column,
    lists_column,
    number_column,
)
from rayingest.formats.compression import EXPANSION, compression_of, decompress
from rayingest.formats.index_json import Entry, find_entry, list_indexed
from rayingest.formats.offset_table import (
    encode_npy,
    encode_ppm,
    parse_offset_table,
    samples_table,
    split_list,
)
from rayingest.formats.protocol import (
    Block,
    BlockBuilder,
    Columns,
    Format,
    Options,
    Shard,
    single_block,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, Urls
from rayingest.util.optional import import_optional

CHECK_HASHES = "check_hashes"
"""The option: check hashes of uncompressed shards too, which reads them whole."""

_CHUNK = 8 << 20


class Mds(Format):
    """MDS shards, plain or in any compression that their writer knows."""

    name = "mds"
    suffixes = tuple(".mds" + end for end in ("", ".zstd", ".zst", ".gz", ".bz2", ".br", ".snappy"))
    option_names = (EXPANSION, CHECK_HASHES)

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """Return the shards that the `index.json` of each folder names, if it has one."""
        return list_indexed(urls, self.suffixes, storage, _entries)

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        entry = find_entry(shard, _entries)
        if compression_of(shard.url):
            head, _ = _whole(shard, entry)
            lengths = np.diff(head.offsets)
            blocks = single_block(shard.size, len(lengths), int(lengths.sum()))
        else:
            if entry is not None and shard.options.get(CHECK_HASHES):
                with shard.open() as file:
                    check_hashes(shard, entry.hashes, iter(lambda: file.read(_CHUNK), b""))
            head = _plain_head(shard)
            builder = BlockBuilder(block_bytes)
            builder.extend(head.offsets[:-1], head.offsets[1:], np.diff(head.offsets))
            blocks = builder.finish()
        samples = len(head.offsets) - 1
        if entry is not None and entry.samples != samples:
            raise shard.error(
                f"the shard holds {samples} samples, and {entry.samples} by its index.json", 0
            )
        return blocks

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return the columns, or those asked for in that order, and `__offset__`.

        `__offset__` is the byte of the sample, in the uncompressed shard.
        """
        if compression_of(shard.url):
            head, data = _whole(shard, find_entry(shard, _entries))
            begin, end = int(head.offsets[0]), int(head.offsets[-1])
            samples = memoryview(data)[begin:end]
            return [
                samples_table(shard, head.columns, samples, begin, block, columns)
                for block in blocks
            ]
        head = _cached_head(shard.storage, shard.url, shard.size)
        pieces = shard.ranges([(begin, end) for begin, end, _ in blocks])
        return [
            samples_table(shard, head.columns, memoryview(piece), block[0], block, columns)
            for block, piece in zip(blocks, pieces, strict=True)
        ]


FORMAT = Mds()


@dataclass(frozen=True)
class _Head:
    """The part before the samples.

    `offsets`: int64[samples + 1], the begin of each and the end of the last.
    """

    columns: tuple[MdsColumn, ...]
    offsets: np.ndarray


def _entries(index: Any) -> list[Entry]:
    entries = []
    for one in index["shards"]:
        if (one["format"], one["version"]) != ("mds", 2):
            raise ValueError(
                f"a shard has format {one['format']!r}, version {one['version']}; only MDS 2 is "
                "supported"
            )
        files = [one[kind] for kind in ("raw_data", "zip_data") if one[kind]]
        sizes = {file["basename"]: file["bytes"] for file in files}
        entries.append(Entry(sizes, one["samples"], one["raw_data"]["hashes"]))
    return entries


def _whole(shard: Shard, entry: Entry | None) -> tuple[_Head, bytes]:
    """Return the head and bytes of a compressed shard, checked against the hashes of its index."""
    data = b"".join(decompress(shard))
    check_hashes(shard, {} if entry is None else entry.hashes, [data])
    return _head(shard, len(data), lambda begin, end: data[begin:end]), data


def _plain_head(shard: Shard) -> _Head:
    return _head(shard, shard.size, lambda begin, end: shard.ranges([(begin, end)])[0])


@lru_cache(maxsize=256)
def _cached_head(storage: Storage, url: str, size: int) -> _Head:
    """Return the head of a shard that is read often, without its offsets: the index has them."""
    head = _plain_head(Shard(storage, url, size))
    return _Head(head.columns, head.offsets[:0])


def _head(shard: Shard, size: int, read: Callable[[int, int], bytes]) -> _Head:
    """Parse the head. `read(begin, end)` returns bytes of the shard, which has `size` bytes."""
    offsets, description = parse_offset_table(shard, size, read)
    if offsets[-1] != size:
        raise shard.error(
            f"its samples end at {offsets[-1]}, and it has {size} bytes: damaged, or data follow",
            0,
        )
    try:
        config = json.loads(description)
        described = zip(
            config["column_names"], config["column_encodings"], config["column_sizes"], strict=True
        )
        return _Head(tuple(MdsColumn(*column) for column in described), offsets)
    except (KeyError, TypeError, ValueError) as error:
        place = int(offsets[0]) - len(description)
        raise shard.error(
            f"not MDS, or damaged: its column descriptions are invalid: {error}", place
        ) from error


_NUMBERS = {
    f"{kind}{bits}": np.dtype(f"<{kind[0]}{bits // 8}")
    for kind in ("uint", "int")
    for bits in (8, 16, 32, 64)
}
_NUMBERS |= {f"float{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)} | {
    "int": np.dtype("<i8")
}
_DECODED = {
    "json": "json",
    "jpeg": "jpg",
    "png": "png",
    "pil": "ppm",
    "pkl": "pkl",
    "ndarray": "npy",
}
_DECODED |= {"str_int": "int", "str_float": "float", "str_decimal": "decimal"}
_LISTS = {
    "list[jpeg]": "jpg",
    "list[png]": "png",
    "list[pil]": "ppm",
    "jpeg_array": "jpg",
    "jpegarray": "jpg",
}
# The byte that gives a dtype, and the widths that a shape's numbers may have.
_DTYPES = {
    8: "u1",
    9: "i1",
    16: "u2",
    17: "i2",
    18: "f2",
    32: "u4",
    33: "i4",
    34: "f4",
    64: "u8",
    65: "i8",
    66: "f8",
}
_WIDTHS = ("B", "H", "I", "Q")


@dataclass(frozen=True)
class MdsColumn:
    """One column, as a shard describes it. `size`: bytes of each value, None if they differ.

    ValueError for an unknown encoding.
    """

    name: str
    encoding: str
    size: int | None

    def __post_init__(self) -> None:
        if self.kind not in {"bytes", "str", *_NUMBERS, *_DECODED, *_LISTS}:
            raise ValueError(f"the encoding {self.encoding!r} of column {self.name!r} is unknown")

    @property
    def kind(self) -> str:
        """The encoding without its array parameters."""
        return self.encoding.partition(":")[0]

    @property
    def decoded_by(self) -> str | None:
        """The encoding of the Arrow column, as in `columns`; None if it has none."""
        dtype, shape = self._array
        if dtype is not None and shape is not None:
            return array_encoding(dtype, shape)
        return _DECODED.get(self.kind) or _LISTS.get(self.kind)

    def arrow(self, values: Sequence[Bytes]) -> pa.Array:
        """Return the values as an Arrow column; ValueError or struct.error if damaged."""
        if self.kind in _NUMBERS:
            return number_column(b"".join(values), _NUMBERS[self.kind])
        if self.kind == "str":
            return bytes_column(values, text=True)
        if self.kind == "pil":
            return bytes_column([encode_ppm(value) for value in values])
        if self.kind in _LISTS:
            make = encode_ppm if self.encoding == "list[pil]" else bytes
            skipped = 4 if self.encoding.startswith("list") else 0  # reserved, without meaning yet
            return lists_column(
                [[make(item) for item in split_list(value, skipped)] for value in values]
            )
        dtype, shape = self._array
        if self.kind == "ndarray" and shape is None:
            return bytes_column([_array_file(value, dtype) for value in values])
        return (
            bytes_column(values)
            if self.size is None
            else fixed_column(b"".join(values), len(values))
        )

    @property
    def _array(self) -> tuple[np.dtype | None, tuple[int, ...] | None]:
        """Dtype and shape of all arrays, None for what the encoding does not say."""
        _, dtype, shape = (*self.encoding.split(":"), "", "")[:3]
        if self.kind != "ndarray":
            return None, None
        return _NUMBERS[dtype] if dtype else None, tuple(
            map(int, shape.split(","))
        ) if shape else None


def _array_file(data: Bytes, dtype: np.dtype | None) -> bytes:
    """Return an array, which gives its shape (and its dtype, if unknown), as an .npy file."""
    at = 0
    if dtype is None:
        if data[0] not in _DTYPES:
            raise ValueError(f"an array has the unknown dtype {data[0]}")
        dtype, at = np.dtype(f"<{_DTYPES[data[0]]}"), 1
    shape = struct.unpack_from(f"<{data[at] >> 2}{_WIDTHS[data[at] & 3]}", data, at + 1)
    at += 1 + len(shape) * (1 << (data[at] & 3))
    return encode_npy(data[at:], dtype, shape)


def check_hashes(shard: Shard, expected: Mapping[str, str], chunks: Iterable[bytes]) -> None:
    """Raise DataError unless the shard's contents have these hashes: hexadecimal, by algorithm.

    `chunks`: the contents.
    """
    states = {algorithm: _new_hash(algorithm, shard) for algorithm in expected}
    for chunk in chunks:
        for state in states.values():
            state.update(chunk)
    for algorithm, state in states.items():
        if state.hexdigest() != expected[algorithm]:
            raise shard.error(f"damaged: its {algorithm} is not that of its index.json", 0)


def _new_hash(algorithm: str, shard: Shard) -> Any:
    if algorithm in hashlib.algorithms_available:
        return hashlib.new(algorithm, usedforsecurity=False)
    constructor = getattr(
        import_optional("xxhash", "mds", f"the hash {algorithm} of {shard.safe_url}"),
        algorithm,
        None,
    )
    if constructor is None:
        raise ConfigError(
            f"the hash {algorithm!r} in the index.json of {shard.safe_url} is unknown: leave "
            "check_hashes out"
        )
    return constructor()
