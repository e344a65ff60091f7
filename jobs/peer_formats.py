"""Contestants that read shards of a format of their own: MosaicML Streaming's and LitData's.

Owns copies of the pictures, JPEGs as they are and labels, written once by each library's own writer, and how each is
set up: as its docs advise, by a subclass or a function that decodes, and its own loader, whose workers stay. Both
libraries are in `.venv-formats`, and run there (`peer_child.py`).
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench_contestants import SEED, picture
from bench_corpus import Corpus

BATCH = 64
SHARD_BYTES = 1 << 25


def mosaic_loader(data: Corpus, workers: int) -> Any:
    """MosaicML Streaming: shards of 32 MB, its default shuffle."""
    import torchvision_stand_in  # noqa: F401
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    class Pictures(StreamingDataset):
        def __getitem__(self, index: Any) -> tuple[np.ndarray, int]:
            sample = super().__getitem__(index)
            return picture(sample["jpg"]), sample["cls"]

    def write(folder: Path) -> None:
        with MDSWriter(out=str(folder), columns={"jpg": "bytes", "cls": "int"}, size_limit=SHARD_BYTES) as out:
            for jpg, label in samples(data.shards):
                out.write({"jpg": jpg, "cls": label})

    pictures = Pictures(local=str(_made(data, "mds", write)), batch_size=BATCH, shuffle=True, shuffle_seed=SEED)
    return StreamingDataLoader(pictures, batch_size=BATCH, **_options(workers))


def litdata_loader(data: Corpus, workers: int) -> Any:
    """LitData: chunks of 32 MB, shuffled."""
    from litdata import StreamingDataLoader, StreamingDataset, optimize

    def write(folder: Path) -> None:
        optimize(samples, [(shard,) for shard in data.shards], str(folder), chunk_bytes=SHARD_BYTES, num_workers=1)

    pictures = StreamingDataset(str(_made(data, "litdata", write)), shuffle=True, seed=SEED, transform=_pair)
    return StreamingDataLoader(pictures, batch_size=BATCH, **_options(workers))


def _options(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": True, "drop_last": True}


def _pair(sample: tuple[bytes, int]) -> tuple[np.ndarray, int]:
    return picture(sample[0]), sample[1]


def samples(shards: tuple[Path, ...]) -> Iterator[tuple[bytes, int]]:
    """JPEG and label of all samples of some tars."""
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


def _made(data: Corpus, kind: str, write: Callable[[Path], None]) -> Path:
    """The folder of a copy beside the tars, written where it is not there yet."""
    folder = data.shards[0].parent.with_suffix(f".{kind}")
    if not folder.exists():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        write(making)
        making.rename(folder)
    return folder
