"""Make a corpus for benchmarks once: JPEGs of photographs' size and spectrum in WebDataset shards.

The same arguments give the same pictures. A corpus is written to a temporary folder and then
renamed, so a partial one is never used.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import tarfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

SIZES = ((500, 375), (500, 400), (375, 500), (500, 333), (480, 400))
"""(width, height), in turn."""
QUALITY = 90

_OCTAVES = 7
"""Layers of noise, each twice as fine as the one before and weaker by `_FALL`, as in photographs.
"""
_STRENGTH, _FALL = 55.0, 0.55
_TEXTURE = 8.0


@dataclass(frozen=True)
class Corpus:
    """The shards of a corpus, its samples and bytes."""

    shards: tuple[Path, ...]
    samples: int
    nbytes: int


def make_corpus(
    root: Path, samples: int = 4096, shards: int = 8, processes: int | None = None
) -> Corpus:
    """Return a corpus of `samples` JPEGs in `shards` tars under `root`; write it if it does not
    exist.

    Each picture's label is its number.
    """
    folder = root / f"numbered-{samples}-{shards}"
    if not folder.exists():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        making.mkdir(parents=True)
        parts = np.array_split(np.arange(samples), shards)
        paths = [making / f"bench-{number:06d}.tar" for number in range(shards)]
        jobs = list(zip(paths, parts, strict=True))
        with ExitStack() as stack:
            done: Iterable[int] = map(_write_shard, jobs)
            if processes != 1:
                pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(processes))
                done = pool.imap_unordered(_write_shard, jobs)
            for _ in tqdm(done, desc="making the corpus", unit="shard", total=shards):
                pass
        making.rename(folder)
    paths = sorted(folder.glob("*.tar"))
    return Corpus(tuple(paths), samples, sum(path.stat().st_size for path in paths))


def picture(index: int, size: tuple[int, int] | None = None) -> bytes:
    """Make JPEG number `index`: noise at several scales and uneven texture, 57 kB on average."""
    rng = np.random.default_rng((2024, index))
    width, height = size or SIZES[index % len(SIZES)]
    channels = [
        _smooth(width, height, _OCTAVES, rng),
        *(_smooth(width, height, 3, rng) / 2 for _ in range(2)),
    ]
    uneven = np.abs(_smooth(width, height, 2, rng)) / _STRENGTH
    channels[0] += _TEXTURE * uneven * rng.standard_normal((height, width), np.float32)
    ycc = [np.clip(128 + channel, 0, 255).astype(np.uint8) for channel in channels]
    file = io.BytesIO()
    image = Image.merge("YCbCr", [Image.fromarray(channel) for channel in ycc]).convert("RGB")
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _smooth(width: int, height: int, octaves: int, rng: np.random.Generator) -> np.ndarray:
    """Return noise of points every 128 pixels, every 64, and so on; float32[height, width]."""
    layer = np.zeros((height // 128 + 2, width // 128 + 2), np.float32)
    for octave in range(octaves):
        if octave:
            shape = -(-height >> 7 - octave) + 2, -(-width >> 7 - octave) + 2
            layer = _resized(layer, *shape)
        layer += _STRENGTH * _FALL**octave * rng.standard_normal(layer.shape, np.float32)
    return _resized(layer, height, width)


def _resized(layer: np.ndarray, height: int, width: int) -> np.ndarray:
    return np.array(Image.fromarray(layer).resize((width, height), Image.Resampling.BICUBIC))


def _write_shard(job: tuple[Path, np.ndarray]) -> int:
    path, indices = job
    with tarfile.open(path, "w") as tar:
        for index in indices.tolist():
            _add(tar, f"{index:08d}.jpg", picture(index))
            _add(tar, f"{index:08d}.cls", str(index).encode())
    return len(indices)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
