"""Define what a benchmark compares: a contestant, and two loaders of images in tars.

The DataLoader is set up as its users do: a map-style dataset, shuffled by index, persistent workers
that stack batches in shared memory. A sample is one `pread` at a known offset; labels come with the
index, and each worker has its own file handles. So the DataLoader does only the work itself.
"""

from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

import rayingest as ri

SEED = 17
TRANSFORM = ri.images.Compose(ri.images.RandomResizedCrop(224), ri.images.RandomHorizontalFlip())


def picture(data: bytes) -> np.ndarray:
    """Decode, crop at random and flip a picture with Pillow; uint8[224, 224, 3]."""
    return TRANSFORM(data, np.random.default_rng(), image_backend="pillow")


@cache
def look_up(shards: tuple[Path, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return shard, offset, size and label of each picture of WebDataset tars, int64[pictures]
    each.
    """
    shard_of, offsets, sizes, labels = [], [], [], []
    for number, shard in enumerate(shards):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    shard_of.append(number)
                    offsets.append(member.offset_data)
                    sizes.append(member.size)
                else:
                    file = tar.extractfile(member)
                    assert file is not None
                    labels.append(int(file.read()))
    return np.array(shard_of), np.array(offsets), np.array(sizes), np.array(labels)


class TarImages(TorchDataset[tuple[torch.Tensor, int]]):
    """Picture, uint8[224, 224, 3], and label of each sample of WebDataset tars, by number."""

    def __init__(self, shards: tuple[Path, ...], path: str = "pillow") -> None:
        self._shards, self._path = shards, path
        self._files: dict[int, int] = {}
        self._shard_of, self._offsets, self._sizes, self._labels = look_up(shards)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        shard = int(self._shard_of[index])
        if shard not in self._files:
            self._files[shard] = os.open(self._shards[shard], os.O_RDONLY)
        data = os.pread(self._files[shard], int(self._sizes[index]), int(self._offsets[index]))
        rng = np.random.default_rng((SEED, index))
        return torch.from_numpy(TRANSFORM(data, rng, image_backend=self._path)), int(
            self._labels[index]
        )


def torch_loader(images: TarImages, batch: int, workers: int) -> DataLoader[Any]:
    """Make torch's DataLoader of the images."""
    return DataLoader(
        images,
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        pin_memory=False,
        persistent_workers=True,
        prefetch_factor=2,
    )


def our_loader(
    shards: tuple[Path, ...],
    batch: int,
    workers: int,
    index: Path,
    path: str | None = None,
    **shuffle: int,
) -> Any:
    """Make a loader of rayingest.

    `index` is the folder of its index, `path` its image backend (None: the best), `shuffle` its
    options of shuffle.
    """
    return (
        ri.read_webdataset([str(path) for path in shards], index=index)
        .select(image="jpg", label="cls")
        .decode(image=TRANSFORM)
        .shuffle(seed=SEED, **shuffle)
        .batch(batch)
        .loader(workers=workers, device="cpu", image_backend=path)
    )


class Contestant:
    """A loader with batches without end, epoch after epoch. `step` counts in the epoch."""

    def __init__(self, name: str, loader: Any) -> None:
        self.name, self.loader = name, loader
        self.step = 0
        self._pass: Iterator[Any] = iter(())

    def take(self, count: int = 1) -> bool:
        """Take `count` batches and drop each; return whether the last was an epoch's first."""
        for _ in range(count):
            self.step += 1
            batch = next(self._pass, None)
            if batch is None:
                self._pass = iter(self.loader)
                next(self._pass)
                self.step = 1
        return self.step == 1

    def epoch(self) -> tuple[int, float]:
        """Take a new epoch; return its number of batches and the seconds until the first."""
        begun = time.perf_counter()
        self._pass = iter(self.loader)
        next(self._pass)
        first = time.perf_counter() - begun
        return 1 + sum(1 for _ in self._pass), first

    def close(self) -> None:
        """End its workers."""
        if hasattr(self.loader, "close"):
            self.loader.close()
        self._pass = iter(())
        self.loader = None
