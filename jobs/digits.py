"""Write scikit-learn's handwritten digits as WebDataset shards of PNG files, and augment them.

The digits are 1,797 grey images of 8x8 pixels. Every fifth is held out.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SHARDS = {"train": 6, "held-out": 3}


def write_shards(folder: Path) -> None:
    """Write `train-*.tar` and `held-out-*.tar` into the folder, unless they exist."""
    if folder.exists():
        return
    from sklearn.datasets import (
        load_digits,  # large, and of no use to the workers that import this for `shift`
    )

    aside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    aside.mkdir(parents=True)
    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)  # they come as 0 to 16
    held_out = np.arange(len(pixels)) % 5 == 4
    for part, numbers in {
        "train": np.flatnonzero(~held_out),
        "held-out": np.flatnonzero(held_out),
    }.items():
        for shard, some in enumerate(np.array_split(numbers, SHARDS[part])):
            with tarfile.open(aside / f"{part}-{shard:03d}.tar", "w") as tar:
                for number in some.tolist():
                    image = io.BytesIO()
                    Image.fromarray(pixels[number]).save(image, "png")
                    _add(tar, f"{number:04d}.png", image.getvalue())
                    _add(tar, f"{number:04d}.cls", str(digits.target[number]).encode())
    try:
        aside.rename(folder)
    except OSError:  # another process was quicker
        shutil.rmtree(aside)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def shift(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Move the digit by up to one pixel each way; zeros fill the gap."""
    down, right = rng.integers(0, 3, 2)
    padded = np.pad(sample["image"], ((1, 1), (1, 1), (0, 0)))
    height, width, _ = sample["image"].shape
    return {**sample, "image": padded[down : down + height, right : right + width]}
