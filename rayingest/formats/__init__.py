"""The formats of shards, one file each: how a shard is cut into blocks, and how blocks become Arrow tables."""

from __future__ import annotations

import importlib
from typing import cast

from rayingest.errors import ConfigError
from rayingest.formats.protocol import Format

__all__ = ["FORMATS", "Format", "get_format"]

FORMATS = (
    "arrow",
    "csv",
    "files",
    "hdf5",
    "images",
    "index_only",
    "iterables",
    "json_lines",
    "lance",
    "litdata",
    "lmdb",
    "mds",
    "npy",
    "parquet",
    "tfrecord",
    "webdataset",
)
"""Names of formats; each is the module in this package whose `FORMAT` it is."""


def get_format(name: str) -> Format:
    """The format of this name; ConfigError when there is none."""
    if name not in FORMATS:
        raise ConfigError(f"unknown format {name!r}; there are {', '.join(FORMATS)}")
    return cast(Format, importlib.import_module(f"rayingest.formats.{name}").FORMAT)
