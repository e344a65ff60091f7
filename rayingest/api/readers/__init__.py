"""What can be read: one function a format, each of which gives a `Dataset`.

Owns their options, in one place for the API and for configurations.
"""

from __future__ import annotations

from collections.abc import Callable

from rayingest.api.dataset import Dataset
from rayingest.api.readers.folders import read_files, read_images
from rayingest.api.readers.records import (
    read_litdata,
    read_lmdb,
    read_mds,
    read_tfrecord,
    read_webdataset,
)
from rayingest.api.readers.tables import (
    read_arrow,
    read_csv,
    read_hdf5,
    read_json,
    read_lance,
    read_npy,
    read_parquet,
)

__all__ = [
    "READERS",
    "read_arrow",
    "read_csv",
    "read_files",
    "read_hdf5",
    "read_images",
    "read_json",
    "read_lance",
    "read_litdata",
    "read_lmdb",
    "read_mds",
    "read_npy",
    "read_parquet",
    "read_tfrecord",
    "read_webdataset",
]

READERS: dict[str, Callable[..., Dataset]] = {
    reader.__name__.removeprefix("read_"): reader
    for reader in (
        read_webdataset,
        read_parquet,
        read_json,
        read_arrow,
        read_csv,
        read_images,
        read_files,
        read_mds,
        read_litdata,
        read_npy,
        read_hdf5,
        read_lmdb,
        read_lance,
        read_tfrecord,
    )
}
"""By the names of formats in a configuration."""
