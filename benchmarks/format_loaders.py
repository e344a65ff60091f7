"""Contestants that read shards of their own format: MosaicML Streaming and LitData.

Owns copies of the data, written once by each library's writer, and each loader's setup, as its
documentation advises. Pictures are JPEGs with labels; tokens are arrays, or LitData's stream of
them. Both libraries are in `.venv-formats` and run there (`child.py`).
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contestants import SEED, picture

IMAGES, ROWS, TOKENS = 64, 16, 2048
"""Images of a batch; rows of a batch of tokens, and tokens of a row."""
SHARD_BYTES = 1 << 25
Files = tuple[Path, ...]


def mosaic_images(shards: Files, workers: int) -> Any:
    """MosaicML Streaming: shards of 32 MB, its default shuffle."""
    from streaming import StreamingDataLoader, StreamingDataset

    from benchmarks import torchvision_stub  # noqa: F401

    class Pictures(StreamingDataset):
        def __getitem__(self, index: Any) -> tuple[np.ndarray, int]:
            sample = super().__getitem__(index)
            return picture(sample["jpg"]), sample["cls"]

    rows = ({"jpg": jpg, "cls": label} for jpg, label in samples(shards))
    folder = _mosaic_shards(shards, {"jpg": "bytes", "cls": "int"}, rows)
    pictures = Pictures(local=folder, batch_size=IMAGES, shuffle=True, shuffle_seed=SEED)
    return StreamingDataLoader(pictures, batch_size=IMAGES, **_options(workers))


def mosaic_tokens(arrays: Files, workers: int) -> Any:
    """The same for rows of tokens: a column of arrays of a known shape and type."""
    from streaming import StreamingDataLoader, StreamingDataset

    from benchmarks import torchvision_stub  # noqa: F401

    rows = ({"tokens": row} for row in token_rows(arrays))
    folder = _mosaic_shards(arrays, {"tokens": f"ndarray:int32:{TOKENS}"}, rows)
    tokens = StreamingDataset(local=folder, batch_size=ROWS, shuffle=True, shuffle_seed=SEED)
    return StreamingDataLoader(tokens, batch_size=ROWS, **_options(workers))


def _mosaic_shards(files: Files, columns: dict[str, str], rows: Iterator[dict[str, Any]]) -> str:
    from streaming import MDSWriter

    def write(folder: Path) -> None:
        with MDSWriter(out=str(folder), columns=columns, size_limit=SHARD_BYTES) as out:
            for row in rows:
                out.write(row)

    return str(_made(files, "mds", write))


def litdata_images(shards: Files, workers: int) -> Any:
    """LitData: chunks of 32 MB, shuffled."""
    from litdata import StreamingDataLoader, StreamingDataset, optimize

    def write(folder: Path) -> None:
        optimize(
            samples,
            [(shard,) for shard in shards],
            str(folder),
            chunk_bytes=SHARD_BYTES,
            num_workers=1,
        )

    pictures = StreamingDataset(
        str(_made(shards, "litdata", write)), shuffle=True, seed=SEED, transform=_pair
    )
    return StreamingDataLoader(pictures, batch_size=IMAGES, **_options(workers))


def litdata_tokens(arrays: Files, workers: int) -> Any:
    """The same for tokens, which it stores as one stream and cuts into rows as it reads."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize

    def write(folder: Path) -> None:
        tokens = SHARD_BYTES // 4  # of a chunk, a whole number of rows
        optimize(
            token_tensors,
            [(file,) for file in arrays],
            str(folder),
            chunk_size=tokens,
            num_workers=1,
            item_loader=TokensLoader(block_size=TOKENS),
        )

    folder = str(_made(arrays, "litdata", write))
    tokens = StreamingDataset(
        folder, item_loader=TokensLoader(block_size=TOKENS), shuffle=True, seed=SEED
    )
    return StreamingDataLoader(tokens, batch_size=ROWS, **_options(workers))


def _options(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": True, "drop_last": True}


def _pair(sample: tuple[bytes, int]) -> tuple[np.ndarray, int]:
    return picture(sample[0]), sample[1]


def samples(shards: Files) -> Iterator[tuple[bytes, int]]:
    """Yield JPEG and label of all samples of some tars."""
    for shard in shards:
        with tarfile.open(shard) as tar:
            jpg = b""
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                if member.name.endswith(".jpg"):
                    jpg = file.read()
                else:
                    yield jpg, int(file.read())


def token_rows(arrays: Files) -> Iterator[np.ndarray]:
    """Yield each row of files of arrays, int32[2048]."""
    for file in arrays:
        yield from np.load(file)


def token_tensors(arrays: Files) -> Iterator[Any]:
    """Yield the rows as tensors, which LitData takes for tokens."""
    import torch

    yield from map(torch.from_numpy, token_rows(arrays))


def _made(files: Files, kind: str, write: Callable[[Path], None]) -> Path:
    """Return the folder of a copy beside the files'; write it if it does not exist."""
    folder = files[0].parent.with_suffix(f".{kind}")
    if not folder.exists():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        write(making)
        making.rename(folder)
    return folder
