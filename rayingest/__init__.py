"""Deterministic, resumable data ingestion for PyTorch training, read and decoded by Ray actors.

Importing this loads neither Ray nor torch; they come with the first loader that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rayingest.errors import ConfigError, DataError, IngestError, StateError, WorkerError

if TYPE_CHECKING:
    from rayingest.cluster.pool import Pool
    from rayingest.config import load_config
    from rayingest.dataset import Dataset
    from rayingest.following import stream
    from rayingest.interop import from_ray, from_torch, from_torch_iterable
    from rayingest.mixture import Mixture, mix
    from rayingest.sources import (
        read_arrow,
        read_csv,
        read_files,
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
    from rayingest.trainer.loader import Loader
    from rayingest.transforms import images
    from rayingest.transforms.padding import Pad
    from rayingest.transforms.text import Tokenize

__version__ = "0.1.0"

_HOMES = {
    "Dataset": "rayingest.dataset",
    "Loader": "rayingest.trainer.loader",
    "Mixture": "rayingest.mixture",
    "Pad": "rayingest.transforms.padding",
    "Pool": "rayingest.cluster.pool",
    "Tokenize": "rayingest.transforms.text",
    "from_ray": "rayingest.interop",
    "from_torch": "rayingest.interop",
    "from_torch_iterable": "rayingest.interop",
    "load_config": "rayingest.config",
    "mix": "rayingest.mixture",
    "read_arrow": "rayingest.sources",
    "read_csv": "rayingest.sources",
    "read_files": "rayingest.sources",
    "read_hdf5": "rayingest.sources",
    "read_images": "rayingest.sources",
    "read_json": "rayingest.sources",
    "read_lance": "rayingest.sources",
    "read_litdata": "rayingest.sources",
    "read_lmdb": "rayingest.sources",
    "read_mds": "rayingest.sources",
    "read_npy": "rayingest.sources",
    "read_parquet": "rayingest.sources",
    "read_tfrecord": "rayingest.sources",
    "read_webdataset": "rayingest.sources",
    "stream": "rayingest.following",
}

__all__ = [
    "ConfigError",
    "DataError",
    "Dataset",
    "IngestError",
    "Loader",
    "Mixture",
    "Pad",
    "Pool",
    "StateError",
    "Tokenize",
    "WorkerError",
    "from_ray",
    "from_torch",
    "from_torch_iterable",
    "images",
    "load_config",
    "mix",
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
    "stream",
]


def __getattr__(name: str) -> Any:
    if name == "images":
        return importlib.import_module("rayingest.transforms.images")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rayingest' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "images", *_HOMES]
