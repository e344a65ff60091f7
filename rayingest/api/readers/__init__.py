"""Readers: one function for each format that returns a `Dataset`."""

from __future__ import annotations

from rayingest.api.readers.common import READERS
from rayingest.api.readers.files import (
    read_arrow,
    read_csv,
    read_files,
    read_format,
    read_hdf5,
    read_images,
    read_json,
    read_lance,
    read_litdata,
    read_lmdb,
    read_mds,
    read_npy,
    read_parquet,
    read_tfrecord,
    read_webdataset,
)

__all__ = [
    "READERS",
    "read_arrow",
    "read_csv",
    "read_files",
    "read_format",
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
