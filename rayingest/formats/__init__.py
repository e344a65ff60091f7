"""The formats of shards, one module each, and the registry that names them.

A format says how a shard is cut into blocks and how blocks become Arrow tables (`protocol.Format`).
The registry loads the module of a format when the format is first used.
"""

from __future__ import annotations

import importlib

from rayingest.errors import ConfigError
from rayingest.formats.protocol import Format

__all__ = ["FORMATS", "Format", "get_format", "register_format"]

FORMATS: dict[str, str | Format] = {
    "arrow": "rayingest.formats.arrow:FORMAT",
    "csv": "rayingest.formats.csv:FORMAT",
    "files": "rayingest.formats.files:FORMAT",
    "hdf5": "rayingest.formats.hdf5:FORMAT",
    "images": "rayingest.formats.files:IMAGES",
    "index_only": "rayingest.formats.index_only:FORMAT",
    "iterables": "rayingest.formats.iterables:FORMAT",
    "json_lines": "rayingest.formats.json_lines:FORMAT",
    "lance": "rayingest.formats.lance:FORMAT",
    "litdata": "rayingest.formats.litdata:FORMAT",
    "lmdb": "rayingest.formats.lmdb:FORMAT",
    "mds": "rayingest.formats.mds:FORMAT",
    "npy": "rayingest.formats.npy:FORMAT",
    "parquet": "rayingest.formats.parquet:FORMAT",
    "tfrecord": "rayingest.formats.tfrecord:FORMAT",
    "webdataset": "rayingest.formats.webdataset:FORMAT",
}
"""By name: a `Format`, or the `module:attribute` from which its first use loads it."""


def get_format(name: str) -> Format:
    """Return the format of this name. ConfigError for a name that is not registered."""
    place = FORMATS.get(name)
    if place is None:
        raise ConfigError(
            f"unknown format {name!r}; registered are {', '.join(FORMATS)}; register another with "
            "rayingest.formats.register_format, in every process that makes a loader"
        )
    if isinstance(place, Format):
        return place
    module, _, attribute = place.partition(":")
    FORMATS[name] = found = getattr(importlib.import_module(module), attribute)
    return found


def register_format(format_: Format) -> None:
    """Register a format under its `name` in this process; the same class may register again.

    Each process that makes a loader needs the call: put it into the module that defines the format.
    Workers need none, since their task specs hold the format. ConfigError for a name that another
    format has.
    """
    known = FORMATS.get(format_.name)
    if known is not None and type(get_format(format_.name)) is not type(format_):
        raise ConfigError(f"a format {format_.name!r} exists already; give yours another name")
    FORMATS[format_.name] = format_
