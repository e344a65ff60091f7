"""Read LitData: folders of chunks, whose `index.json` names the chunks and describes their samples.

Owns the forms of chunks, the names of a sample's leaves (`a.b`; numbers for items of lists and
tuples) and the kinds of values, as https://github.com/Lightning-AI/litData writes them. Samples are
packed one by one; newer versions write samples of plain values as an Arrow file instead, or behind
them as a copy. Blocks are byte ranges between samples, or record batches; a chunk that is
compressed as a whole is one block.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rayingest.formats.arrow import index_part, read_part
from rayingest.formats.columns import Bytes, bytes_column, lists_column, number_column
from rayingest.formats.compression import EXPANSION, decompress
from rayingest.formats.index_json import (
    INDEX,
    Entry,
    find_entry,
    folder_index,
    list_indexed,
    translate_index_errors,
)
from rayingest.formats.offset_table import (
    encode_npy,
    encode_ppm,
    parse_offset_table,
    samples_table,
    split_list,
)
from rayingest.formats.protocol import (
    OFFSET,
    Block,
    BlockBuilder,
    Columns,
    Format,
    Options,
    Shard,
    check_columns,
    single_block,
)
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, Urls

_COMPRESSED = ".zstd.bin"
_FRAMED = b"LDFZ01"
_ARROW = b"LDARW01\0"
_FOOTER = struct.Struct("<I8s")


class LitData(Format):
    """LitData chunks, plain or compressed as a whole."""

    name = "litdata"
    suffixes = (".bin",)
    option_names = (EXPANSION,)

    def shards(self, urls: Urls, storage: Storage, block_bytes: int, options: Options) -> Listing:
        """Return the chunks that the `index.json` of each folder names."""
        return list_indexed(urls, self.suffixes, storage, _entries)

    def index(self, shard: Shard, block_bytes: int) -> ShardBlocks:
        compressed = shard.url.endswith(_COMPRESSED)
        chunk = _whole(shard)[0] if compressed else _plain(shard)
        lengths = np.diff(chunk.offsets)
        builder = BlockBuilder(block_bytes)
        builder.extend(chunk.offsets[:-1], chunk.offsets[1:], lengths)
        blocks = builder.finish()
        if compressed:
            blocks = single_block(shard.size, len(lengths), int(lengths.sum()))
        elif chunk.arrow is not None:
            blocks = index_part(shard, chunk.arrow, block_bytes)
        else:
            _columns(shard)
        entry, samples = find_entry(shard, _entries), int(blocks.samples.sum())
        if entry is not None and entry.samples != samples:
            raise shard.error(
                f"the chunk holds {samples} samples, and {entry.samples} by its index.json", 0
            )
        return blocks

    def read(self, shard: Shard, blocks: Sequence[Block], columns: Columns) -> list[pa.Table]:
        """Return the leaves of the samples, or those asked for in that order, and `__offset__`.

        `__offset__` is the byte of the sample in the uncompressed chunk, or of its record batch.
        """
        if shard.url.endswith(_COMPRESSED):
            chunk, data = _whole(shard)
            begin, end = int(chunk.offsets[0]), int(chunk.offsets[-1])
            samples = memoryview(data)[begin:end]
            return [
                samples_table(shard, _columns(shard), samples, begin, block, columns)
                for block in blocks
            ]
        arrow = _arrow_of(shard.storage, shard.url, shard.size)
        if arrow is not None:
            return [
                _flatten(shard, table, columns) for table in read_part(shard, arrow, blocks, None)
            ]
        pieces = shard.ranges([(begin, end) for begin, end, _ in blocks])
        return [
            samples_table(shard, _columns(shard), memoryview(piece), block[0], block, columns)
            for block, piece in zip(blocks, pieces, strict=True)
        ]


FORMAT = LitData()


class _Chunk(NamedTuple):
    """`offsets`: int64[samples + 1], the begin of each packed sample and the end of the last.

    `arrow`: the range of the Arrow file that has the samples instead, or None.
    """

    offsets: np.ndarray
    arrow: tuple[int, int] | None


def _entries(index: Any) -> list[Entry]:
    compressed = index["config"].get("compression") is not None
    return [
        Entry({one["filename"]: None if compressed else one["chunk_bytes"]}, one["chunk_size"])
        for one in index["chunks"]
    ]


def _columns(shard: Shard) -> tuple[LitColumn, ...]:
    folder = shard.url.rpartition("/")[0] + "/"
    index = folder_index(shard.storage, folder)
    with translate_index_errors(folder + INDEX):
        if index is None:
            raise ValueError("it is missing, and chunks cannot be read without it")
        return columns_of(index["config"])


def _plain(shard: Shard) -> _Chunk:
    return _parse(shard, shard.size, lambda begin, end: shard.ranges([(begin, end)])[0])


@lru_cache(maxsize=256)
def _arrow_of(storage: Storage, url: str, size: int) -> tuple[int, int] | None:
    return _plain(Shard(storage, url, size)).arrow


def _whole(shard: Shard) -> tuple[_Chunk, bytes]:
    """Decompress a chunk."""
    data = b"".join(decompress(shard, "zst"))
    return _parse(shard, len(data), lambda begin, end: data[begin:end]), data


def _parse(shard: Shard, size: int, read: Callable[[int, int], bytes]) -> _Chunk:
    if read(0, min(8, size)).startswith(_FRAMED):
        raise shard.error(
            "chunks compressed batch by batch are not supported: write them without compression", 0
        )
    offsets, _ = parse_offset_table(shard, size, read)
    end = int(offsets[-1])
    if end == size:
        return _Chunk(offsets, None)
    length, magic = _FOOTER.unpack(
        read(max(end, size - _FOOTER.size), size).rjust(_FOOTER.size, b"\0")
    )
    if magic != _ARROW or end + length + _FOOTER.size != size:
        raise shard.error(
            f"its samples end at {end}, and the format of the rest, up to {size}, is unknown", end
        )
    return _Chunk(offsets, None if offsets[0] < end else (end, end + length))


def _flatten(shard: Shard, table: pa.Table, columns: Columns) -> pa.Table:
    """Return the table with structs split into their leaves, named as those of packed samples."""
    offsets, metadata = table.column(OFFSET), table.schema.metadata
    table = table.drop_columns(OFFSET)
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    table = table.select(list(check_columns(shard, table.column_names, columns)))
    return table.append_column(OFFSET, offsets).replace_schema_metadata(metadata)


_NUMBERS = {"int": np.dtype("<i8"), "float": np.dtype("<f8")}
_DECODED = {
    "json": "json",
    "jpeg": "jpg",
    "image": "jpg",
    "tifffile": "tif",
    "pil": "ppm",
    "jpeg_array": "jpg",
}
_DECODED |= {
    "numpy": "npy",
    "tensor": "npy",
    "no_header_numpy": "npy",
    "no_header_tensor": "npy",
    "pickle": "pkl",
}
_TEXTS = ("str", "text")
_BYTES = ("bytes", "file", "video", "audio", "nifti", "mesh", "pdf")
# The numbers of dtypes, in the order of the writer's lists for NumPy and PyTorch.
_NUMPY = dict(
    enumerate(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?"])
)
_TORCH = dict(enumerate(["f4", "f4", "f8", "f8", "c8", "c8", "c16", "c16", "f2", "f2"]))
_TORCH |= dict(enumerate(["u1", "i1", "i2", "i2", "i4", "i4", "i8", "i8", "?", "u2"], 11))
# JSON stored as a list of one type, which the first byte gives.
_LISTS = {2: "<i8", 3: "<f8", 4: "?"}


@dataclass(frozen=True)
class LitColumn:
    """One leaf of every sample. ValueError for an unknown kind."""

    name: str
    kind: str
    detail: str = ""
    size: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in {"bool", *_NUMBERS, *_DECODED, *_TEXTS, *_BYTES}:
            raise ValueError(f"the kind {self.kind!r} of field {self.name!r} is not supported")

    @property
    def decoded_by(self) -> str | None:
        """The encoding of the Arrow column, None if it has none."""
        return _DECODED.get(self.kind)

    def arrow(self, values: Sequence[Bytes]) -> pa.Array:
        """Return the values as an Arrow column."""
        if self.kind in _NUMBERS:
            return number_column(b"".join(values), _NUMBERS[self.kind])
        if self.kind == "bool":
            return pa.array(np.frombuffer(b"".join(values), np.bool_))
        if self.kind == "jpeg_array":
            return lists_column([split_list(value) for value in values])
        make = {"pil": encode_ppm, "json": _json, "numpy": _numpy, "tensor": _tensor}.get(self.kind)
        if self.kind.startswith("no_header"):
            dtype = _dtype(_NUMPY if self.kind.endswith("numpy") else _TORCH, int(self.detail))
            values = [encode_npy(value, dtype, (len(value) // dtype.itemsize,)) for value in values]
        return bytes_column(
            [make(value) for value in values] if make else values, text=self.kind in _TEXTS
        )


def columns_of(config: Mapping[str, Any]) -> tuple[LitColumn, ...]:
    """Return the columns that an index's `config` describes.

    ValueError, KeyError or TypeError for a column that is not supported.
    """
    if config.get("encryption"):
        raise ValueError("encrypted chunks are not supported")
    if config.get("item_loader", "PyTreeLoader") != "PyTreeLoader":
        raise ValueError(
            f"chunks for {config['item_loader']} are not supported, only those for PyTreeLoader"
        )
    version, tree = json.loads(config["data_spec"])
    if version != 1:
        raise ValueError(f"version {version} of data_spec is not supported")
    kinds = [kind.partition(":") for kind in config["data_format"]]
    names = list(_leaves(tree, ""))
    return tuple(
        LitColumn(name, kind, detail) for name, (kind, _, detail) in zip(names, kinds, strict=True)
    )


def _leaves(node: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the names of the leaves below a node, in order."""
    children = node["children_spec"]
    if node["type"] is None:
        yield path or "0"
        return
    context = json.loads(node["context"] or "null")
    keys = (
        context
        if isinstance(context, list) and len(context) == len(children)
        else range(len(children))
    )
    for key, child in zip(keys, children, strict=True):
        yield from _leaves(child, f"{path}.{key}" if path else str(key))


def _dtype(dtypes: Mapping[int, str], number: int) -> np.dtype[Any]:
    if number not in dtypes:
        raise ValueError(f"the dtype number {number} of an array is unknown")
    return np.dtype(dtypes[number]).newbyteorder("<")


def _numpy(data: Bytes) -> bytes:
    number, ndim = struct.unpack_from("<II", data)
    return encode_npy(
        data[8 + 4 * ndim :], _dtype(_NUMPY, number), struct.unpack_from(f"<{ndim}I", data, 8)
    )


def _tensor(data: Bytes) -> bytes:
    number, ndim = struct.unpack_from(">II", data)
    return encode_npy(
        data[8 + 4 * ndim :], _dtype(_TORCH, number), struct.unpack_from(f">{ndim}I", data, 8)
    )


def _json(data: Bytes) -> bytes:
    """Return JSON as text; newer versions store lists of one type in binary form."""
    if not data or data[0] > 0x20:
        return bytes(data)
    kind, count = struct.unpack_from("<BI", data)
    if kind == 0:
        return bytes(data[5 : 5 + count])
    if kind == 1:
        return json.dumps([bytes(text).decode() for text in _texts(data, count)]).encode()
    if kind in _LISTS:
        return json.dumps(np.frombuffer(data, _LISTS[kind], count, 5).tolist()).encode()
    raise ValueError(f"the form {kind} of JSON is unknown")


def _texts(data: Bytes, count: int) -> Iterator[Bytes]:
    at = 5
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length
