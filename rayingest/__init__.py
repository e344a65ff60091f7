"""Deterministic, resumable data ingestion for PyTorch training, read and decoded by Ray actors.

Importing this loads neither Ray nor torch; they come with the first loader that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rayingest.errors import ConfigError, DataError, IngestError, StateError, WorkerError

if TYPE_CHECKING:
    from rayingest.api.config import load_config
    from rayingest.api.dataset import Dataset
    from rayingest.api.mixture import Mixture, mix
    from rayingest.api.readers import (
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
    from rayingest.api.readers.ray import from_ray
    from rayingest.api.readers.torch import from_torch, from_torch_iterable
    from rayingest.api.stream import stream
    from rayingest.execute.cluster.pool import Pool
    from rayingest.trainer.loader import Loader
    from rayingest.transforms import images
    from rayingest.transforms.padding import Pad
    from rayingest.transforms.text.tokenize import Tokenize

__version__ = "0.1.0"

_HOMES = {
    "Dataset": "rayingest.api.dataset",
    "Loader": "rayingest.trainer.loader",
    "Mixture": "rayingest.api.mixture",
    "Pad": "rayingest.transforms.padding",
    "Pool": "rayingest.execute.cluster.pool",
    "Tokenize": "rayingest.transforms.text.tokenize",
    "from_ray": "rayingest.api.readers.ray",
    "from_torch": "rayingest.api.readers.torch",
    "from_torch_iterable": "rayingest.api.readers.torch",
    "load_config": "rayingest.api.config",
    "mix": "rayingest.api.mixture",
    "read_arrow": "rayingest.api.readers",
    "read_csv": "rayingest.api.readers",
    "read_files": "rayingest.api.readers",
    "read_format": "rayingest.api.readers",
    "read_hdf5": "rayingest.api.readers",
    "read_images": "rayingest.api.readers",
    "read_json": "rayingest.api.readers",
    "read_lance": "rayingest.api.readers",
    "read_litdata": "rayingest.api.readers",
    "read_lmdb": "rayingest.api.readers",
    "read_mds": "rayingest.api.readers",
    "read_npy": "rayingest.api.readers",
    "read_parquet": "rayingest.api.readers",
    "read_tfrecord": "rayingest.api.readers",
    "read_webdataset": "rayingest.api.readers",
    "stream": "rayingest.api.stream",
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
    "stream",
]


if not TYPE_CHECKING:  # a type checker reads the imports above, and knows a mistyped name

    def __getattr__(name: str) -> Any:
        if name == "images":
            return importlib.import_module("rayingest.transforms.images")
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'rayingest' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
