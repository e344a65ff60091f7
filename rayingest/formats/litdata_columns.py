"""Columns of LitData: the leaves of its samples, and what each kind of them becomes.

Owns the names that leaves of nested samples get (`a.b`, and numbers for items of lists and tuples) and the kinds of
values, as https://github.com/Lightning-AI/litData writes them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.formats.columns import Bytes, bytes_column, lists_column, number_column
from rayingest.formats.values import items, npy, ppm

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
# The numbers that stand for dtypes, in the order of the lists that its writer has of NumPy's and PyTorch's.
_NUMPY = dict(
    enumerate(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?"])
)
_TORCH = dict(enumerate(["f4", "f4", "f8", "f8", "c8", "c8", "c16", "c16", "f2", "f2"]))
_TORCH |= dict(enumerate(["u1", "i1", "i2", "i2", "i4", "i4", "i8", "i8", "?", "u2"], 11))
# JSON that is kept as a list of one type: the byte in front tells which.
_LISTS = {2: "<i8", 3: "<f8", 4: "?"}


@dataclass(frozen=True)
class LitColumn:
    """One leaf of every sample. ValueError for a kind that is not known."""

    name: str
    kind: str
    detail: str = ""
    size: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in {"bool", *_NUMBERS, *_DECODED, *_TEXTS, *_BYTES}:
            raise ValueError(f"field {self.name!r} is of kind {self.kind!r}, which is not read")

    @property
    def decoded_by(self) -> str | None:
        """The encoding of the Arrow column, None where it has none."""
        return _DECODED.get(self.kind)

    def arrow(self, values: Sequence[Bytes]) -> pa.Array:
        """The values as an Arrow column."""
        if self.kind in _NUMBERS:
            return number_column(b"".join(values), _NUMBERS[self.kind])
        if self.kind == "bool":
            return pa.array(np.frombuffer(b"".join(values), np.bool_))
        if self.kind == "jpeg_array":
            return lists_column([items(value) for value in values])
        make = {"pil": ppm, "json": _json, "numpy": _numpy, "tensor": _tensor}.get(self.kind)
        if self.kind.startswith("no_header"):
            dtype = _dtype(_NUMPY if self.kind.endswith("numpy") else _TORCH, int(self.detail))
            values = [npy(value, dtype, (len(value) // dtype.itemsize,)) for value in values]
        return bytes_column(
            [make(value) for value in values] if make else values, text=self.kind in _TEXTS
        )


def columns_of(config: Mapping[str, Any]) -> tuple[LitColumn, ...]:
    """The columns that an index's `config` describes. ValueError, KeyError or TypeError for one that is not read."""
    if config.get("encryption"):
        raise ValueError("encrypted chunks are not read")
    if config.get("item_loader", "PyTreeLoader") != "PyTreeLoader":
        raise ValueError(
            f"chunks of its {config['item_loader']} are not read, only those of single samples"
        )
    version, tree = json.loads(config["data_spec"])
    if version != 1:
        raise ValueError(f"a data_spec of version {version} is not known")
    kinds = [kind.partition(":") for kind in config["data_format"]]
    names = list(_leaves(tree, ""))
    return tuple(
        LitColumn(name, kind, detail) for name, (kind, _, detail) in zip(names, kinds, strict=True)
    )


def _leaves(node: Mapping[str, Any], path: str) -> Iterator[str]:
    """The names of the leaves below a node, in their order."""
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
        raise ValueError(f"an array of dtype number {number} is not read")
    return np.dtype(dtypes[number]).newbyteorder("<")


def _numpy(data: Bytes) -> bytes:
    number, ndim = struct.unpack_from("<II", data)
    return npy(
        data[8 + 4 * ndim :], _dtype(_NUMPY, number), struct.unpack_from(f"<{ndim}I", data, 8)
    )


def _tensor(data: Bytes) -> bytes:
    number, ndim = struct.unpack_from(">II", data)
    return npy(
        data[8 + 4 * ndim :], _dtype(_TORCH, number), struct.unpack_from(f">{ndim}I", data, 8)
    )


def _json(data: Bytes) -> bytes:
    """JSON as text; newer versions keep lists of one type without."""
    if not data or data[0] > 0x20:
        return bytes(data)
    kind, count = struct.unpack_from("<BI", data)
    if kind == 0:
        return bytes(data[5 : 5 + count])
    if kind == 1:
        return json.dumps([bytes(text).decode() for text in _texts(data, count)]).encode()
    if kind in _LISTS:
        return json.dumps(np.frombuffer(data, _LISTS[kind], count, 5).tolist()).encode()
    raise ValueError(f"JSON in a form that is not known ({kind})")


def _texts(data: Bytes, count: int) -> Iterator[Bytes]:
    at = 5
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length
